"""Which digests' lives end when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator


class Expiries:
    """A heap of (time in ns, digest). A life that is stopped leaves its entry behind: ``alive(digest, at)``
    tells whether one still counts, and those that do not are cleared out when they are the most."""

    def __init__(self, alive: Callable[[bytes, int], bool]) -> None:
        self._alive = alive
        self._heap: list[tuple[int, bytes]] = []
        self._sweep_at = 64

    def add(self, digest: bytes, at: int) -> None:
        heapq.heappush(self._heap, (at, digest))
        if len(self._heap) > self._sweep_at:
            self._heap = [(at, digest) for at, digest in set(self._heap) if self._alive(digest, at)]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + 64

    def due(self, now: int) -> Iterator[bytes]:
        """Those whose life has ended, each once."""
        while self._heap and self._heap[0][0] <= now:
            at, digest = heapq.heappop(self._heap)
            if self._alive(digest, at):
                yield digest

    @property
    def next(self) -> int | None:
        """When to look again; perhaps nothing has ended then."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._heap.clear()
