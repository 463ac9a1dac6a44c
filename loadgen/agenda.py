"""Things to do at absolute times, in order of time and then of entry."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Agenda:
    """A heap of (time in ns, what to do). Knows no clock: it is told the time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._entries = 0

    def at(self, due: int, do: Callable[[int], None]) -> None:
        """``do(now)`` once ``now`` has reached ``due``."""
        heapq.heappush(self._heap, (due, self._entries, do))
        self._entries += 1

    @property
    def next(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> bool:
        """Do the first thing that is due; False if nothing is."""
        if not self._heap or self._heap[0][0] > now:
            return False
        _, _, do = heapq.heappop(self._heap)
        do(now)
        return True

    def clear(self) -> None:
        self._heap.clear()
