"""Things to do later, for a state machine that is told the time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timers:
    """A heap of callbacks. There is no cancelling: a callback finds out itself whether it still matters."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._numbers = count()

    def at(self, due: int, then: Callable[[int], None]) -> None:
        """Call ``then(now)`` at ``due`` ns or as soon after it as ``run`` is called."""
        heapq.heappush(self._heap, (due, next(self._numbers), then))

    def next(self) -> int | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def run(self, now: int) -> None:
        """Call everything that is due, also what becomes due by being called."""
        while self._heap and self._heap[0][0] <= now:
            _, _, then = heapq.heappop(self._heap)
            then(now)
