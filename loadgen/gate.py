"""A declared cap on the requests of a class in flight (MEASUREMENT C17)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadgen.rules import Cap

Waiting = Callable[[int], None]
"""Gets the time at which it may go."""


class Gate:
    """Counts who is inside; who finds it full waits in order, or is dropped."""

    def __init__(self, cap: Cap) -> None:
        self.drops = cap.over == "drop"
        self._limit = cap.in_flight
        self._inside = 0
        self._waiting: deque[tuple[int, Waiting]] = deque()

    def enter(self, who: int, waiting: Waiting) -> bool:
        """True = inside. Else ``waiting`` is called once there is room, unless the gate drops."""
        if self._inside < self._limit:
            self._inside += 1
            return True
        if not self.drops:
            self._waiting.append((who, waiting))
        return False

    def leave(self) -> Waiting | None:
        """One goes; who waited longest is inside in its place."""
        if self._waiting:
            return self._waiting.popleft()[1]
        self._inside -= 1
        return None

    def clear(self) -> set[int]:
        """Nobody waits any longer; who did."""
        held = {who for who, _ in self._waiting}
        self._waiting.clear()
        return held
