"""Fires a plan: every shot at its time, every shot to exactly one outcome.

```
agenda ──due──> desk ──body──> transport ──reads──> flight ──closed──> desk ──record
   ^                                                                    │
   └──────────── turns: end of the answer + think time <──────told──────┘
```
The driver is told the time by its alarm and by the transport's stamps. It never sends early, sends at
once what is late, and never moves a due time (MEASUREMENT C16). A slow target only ever holds back the
later turns of its own sessions (C20, loadgen.turns). What an answer means is the desk's business
(loadgen.desk).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec

from loadgen.agenda import Agenda
from loadgen.alarm import Alarm, LoopAlarm
from loadgen.clock import Clock
from loadgen.desk import Desk
from loadgen.endwatch import Habit
from loadgen.flight import Flight
from loadgen.gate import Gate
from loadgen.inflight import InFlight
from loadgen.line import Line
from loadgen.outcomes import Cut
from loadgen.plan import Phases, Shot
from loadgen.progress import Counts
from loadgen.raw import Unsent
from loadgen.rules import Rules
from loadgen.targets.base import Dialect
from loadgen.transport import Request, Transport
from loadgen.turns import Dues, Told, Turns
from results.record import CAP, Outcome

LINGER_NS = 250_000_000
"""How long an ended answer may take to give its connection back before it is closed."""

P = ParamSpec("P")
MakeAlarm = Callable[[Clock, Callable[[], None]], Alarm]


class Driver:
    """Fires ``shots``, those of one load process. ``t0`` is ns on ``clock``. Use `run`, or `start` and
    `wake` from a loop of one's own."""

    def __init__(
        self,
        shots: Sequence[Shot],
        phases: Phases,
        desk: Desk,
        dialect: Dialect,
        transport: Transport,
        clock: Clock,
        t0: int,
        rules: Rules = Rules(),  # noqa: B008  frozen
    ) -> None:
        self._phases, self._desk, self._dialect = phases, desk, dialect
        self._habit = Habit()
        self._transport, self._clock, self._t0, self._rules = transport, clock, t0, rules
        self._end_at = t0 + phases.load_ns + round(phases.drain * 1e9)
        self._shots, self._turns = shots, Turns(shots, phases)
        self._dues = Dues(self._turns, phases)
        self._agenda = Agenda(shots, t0, clock, self._due)
        self._watched = Line(self._agenda, rules.timeouts.shortest_ns, self._watch)
        self._lingering: Line[Flight] = Line(self._agenda, LINGER_NS, lambda flight, now: flight.abort())
        self._gates = {name: Gate(cap) for name, cap in rules.caps.items()}
        self._flights: dict[int, Flight] = {}
        self._again: dict[int, int] = {}
        """The number of the next attempt of those that wait for it."""
        self._cancelled_early: set[int] = set()
        self._over = bytearray(1 + max((shot.id for shot in shots), default=0))
        self._left = len(shots)
        self._stopping = False
        self._done: asyncio.Future[None] | None = None
        self.in_flight = InFlight(*phases.window_ns)
        self.counts = Counts(shots, phases)
        self.bodies_late = 0
        """First turns whose body was not made when it was to be sent."""

    # --- from outside

    async def run(self, make_alarm: MakeAlarm = LoopAlarm) -> None:
        """Fire everything and return when every shot has its outcome. Raises what went wrong inside."""
        self._done = asyncio.get_running_loop().create_future()
        self.start(make_alarm(self._clock, self.wake))
        try:
            await self._done
        finally:
            self._over = bytearray(b"\1") * len(self._over)  # whatever failed, nothing goes out any more
            self._agenda.close()

    def start(self, alarm: Alarm) -> None:
        """Begin with the plan. To have the first bodies ready, start some seconds before t0."""
        self._desk.begin(self._t0, self.told)
        self._agenda.at(self._end_at, lambda now: self._end_run("drain_limit"))
        self._agenda.begin(alarm)
        self._finish_if_done()

    def wake(self) -> None:
        """The alarm rang: do all that is due by now."""
        self._guarded(self._agenda.run)

    def cancel(self, shot: int) -> None:
        """Door 2: the client of ``shot`` hangs up, at once or as soon as it has sent. Idempotent."""
        flight = self._flights.get(shot)
        if flight is not None:
            self._guarded(self._cancel, flight, self._clock())
        elif shot < len(self._over) and not self._over[shot]:
            self._cancelled_early.add(shot)

    def stop(self) -> None:
        """End the run now: what is in the air is cut off, the rest is not sent. Idempotent."""
        self._guarded(self._end_run, "interrupted")

    def fail(self, error: BaseException) -> None:
        """Whoever works for the driver cannot go on; `run` raises ``error``."""
        if self._done is None:
            raise error
        if not self._done.done():
            self._done.set_exception(error)

    def planned(self, skip: int) -> int | None:
        """`Agenda.planned`."""
        return self._agenda.planned(skip)

    # --- sending

    def _due(self, shot: Shot, due: int, now: int) -> None:
        """``shot`` is due: send it, unless its class is full."""
        if self._over[shot.id]:
            return  # the run ended before it came to this
        self._dues.now(shot, due - self._t0)
        gate = self._gates.get(shot.class_)
        if gate is None or gate.enter(shot.id, partial(self._ask, shot, due, now, 1)):
            self._ask(shot, due, now, 1, now)
        elif gate.drops:
            phase = self._phases.of(due - self._t0)
            self._unsent(shot, phase, CAP, Outcome.DROPPED)
            self._follow(shot.id, Told(False, Outcome.DROPPED.value, due, phase))

    def _ask(self, shot: Shot, due: int, dequeued: int, attempt: int, now: int) -> None:
        if self._over[shot.id]:
            self._leave(shot)
            return

        times = due, dequeued, now
        if (body := self._desk.body(shot.id, attempt)) is not None:
            self._send(shot, *body, times, attempt)
            return

        if attempt == 1 and shot.due_ns is not None:
            self.bodies_late += 1

        def use(request: Request, streamed: bool) -> None:
            self._guarded(self._send, shot, request, streamed, times, attempt)

        self._desk.want(shot.id, attempt, use)

    def _send(
        self, shot: Shot, request: Request, streamed: bool, times: tuple[int, int, int], attempt: int
    ) -> None:
        if self._over[shot.id]:
            self._leave(shot)  # the run ended while its body was made
            return
        due, dequeued, admitted = times
        start = self._clock()
        assert start >= due, "a send must never be early"
        self._again.pop(shot.id, None)
        stamps = due, dequeued, start
        flight = Flight(
            shot, attempt, stamps, self._dialect, self._habit, streamed, self._ended, self._reached
        )
        flight.cap_wait = admitted - dequeued
        self._flights[shot.id] = flight
        self.in_flight.change(start - self._t0, +1)
        if attempt == 1:
            self.counts.sent[shot.class_] += 1
        flight.abort = self._transport.send(request, flight)
        if flight.over:
            return
        if flight.raw.conn is None:
            self._watch(flight, start)
        else:  # no limit that is left is shorter than the line's
            flight.wait_in(self._watched, start)
        if shot.cancel is not None and shot.cancel.kind == "after":
            self._agenda.at(start + shot.cancel.at, partial(self._cancel, flight))
        if shot.id in self._cancelled_early:
            self._cancel(flight, start)

    # --- watching

    def _watch(self, flight: Flight, now: int) -> None:
        """Time out, or look again when that could be."""
        if flight.over:
            return
        limits = self._rules.timeouts
        if now > flight.start:
            flight.look()
        deadline, limit = flight.deadline(limits)
        if now >= deadline:
            self._end(flight, now, Cut("timeout", limit))
        else:
            # Tokens are only noticed by looking. Once in every limit finds each deadline in time.
            soon = min(deadline, now + limits.shortest_ns)
            flight.timer = self._agenda.at(soon, partial(self._watch, flight))

    def _ended(self, flight: Flight, t: int) -> None:
        self._guarded(self._end, flight, t)

    def _reached(self, flight: Flight, t: int) -> None:
        self._guarded(self._cancel, flight, t)

    def _cancel(self, flight: Flight, now: int) -> None:
        if not flight.over:
            self._end(flight, now, Cut("plan"))

    def _end(self, flight: Flight, t: int, cut: Cut | None = None) -> None:
        if flight.over:
            return
        flight.end()
        shot = flight.shot
        del self._flights[shot.id]
        self.in_flight.change(t - self._t0, -1)
        if cut is not None:
            flight.abort()
        elif not flight.disconnected:
            # Answered, but the connection is not back yet: it gets a moment to become reusable.
            flight.wait_in(self._lingering, t)
        self._hand_over(flight, t, cut)

    def _hand_over(self, flight: Flight, t: int, cut: Cut | None) -> None:
        shot = flight.shot
        again = None if cut is not None else self._next_attempt(flight, t)
        closed = flight.hand_over(t, cut, last=again is None)
        if again is None:
            self._settle(shot)
        self._desk.closed(closed, self._turns.follow(shot.id))
        if again is None:
            self._leave(shot)
        self._finish_if_done()

    def _next_attempt(self, flight: Flight, t: int) -> int | None:
        """Puts it on the agenda; returns when it is due, None if there is none."""
        wait = self._rules.retries.wait(flight.raw, flight.attempt)
        if wait is None or (again := t + round(wait * 1e9)) >= self._end_at:
            return None
        shot, due, dequeued, attempt = flight.shot, flight.due, flight.dequeued, flight.attempt + 1
        self._again[shot.id] = attempt
        # Counted as held back until then, so that the wait is not taken for the client's lateness.
        self._agenda.at(again, lambda now: self._ask(shot, due, dequeued, attempt, again))
        return again

    def _leave(self, shot: Shot) -> None:
        """A place of its class is free again; who has it now is sent from the agenda, not from in here."""
        gate = self._gates.get(shot.class_)
        if gate is not None and (waiting := gate.leave()) is not None:
            free = self._clock()
            self._agenda.at(free, lambda now: waiting(free))

    def _settle(self, shot: Shot) -> None:
        self._over[shot.id] = 1
        self._left -= 1
        self._dues.over(shot)

    # --- what comes after

    def told(self, shot: int, told: Told) -> None:
        """The desk has understood how a shot ended that others follow (C20)."""
        self._guarded(self._follow, shot, told)

    def _follow(self, shot: int, told: Told) -> None:
        """The next turns of the session become due, or never will."""
        if self._stopping:
            return
        after = self._turns.after(shot, told, self._t0)
        for later, due in after.due:
            self._agenda.at(due, partial(self._due, later, due))
        for later, phase, why in after.never:
            self._unsent(later, phase, why)
        self._finish_if_done()

    def _unsent(self, shot: Shot, phase: str, why: str, outcome: Outcome = Outcome.NOT_SENT) -> None:
        due, attempt = self._dues.of(shot), self._again.pop(shot.id, 1)
        if attempt > 1:
            outcome = Outcome.CENSORED_BY_RUN_END  # it was sent, and still alive
        self._settle(shot)
        self._desk.unsent(Unsent(shot.id, phase, why, due, outcome, attempt))

    # --- the end

    def _end_run(self, why: str) -> None:
        now, self._stopping = self._clock(), True
        held = set[int]().union(*(gate.clear() for gate in self._gates.values()))
        # First those in the air: their connections close when this returns to the loop.
        # The latest first: who waits for a connection must not get one that another's end sets free.
        for flight in reversed(list(self._flights.values())):
            self._end(flight, now, Cut("run_end"))
        for shot in self._shots:
            if not self._over[shot.id]:
                self._unsent(shot, self._dues.phase_left(shot), CAP if shot.id in held else why)
        self._agenda.clear()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._left and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _guarded(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            do(*args, **kwargs)
        except Exception as error:
            self.fail(error)
