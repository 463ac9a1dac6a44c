"""What takes thought: bodies before they are sent, records of what came back. Off the send path.

In virtual time the desk works at once, in the same process; in a live run it is the clerk, a process of its
own (loadgen.clerk), to which the load process speaks through `loadgen.clerk_desk`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from loadgen.accounts import record_of
from loadgen.plan import PhaseName, Phases, Shot
from loadgen.progress import Tallies
from loadgen.raw import Closed
from loadgen.render import Rendered, Renderer
from loadgen.stamps import ClockBridge
from loadgen.timeline import Exchange, Timeline
from loadgen.tokens import CountTokens
from loadgen.transport import HttpRequest
from results.record import Outcome, Record


@dataclass(frozen=True, slots=True)
class Told:
    """How a request ended that other ones follow. ``at``: ns on the client's clock, its terminal event if
    it completed, else when it was let go."""

    completed: bool
    outcome: str
    at: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """A shot that never goes out. ``due`` in ns since t0, if it ever became due."""

    shot: int
    phase: str
    why: str
    due: int | None = None
    outcome: Outcome = Outcome.NOT_SENT


Use = Callable[[HttpRequest, bool], None]
"""Gets a request, and whether its answer is streamed."""
Tell = Callable[[int, Told], None]
"""Gets the id of a shot that other shots follow, and how it ended."""


class Desk(Protocol):
    def begin(self, t0: int, tell: Tell) -> None:
        """The load begins at ``t0``; ``tell`` is called for each ended shot that others follow."""

    def body(self, shot: int, attempt: int, use: Use) -> None:
        """``use`` the request: now if it is ready, else as soon as it is."""

    def closed(self, closed: Closed) -> None:
        """An attempt is over; its raw exchange is the desk's from now on."""

    def unsent(self, unsent: Unsent) -> None: ...


@dataclass(slots=True)
class Reader:
    """Makes records of what was seen. ``bridge`` turns kernel stamps into times on the client's clock;
    without it, the user's stamps stand."""

    shots: Mapping[int, Shot]
    phases: Phases
    renderer: Renderer
    t0: int
    bridge: ClockBridge | None = None
    count: CountTokens | None = None
    """Counts the tokens of answers whose server does not; where the target's tokenizer is known."""

    def closed(self, closed: Closed) -> Exchange:
        raw, dialect = closed.raw, self.renderer.dialect
        times, stamp, skew = self._arrivals(closed)
        timeline = Timeline(dialect)
        timeline.replay(raw, times[1:], times[0])
        record = self._blank(closed)
        record.stamp, record.skew_ns = stamp, skew
        exchange = timeline.close(record, self.t0, closed.cut, self.count)
        cancel = self.shots[closed.shot].cancel
        record.cancel_missed = cancel is not None and record.outcome is Outcome.COMPLETED
        return exchange

    def unsent(self, unsent: Unsent) -> Record:
        record = self._record(unsent.shot, unsent.outcome, unsent.phase)
        record.error, record.due = unsent.why, unsent.due
        return record

    def _arrivals(self, closed: Closed) -> tuple[list[int], str, int]:
        """Times of the head and of each read, whose stamps they are, and the bound of their conversion."""
        raw, bridge = closed.raw, self.bridge
        users = [raw.headers_at or 0, *raw.users]
        reals = [raw.headers_real, *raw.reals]
        if bridge is None or not any(reals):
            return users, "user", 0
        found = [bridge.arrival(user, real) for user, real in zip(users, reals, strict=True)]
        own = [kernel for (_, _, kernel), user in zip(found, users, strict=True) if user]
        stamp = "kernel" if all(own) else "mixed" if any(own) else "user"
        return [t for t, _, _ in found], stamp, max(bound for _, bound, _ in found)

    def _blank(self, closed: Closed) -> Record:
        due = closed.due - self.t0
        record = self._record(closed.shot, Outcome.UNKNOWN, self.phases.of(due))
        record.attempt = closed.attempt
        record.request_id = self.renderer.request_id(closed.shot, closed.attempt)
        record.due, record.dequeued = due, closed.dequeued - self.t0
        record.start, record.closed = closed.start - self.t0, closed.closed - self.t0
        record.cap_wait = closed.cap_wait
        if closed.attempt > 1:  # it was due when the backoff was over, which no cap is to blame for
            record.retry_due, record.cap_wait = record.dequeued + closed.cap_wait, 0
        return record

    def _record(self, shot: int, outcome: Outcome, phase: str) -> Record:
        planned = self.shots[shot]
        return record_of(planned, outcome, phase, self.renderer.dialect.model_of(planned))


class Scribe:
    """Writes the bodies, with the live answers that they quote; an answer is kept until the last turn of its
    conversation is over."""

    def __init__(self, shots: Sequence[Shot], phases: Phases, renderer: Renderer) -> None:
        self.shots = {shot.id: shot for shot in shots}
        self.renderer = renderer
        self._phases = phases
        parents = {shot.id: shot.parent for shot in shots if shot.parent is not None}
        self.followers: dict[int, list[int]] = defaultdict(list)
        for id, parent in parents.items():
            self.followers[parent].append(id)
        self._root: dict[int, int] = {}
        self._open: dict[int, int] = defaultdict(int)
        for id in sorted(parents.keys() | self.followers.keys()):
            before = None if self.shots[id].fresh else parents.get(id)
            self._root[id] = root = id if before is None else self._root[before]
            self._open[root] += 1
        self._texts: dict[int, dict[int, str]] = defaultdict(dict)
        self._opened_in: dict[int, PhaseName] = {}

    def render(self, shot: int, attempt: int) -> Rendered:
        root = self._root.get(shot, shot)
        planned = self.shots[shot]
        if (phase := self._opened_in.get(root)) is not None:
            planned = replace(planned, phase=phase)  # its nonce is that of the phase it really began in
        return self.renderer.render(planned, self._texts.get(root, {}), attempt)

    def ended(self, shot: int, text: str, told: Told, t0: int) -> list[int]:
        """A shot that others follow is over; which of them will now be sent, if there is time."""
        self._texts[self._root[shot]][shot] = text
        going = [id for id in self.followers[shot] if told.completed or self.shots[id].fresh]
        for id in going:
            if (follower := self.shots[id]).fresh:
                self._opened_in[id] = self._phases.of(told.at + (follower.after_ns or 0) - t0)
        return going

    def over(self, shot: int) -> None:
        """``shot`` has its last record; with the last one of a conversation its texts go."""
        root = self._root.get(shot)
        if root is None:
            return
        self._open[root] -= 1
        if not self._open[root]:
            self._texts.pop(root, None)
            self._opened_in.pop(root, None)


class InlineDesk:
    """A desk that works at once. ``on_close`` gets each shot's exchange with its record, ``on_attempt`` the
    records of attempts that were followed by another one."""

    def __init__(
        self,
        shots: Sequence[Shot],
        phases: Phases,
        renderer: Renderer,
        on_close: Callable[[Exchange, Rendered | None], None],
        on_attempt: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self.tallies = Tallies(phases)
        self._scribe = Scribe(shots, phases, renderer)
        self._reader = Reader(self._scribe.shots, phases, renderer, 0)
        self._on_close, self._on_attempt = on_close, on_attempt
        self._tell: Tell | None = None
        self._rendered: dict[int, Rendered] = {}

    def begin(self, t0: int, tell: Tell) -> None:
        self._reader.t0, self._tell = t0, tell

    def body(self, shot: int, attempt: int, use: Use) -> None:
        self._rendered[shot] = rendered = self._scribe.render(shot, attempt)
        use(rendered.request, rendered.streamed)

    def closed(self, closed: Closed) -> None:
        exchange = self._reader.closed(closed)
        record = exchange.record
        rendered = self._rendered.pop(closed.shot, None)
        if not closed.last:
            self.tallies.spent(record)
            self._on_attempt(record)
            return
        self.tallies.closed(record)
        self._on_close(exchange, rendered)
        told = told_of(record, closed.closed, self._reader.t0)
        followed = closed.shot in self._scribe.followers
        if followed:
            self._scribe.ended(closed.shot, exchange.text, told, self._reader.t0)
        self._scribe.over(closed.shot)
        if followed and self._tell is not None:
            self._tell(closed.shot, told)

    def unsent(self, unsent: Unsent) -> None:
        record = self._reader.unsent(unsent)
        self._scribe.over(unsent.shot)
        self.tallies.closed(record)
        self._on_close(Exchange(record), None)


def told_of(record: Record, closed: int, t0: int) -> Told:
    completed = record.outcome is Outcome.COMPLETED and record.terminal is not None
    at = t0 + record.terminal if completed and record.terminal is not None else closed
    return Told(completed, record.outcome.value, at)
