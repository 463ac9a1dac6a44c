"""What dispatched prompts will leave on their workers (FLEET F31)."""

from __future__ import annotations

from collections.abc import Container, Sequence


class PredictedIndex:
    """What dispatched prompts will leave on their workers, until the events say it themselves (F31)."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[bytes, int]] = {}
        self._anywhere: dict[bytes, int] = {}
        """By digest, over all workers."""
        self._entries: dict[tuple[int, int], tuple[int, Sequence[bytes]]] = {}

    def __len__(self) -> int:
        return sum(len(counts) for counts in self._counts.values())

    def enter(self, attempt: tuple[int, int], worker: int, digests: Sequence[bytes]) -> None:
        """Attempts are (request id, attempt number)."""
        for counts in (self._counts.setdefault(worker, {}), self._anywhere):
            for digest in digests:
                counts[digest] = counts.get(digest, 0) + 1
        self._entries[attempt] = (worker, digests)

    def leave(self, attempt: tuple[int, int]) -> None:
        """Idempotent."""
        entry = self._entries.pop(attempt, None)
        if entry is None:
            return
        worker, digests = entry
        for counts in (self._counts[worker], self._anywhere):
            for digest in digests:
                if counts[digest] == 1:
                    del counts[digest]
                else:
                    counts[digest] -= 1

    def forget(self, worker: int) -> None:
        """Its cache is gone, and with it what was to be there."""
        for attempt in [a for a, (where, _) in self._entries.items() if where == worker]:
            self.leave(attempt)

    def run(self, digests: Sequence[bytes], worker: int) -> int:
        """Leading digests predicted on the worker. An entry is a whole prompt, so there are no holes."""
        counts = self._counts.get(worker)
        return _run_length(digests, counts) if counts and digests and digests[0] in counts else 0

    def elsewhere(self, digest: bytes, worker: int) -> bool:
        """True if another worker is computing it."""
        computing = self._anywhere.get(digest, 0)
        return computing > self._counts.get(worker, {}).get(digest, 0)


def _run_length(digests: Sequence[bytes], counts: Container[bytes]) -> int:
    """End of the leading run of what is in ``counts``: O(log n)."""
    low, high = 0, len(digests)
    while low < high:
        middle = (low + high) // 2
        if digests[middle] in counts:
            low = middle + 1
        else:
            high = middle
    return low
