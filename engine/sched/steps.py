"""Steps, one after the other: what each computes, and what becomes of it when it is over (ENGINE E20).

::

    plan ──> [a step is in flight] ──> commit | step_failed ──> plan ...
"""

from __future__ import annotations

from collections.abc import Collection

from engine import messages as m
from engine.config import CostModel
from engine.request import Finish
from engine.runner.base import StepPlan, StepResult
from engine.sched.delivery import Delivery, Flight
from engine.sched.outbox import Outbox
from engine.sched.rates import BusyWindow
from engine.sched.roster import Roster
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence, State
from engine.sched.step import Step

FAILURES_IN_A_ROW = 3
"""So many failed steps in a row, and the worker gives up (ENGINE E16)."""


class Steps:
    """At most one step is in flight. Times in ns."""

    def __init__(
        self, cost: CostModel, scheduler: Scheduler, roster: Roster, delivery: Delivery, outbox: Outbox
    ) -> None:
        self.scheduler = scheduler
        self.memory = scheduler.memory
        self.roster = roster
        self.delivery = delivery
        self.outbox = outbox
        self.busy = BusyWindow(cost)
        self.number = 0
        """Of the next step."""
        self._flight: Flight | None = None
        self._failures = 0

    @property
    def started(self) -> int | None:
        """When the step in flight began; None while there is none."""
        return self._flight.started if self._flight else None

    def plan(self, now: int) -> StepPlan | None:
        """The next step, or None if there is nothing to do now."""
        assert self._flight is None, "a step is in flight"
        self._wake(now)  # E20 (1); cancels and changes were applied when they came
        planned = self._schedule(now)  # (2) to (5)
        chunks = planned.chunks
        here = (job.request.adapter for job in self.roster.active.values())
        adapters = self.scheduler.adapters.take_changes(here)
        moves = self.memory.transfers.depart(planned.each(), now)
        self.outbox.gather()
        if not len(planned) and not adapters and not moves:
            return None
        copying = tuple(sequence for sequence in self.memory.uncopied if sequence in chunks)
        moves += tuple(sequence.copy for sequence in copying)
        members = planned.lockstep.sequences
        rows = (*planned.lockstep.plan(), *(sequence.row(tokens) for sequence, tokens in chunks.items()))
        plan = StepPlan(self.number, rows, moves, adapters, len(members))
        self._flight = Flight(plan, (*members, *chunks), planned.lockstep.left, copying, now)
        self.roster.departed(self.number)
        self.number += 1
        for sequence in chunks:
            if sequence.truth.first_scheduled is None:
                self.scheduler.accounts.scheduled(sequence, now)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """Apply a finished step: count, publish, append tokens, end who is done (ENGINE E20 (7), E16)."""
        flight = self._land(plan, result.lost, now)
        self._failures = 0
        seconds = (now - flight.started) / 1e9
        self.memory.transfers.prices.learn(plan, seconds, result.moving)
        self.scheduler.adapters.applied(plan, result, seconds)
        self.outbox.gather()  # what could not be loaded is told before those who end by it
        for sequence in flight.copying:
            if sequence.state is State.RUNNING:
                self.memory.copied(sequence, now)
        self.delivery.computed(flight, result, now)
        self.outbox.gather()
        self.delivery.drawn(flight, result, now)
        self.outbox.gather()

    def step_failed(self, plan: StepPlan, error: BaseException | str, now: int) -> None:
        """The runner raised: publish nothing, end the step's requests with ``error`` (ENGINE E16)."""
        flight = self._land(plan, range(len(plan.transfers)), now)
        self._failures += 1
        self.scheduler.adapters.step_failed(plan)
        self.scheduler.accounts.meter.inc("headrace_engine_step_failures_total")
        for sequence in flight.sequences:
            if sequence.state is State.RUNNING:
                self.roster.finish(sequence.job, Finish.ERROR, now, f"step_failed: {error}")
        if self._failures >= FAILURES_IN_A_ROW:
            said = f"{self._failures} steps in a row failed, the last with: {error}"
            self.outbox.messages.append(m.Failed(said))
        self.outbox.gather()

    def _wake(self, now: int) -> None:
        """End what has lasted long enough: holds, lives, deadlines, the patience with a restore."""
        self.scheduler.holds.lapse(now)
        self.memory.cache.expire(now)
        self.roster.expire(now)
        for sequence in self.memory.transfers.overdue(now):
            self.scheduler.loaded(sequence, now)

    def _schedule(self, now: int) -> Step:
        """Who computes what. Who is alone and out of blocks ends here (ENGINE E26)."""
        for _ in range(3):  # ending or preempting somebody may empty a plan that was full before
            planned = self.scheduler.plan(now, self.number)
            while self.scheduler.exhausted:
                self.roster.end_choice(self.scheduler.exhausted.pop(), Finish.LENGTH, now)
            if len(planned) or not self.scheduler.stirred:
                break
        planned.chunks = self.scheduler.adapters.grouped(planned.chunks)
        return planned

    def _land(self, plan: StepPlan, lost: Collection[int], now: int) -> Flight:
        """The step in flight is over: its writes are done, so its fences open; who waited aside for its
        transfers runs on. Those ``lost`` did not happen."""
        flight = self._flight
        assert flight is not None, "no step is in flight"
        assert flight.plan is plan, "not the step in flight"
        self._flight = None
        self.memory.pool.applied(plan.step, now)
        self.scheduler.accounts.stepped(plan, flight.started, now)
        self.roster.landed(flight.sequences, now)
        self.busy.stepped(plan, (now - flight.started) / 1e9)
        aside = list(self.memory.transfers.loading.values())
        settled = self.memory.transfers.landed(plan, lost, now)
        if self.scheduler.holds.waiting:
            self._stop_transfers(aside, now)
        for sequence in settled:
            self.scheduler.loaded(sequence, now)
        return flight

    def _stop_transfers(self, aside: list[Sequence], now: int) -> None:
        """A breakpoint may stop who waits for blocks, after any step that loaded some (E48)."""
        for sequence in aside:
            loading = sequence.loading
            if loading is not None and loading.steps:
                loading.held = self.scheduler.holds.reached(sequence, f"transfer:{loading.steps}", now)
