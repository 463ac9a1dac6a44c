"""Fires a plan: every shot at its time, every shot to exactly one record.

```
agenda ──due──> feeder ──body──> transport ──bytes──> flight ──ended──> record
   ^                                                              │
   └────────── later turns: end of the answer + think time ───────┘
```
The driver is told the time by its alarm and by the transport's stamps. It never sends early, sends at
once what is late, and never moves a due time (MEASUREMENT C16). A slow target only ever holds back the
later turns of its own sessions (C20).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from loadgen.accounts import record_of
from loadgen.agenda import Agenda
from loadgen.alarm import Alarm, LoopAlarm
from loadgen.clock import Clock
from loadgen.feeder import Feeder, InlineFeeder
from loadgen.flight import Flight, Timeouts
from loadgen.inflight import InFlight
from loadgen.outcomes import Cut
from loadgen.plan import Plan, Shot
from loadgen.progress import Progress, Snapshot
from loadgen.render import Rendered, Renderer
from loadgen.timeline import CountTokens, Exchange, Timeline
from loadgen.transport import Transport
from results.record import Outcome, Record

LOOK_AHEAD_NS = 3_000_000_000
"""How long before it is due a body is made."""
LINGER_NS = 250_000_000
"""How long an ended answer may take to give its connection back before it is closed."""

P = ParamSpec("P")
MakeAlarm = Callable[[Clock, Callable[[], None]], Alarm]


class Driver:
    """Fires the shots of one slice. ``t0`` is ns on ``clock``; ``on_close`` gets every shot's exchange
    once, with its record. Use `run`, or `start` and `wake` from a loop of one's own."""

    def __init__(
        self,
        plan: Plan,
        renderer: Renderer,
        transport: Transport,
        clock: Clock,
        t0: int,
        on_close: Callable[[Exchange, Rendered | None], None],
        *,
        slice: int | None = None,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  frozen
        feeder: Feeder | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:
        self._plan, self._renderer, self._transport = plan, renderer, transport
        self._clock, self._t0, self._on_close = clock, t0, on_close
        self._timeouts, self._count_tokens = timeouts, count_tokens
        self._feeder = feeder or InlineFeeder()
        self._shots = plan.shots if slice is None else plan.of_slice(slice)
        self._followers: dict[int, list[Shot]] = defaultdict(list)
        for shot in self._shots:
            if shot.parent is not None:
                self._followers[shot.parent].append(shot)
        self._agenda = Agenda()
        self._alarm: Alarm | None = None
        self._waiting: dict[int, Shot] = {}
        self._flights: dict[int, Flight] = {}
        self._cancelled_early: set[int] = set()
        self._answers: dict[int, dict[int, str]] = defaultdict(dict)
        self._left = {shot.id for shot in self._shots}
        self._done: asyncio.Future[None] | None = None
        self.in_flight = InFlight(*plan.phases.window_ns)
        self.progress = Progress(self._shots, plan.phases)

    # --- from outside

    async def run(self, make_alarm: MakeAlarm = LoopAlarm) -> None:
        """Fire everything and return when every shot has its record. Raises what went wrong inside, for
        example in rendering; shots without a record are then not accounted for."""
        self._done = asyncio.get_running_loop().create_future()
        self.start(make_alarm(self._clock, self.wake))
        try:
            await self._done
        finally:
            self._agenda.clear()
            if self._alarm is not None:
                self._alarm.close()
            self._feeder.close()

    def start(self, alarm: Alarm) -> None:
        """Put the plan on the agenda. To have the first bodies ready, start some seconds before t0."""
        self._alarm = alarm
        for shot in self._shots:
            if shot.due_ns is not None:
                self._schedule(shot, self._t0 + shot.due_ns)
        end = self._t0 + self._plan.phases.load_ns + round(self._plan.phases.drain * 1e9)
        self._agenda.at(end, lambda now: self._end_run("drain_limit"))
        self._arm()
        self._finish_if_done()

    def wake(self) -> None:
        """The alarm rang: do all that is due by now."""
        self._guarded(self._run_due)

    def cancel(self, shot: int) -> None:
        """Door 2: the client of ``shot`` hangs up, at once or as soon as it has sent. Idempotent."""
        flight = self._flights.get(shot)
        if flight is not None:
            self._guarded(self._cancel, flight, self._clock())
        elif shot in self._left:
            self._cancelled_early.add(shot)

    def stop(self) -> None:
        """End the run now: what is in the air is cut off, the rest is not sent. Idempotent."""
        self._guarded(self._end_run, "interrupted")

    def request_id(self, shot: int) -> str:
        return self._renderer.request_id(shot)

    def snapshot(self) -> Snapshot:
        """Where the run stands; cheap."""
        return self.progress.snapshot(self._clock() - self._t0, self.in_flight.now)

    # --- sending

    def _schedule(self, shot: Shot, due: int) -> None:
        self._waiting[shot.id] = shot
        self._agenda.at(due - LOOK_AHEAD_NS, lambda now: self._feeder.prepare(shot.id, self._make(shot)))
        self._agenda.at(due, lambda now: self._dequeue(shot, due, now))

    def _make(self, shot: Shot) -> Callable[[], Rendered]:
        return partial(self._renderer.render, shot, self._answers.get(shot.session, {}))

    def _dequeue(self, shot: Shot, due: int, now: int) -> None:
        def send(rendered: Rendered) -> None:
            self._guarded(self._send, shot, rendered, due, now)

        self._feeder.collect(shot.id, self._make(shot), send, self._fail)

    def _send(self, shot: Shot, rendered: Rendered, due: int, dequeued: int) -> None:
        if self._waiting.pop(shot.id, None) is None:
            return  # the run ended while its body was made
        start = self._clock()
        assert start >= due, "a send must never be early"
        timeline = Timeline(self._renderer.dialect)
        flight = Flight(shot, rendered, timeline, due, dequeued, start, self._ended, self._reached)
        self._flights[shot.id] = flight
        self.in_flight.change(start - self._t0, +1)
        self.progress.sent(shot)
        flight.abort = self._transport.send(rendered.request, flight)
        if flight.over:
            return
        self._watch(flight, start)
        if shot.cancel is not None and shot.cancel.kind == "after":
            self._agenda.at(start + shot.cancel.at, partial(self._cancel, flight))
        if shot.id in self._cancelled_early:
            self._cancel(flight, start)

    # --- watching

    def _watch(self, flight: Flight, now: int) -> None:
        """Time out, or look again when that could be."""
        if flight.over:
            return
        deadline, limit = flight.deadline(self._timeouts)
        if now >= deadline:
            self._end(flight, now, Cut("timeout", limit))
        else:
            # Tokens are only noticed when somebody looks. Looking at least once in every limit finds
            # each deadline in time, whatever came in between.
            self._agenda.at(min(deadline, now + self._timeouts.shortest_ns), partial(self._watch, flight))

    def _ended(self, flight: Flight, t: int) -> None:
        self._guarded(self._end, flight, t)

    def _reached(self, flight: Flight, t: int) -> None:
        self._guarded(self._cancel, flight, t)

    def _cancel(self, flight: Flight, now: int) -> None:
        if not flight.over:
            flight.timeline.advance()
            self._end(flight, now, Cut("plan"))

    def _end(self, flight: Flight, t: int, cut: Cut | None = None) -> None:
        if flight.over:
            return
        flight.over = True
        del self._flights[flight.shot.id]
        self.in_flight.change(t - self._t0, -1)
        if cut is not None:
            flight.abort()
        elif not flight.disconnected:
            # Answered, but the connection is not back yet: it gets a moment to become reusable.
            self._agenda.at(t + LINGER_NS, lambda now: None if flight.disconnected else flight.abort())
        exchange = flight.timeline.close(self._record_of(flight, t), self._t0, cut, self._count_tokens)
        record = exchange.record
        record.cancel_missed = flight.shot.cancel is not None and record.outcome is Outcome.COMPLETED
        self._close(flight.shot, exchange, flight.rendered)
        self._follow(flight.shot, exchange)

    # --- records

    def _record_of(self, flight: Flight, closed: int) -> Record:
        due = flight.due - self._t0
        record = self._blank(flight.shot, Outcome.UNKNOWN, self._plan.phases.of(due))
        record.request_id = self._renderer.request_id(flight.shot.id)
        record.due = due
        record.dequeued = flight.dequeued - self._t0
        record.start = flight.start - self._t0
        record.closed = closed - self._t0
        return record

    def _blank(self, shot: Shot, outcome: Outcome, phase: str) -> Record:
        return record_of(shot, outcome, phase, self._renderer.dialect.model)

    def _close(self, shot: Shot, exchange: Exchange, rendered: Rendered | None) -> None:
        self._left.remove(shot.id)
        self.progress.closed(exchange.record)
        self._on_close(exchange, rendered)

    def _not_sent(self, shot: Shot, phase: str, why: str) -> None:
        """A record for a shot that will never go out, and for all turns after it."""
        if shot.id not in self._left:
            return
        record = self._blank(shot, Outcome.NOT_SENT, phase)
        record.error = why
        now = self._clock() - self._t0
        record.due = shot.due_ns if shot.due_ns is not None and shot.due_ns <= now else None
        self._waiting.pop(shot.id, None)
        self._close(shot, Exchange(record), None)
        for later in self._followers[shot.id]:
            self._not_sent(later, phase, why)

    # --- what comes after

    def _follow(self, shot: Shot, exchange: Exchange) -> None:
        """The next turns of the session become due, or never will (C20)."""
        record = exchange.record
        followers = self._followers[shot.id]
        if record.outcome is not Outcome.COMPLETED:
            for later in followers:
                self._not_sent(later, record.phase, f"session_ended: turn {shot.turn} {record.outcome}")
        elif followers:
            self._answers[shot.session][shot.id] = exchange.text
            for later in followers:
                self._next_turn(later, record)
        else:
            self._answers.pop(shot.session, None)
        self._arm()
        self._finish_if_done()

    def _next_turn(self, shot: Shot, parent: Record) -> None:
        assert parent.terminal is not None, "a completed request has a terminal event"
        due = parent.terminal + (shot.after_ns or 0)
        if due < self._plan.phases.load_ns:
            self._schedule(shot, self._t0 + due)
        else:
            self._not_sent(shot, parent.phase, "load_ended")

    def _end_run(self, why: str) -> None:
        now = self._clock()
        # First those in the air: their connections close when this returns to the loop.
        for flight in list(self._flights.values()):
            self._end(flight, now, Cut("run_end"))
        for shot in self._shots:
            self._not_sent(shot, shot.phase, why)
        self._finish_if_done()

    # --- the loop

    def _run_due(self) -> None:
        while self._agenda.run(self._clock()):
            pass
        self._arm()

    def _arm(self) -> None:
        due = self._agenda.next
        if due is not None and self._alarm is not None:
            self._alarm.set(due)

    def _finish_if_done(self) -> None:
        if not self._left and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _guarded(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            do(*args, **kwargs)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._done is None:
            raise error
        if not self._done.done():
            self._done.set_exception(error)
