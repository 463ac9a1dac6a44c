"""What a desk knows: how to understand what was seen, and that every request gets its one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.accounts import record_of
from loadgen.plan import Phases, Shot
from loadgen.progress import Tallies
from loadgen.raw import Closed, Unsent
from loadgen.render import Renderer
from loadgen.scribe import Scribe
from loadgen.stamps import ClockBridge
from loadgen.timeline import Exchange, Timeline
from loadgen.tokens import CountTokens
from loadgen.turns import Told
from results.record import MISSING_DONE, Outcome, Record


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
        record.error, record.due, record.attempt = unsent.why, unsent.due, unsent.attempt
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


class Books:
    """Reads what comes back, says what follows from it, and files the records.

    ``on_close`` gets each shot's exchange with its record, once; ``on_attempt`` the records of attempts
    that were followed by another one.
    """

    def __init__(
        self,
        shots: Sequence[Shot],
        phases: Phases,
        renderer: Renderer,
        on_close: Callable[[Exchange], None],
        on_attempt: Callable[[Record], None],
        bridge: ClockBridge | None = None,
        count: CountTokens | None = None,
    ) -> None:
        self.scribe = Scribe(shots, phases, renderer)
        self.tallies = Tallies(phases)
        self._reader = Reader(self.scribe.shots, phases, renderer, 0, bridge, count)
        self._on_close, self._on_attempt = on_close, on_attempt

    def begin(self, t0: int) -> None:
        self._reader.t0 = t0

    def read(self, closed: Closed) -> Exchange:
        return self._reader.closed(closed)

    def awaited(self, shot: int, last: bool) -> bool:
        """Whether others wait for how this attempt ended."""
        return last and self.scribe.turns.follow(shot)

    def ended(self, closed: Closed, exchange: Exchange) -> tuple[Told, list[int]]:
        """How an awaited attempt ended, and which turns come now. Before it is filed."""
        told = _told(exchange.record, closed.closed, self._reader.t0)
        return told, self.scribe.ended(closed.shot, exchange.text, told, self._reader.t0)

    def passed(self, unsent: Unsent) -> list[int]:
        """The turns that come although ``unsent`` did not go out: only a dropped one is followed by any
        that the driver has not decided on already."""
        if unsent.due is None or unsent.outcome is not Outcome.DROPPED:
            return []
        told = Told(False, unsent.outcome.value, self._reader.t0 + unsent.due, unsent.phase)
        return self.scribe.passed(unsent.shot, told, self._reader.t0)

    def file(self, closed: Closed, exchange: Exchange) -> None:
        if closed.last:
            self._filed(exchange)
        else:
            self.tallies.spent(exchange.record)
            self._on_attempt(exchange.record)

    def unsent(self, unsent: Unsent) -> None:
        self._filed(Exchange(self._reader.unsent(unsent)))

    def _filed(self, exchange: Exchange) -> None:
        self.tallies.closed(exchange.record)
        self._on_close(exchange)
        self.scribe.over(exchange.record.id)


def _told(record: Record, closed: int, t0: int) -> Told:
    """What never said that it was done (C25) nobody knows to be over before it is let go."""
    completed = record.outcome is Outcome.COMPLETED and record.terminal is not None
    said = completed and MISSING_DONE not in (record.warnings or ())
    at = t0 + record.terminal if said and record.terminal is not None else closed
    return Told(completed, record.outcome.value, at, record.phase)
