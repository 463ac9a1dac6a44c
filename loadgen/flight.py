"""One shot in the air: its timeline, and what may end it early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadgen.outcomes import Limit
from loadgen.plan import Seconds, Shot
from loadgen.render import Rendered
from loadgen.timeline import Timeline
from loadgen.transport import Ending


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The client's own limits (MEASUREMENT C28), in s; nothing is left to a library's default."""

    connect: Seconds = 5.0
    first_token: Seconds = 60.0
    between_tokens: Seconds = 30.0
    total: Seconds = 120.0

    @property
    def shortest_ns(self) -> int:
        return round(min(self.connect, self.first_token, self.between_tokens, self.total) * 1e9)


class Flight:
    """The Sink that a transport talks to. ``due``, ``dequeued`` and ``start`` in ns on the clock."""

    def __init__(
        self,
        shot: Shot,
        rendered: Rendered,
        timeline: Timeline,
        due: int,
        dequeued: int,
        start: int,
        ended: Callable[[Flight, int], None],
        reached: Callable[[Flight, int], None],
    ) -> None:
        self.shot = shot
        self.rendered = rendered
        self.timeline = timeline
        self.due = due
        self.dequeued = dequeued
        self.start = start
        self.over = False
        self.disconnected = False
        self.abort: Callable[[], None] = _nothing
        self._ended = ended
        self._reached = reached
        cancel = shot.cancel
        self._cancel_at = cancel.at if cancel is not None and cancel.kind == "decode" else None

    def connected(self, t: int, new: bool) -> None:
        self.timeline.connected(t, new)

    def sent(self, t: int) -> None:
        if not self.over:
            self.timeline.sent(t)

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        if not self.over:
            self.timeline.headers(t, status, headers)

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        if self.over:
            return
        self.timeline.data(t, chunk)
        if self.timeline.over:
            self._ended(self, t)
        elif self._cancel_at is not None and self.timeline.tokens() >= self._cancel_at:
            self._reached(self, t)

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.disconnected = True
        if not self.over:
            self.timeline.closed(t, how, detail)
            self._ended(self, t)

    def deadline(self, limits: Timeouts) -> tuple[int, Limit]:
        """When the client gives up, as things stand, and by which limit. Only tokens are progress; an
        answer in one piece has only the total limit."""
        total = self.start + round(limits.total * 1e9)
        stage: tuple[int, Limit]
        if self.timeline.conn is None:
            stage = self.start + round(limits.connect * 1e9), "connect"
        elif not self.rendered.streamed:
            stage = total, "total"
        elif (last := self.timeline.last_progress()) is None:
            stage = self.start + round(limits.first_token * 1e9), "first_token"
        else:
            stage = last + round(limits.between_tokens * 1e9), "between_tokens"
        return min(stage, (total, "total"))


def _nothing() -> None:
    """Not connected yet."""
