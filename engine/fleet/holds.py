"""Breakpoints (ENGINE E48): a request stops at a phase, so that a fault can be phase-exact.

``queued`` is the gateway's own phase; the others are armed on the workers, the first that reaches one
wins and the others are disarmed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine.messages import Held, Hold

MAX_HELD_NS = 10_000_000_000
_PHASE = re.compile(r"queued|admitted|(prefill|transfer|decode):[1-9]\d*")


@dataclass(slots=True)
class Breakpoint:
    """``held`` is None while it is only armed."""

    id: int
    phase: str
    request: str | None
    worker: int | None
    held: Held | None = None
    held_by: int | None = None
    """The worker that holds it; None while armed and in phase ``queued``."""
    told: set[int] = field(default_factory=set)

    @property
    def at_gateway(self) -> bool:
        return self.phase == "queued"

    def matches(self, client_id: str) -> bool:
        return self.request is None or self.request == client_id

    def message(self) -> Hold:
        return Hold(self.id, self.phase, self.request)


class Holds:
    """All breakpoints that are armed or hold something."""

    def __init__(self) -> None:
        self._last = 0
        self._points: dict[int, Breakpoint] = {}

    def arm(self, phase: str, request: str | None, worker: int | None) -> Breakpoint:
        """Raises ValueError for a phase that nothing can reach."""
        if not _PHASE.fullmatch(phase):
            raise ValueError(f"phase {phase!r} is none of queued, admitted, prefill:k, transfer:k, decode:n")
        self._last += 1
        point = self._points[self._last] = Breakpoint(self._last, phase, request, worker)
        return point

    def get(self, id: int) -> Breakpoint | None:
        return self._points.get(id)

    def remove(self, id: int) -> Breakpoint | None:
        return self._points.pop(id, None)

    def armed(self) -> list[Breakpoint]:
        """Those that hold nothing yet."""
        return [point for point in self._points.values() if point.held is None]

    def armed_for_queue(self, client_id: str) -> Breakpoint | None:
        """The oldest breakpoint at ``queued`` that this request runs into."""
        return next((p for p in self.armed() if p.at_gateway and p.matches(client_id)), None)
