"""Who is here: every request that a worker has taken, from its Submit to its one Done (ENGINE 8).

::

    take ──> (waits, runs) ──> end_choice, of the last ──> finish ──────> Done
      │           │                                         ^ └─ cancelled, expired: once its
      │           └─ cancelled, expired, failed: all choices ┘   blocks are free ──> Done
      └────> hand_back, while it has not started ──> Refused

Between ``departed`` and ``landed`` a step is in flight. It may still write the blocks of a request that
ends then, so they go back behind a fence (ENGINE E35).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from engine import messages as m
from engine.request import Finish, Request
from engine.sched.accounts import Accounts
from engine.sched.holds import Holds
from engine.sched.job import Job
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence, State

EARLY_CANCELS = 1024
"""Cancels of ids not seen yet that are remembered."""


class Roster:
    """Takes requests in and ends each exactly once; what it has to say goes to ``outbox``. Times in ns."""

    def __init__(
        self, scheduler: Scheduler, holds: Holds, accounts: Accounts, outbox: list[m.FromWorker]
    ) -> None:
        self.scheduler = scheduler
        self.holds = holds
        self.accounts = accounts
        self.outbox = outbox
        self.active: dict[int, Job] = {}
        self.taken = 0
        self.ended = 0
        self.handed_back = 0
        self._early_cancels: OrderedDict[int, Finish] = OrderedDict()
        self._deadlines: list[tuple[int, int]] = []
        self._in_flight: int | None = None
        self._landed = 0
        self._leaving: list[tuple[m.Done, int]] = []
        """Flagged while a step was in flight: told when it lands, with the steps landed at the flag."""

    @property
    def next_deadline(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def cancelled_early(self, id: int) -> bool:
        """A cancel has overtaken the Submit of this request."""
        return id in self._early_cancels

    # -- in -----------------------------------------------------------------------------------

    def take(self, sequence: Sequence, problem: str | None, now: int) -> None:
        """It is here from now on; a ``problem`` or an early cancel ends it in the same breath."""
        request = sequence.request
        self.taken += 1
        self.active[request.id] = sequence.job
        self.scheduler.add(sequence)
        self.accounts.taken(sequence.job)
        early = self._early_cancels.pop(request.id, None)
        if early is not None:
            self.finish(sequence.job, early, now)
        elif problem is not None:
            self.finish(sequence.job, Finish.ERROR, now, problem)
        elif request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))

    def refuse(self, request: Request, reason: str) -> None:
        """Back to the gateway, which may send it elsewhere."""
        self.outbox.append(m.Refused(request.id, request.attempt, reason))
        self.accounts.refused(request, reason)

    # -- a step in flight ---------------------------------------------------------------------

    def departed(self, step: int) -> None:
        """Step ``step`` is being executed."""
        self._in_flight = step

    def landed(self, sequences: tuple[Sequence, ...], now: int) -> None:
        """It is over: what ``sequences`` gave back meanwhile is free, and their Done can be told."""
        self._in_flight = None
        self._landed += 1
        if self._leaving:
            for job in {sequence.job for sequence in sequences if sequence.state is State.FINISHED}:
                job.truth.steps_after_cancel += job.truth.cancel_flagged is not None
        for done, landed in self._leaving:
            self._reclaimed(done, self._landed - landed, now)
        self._leaving.clear()

    # -- out ----------------------------------------------------------------------------------

    def end_choice(self, sequence: Sequence, reason: Finish, now: int) -> None:
        """One choice has come to its end, and with the last one its request (ENGINE E36)."""
        job, request = sequence.job, sequence.request
        if len(job.choices) == 1:
            self.finish(job, reason, now)
            return
        self.accounts.choice_ended(sequence)
        self.accounts.lengths.ended(request.class_, sequence.generated)
        self._remove(sequence, now)
        self.outbox.append(m.TokensOut(request.id, request.attempt, (), sequence.choice, finish=reason))

    def finish(
        self, job: Job, reason: Finish, now: int, error: str | None = None, own_fault: bool = False
    ) -> None:
        """The one way out: exactly one Done per taken request (ENGINE E33). That of a cancelled or expired
        one comes when its blocks are free again, at the latest when the step in flight lands."""
        self.holds.forget(job)
        for sequence in job.choices:
            sequence.step_out()
        self.accounts.ended(job, reason, now)
        for sequence in job.choices.copy():
            self._remove(sequence, now)
        del self.active[job.id]
        self.ended += 1
        done = m.Done(job.id, job.request.attempt, reason, job.truth, error, own_fault)
        if reason not in (Finish.CANCELLED, Finish.EXPIRED):
            self.outbox.append(done)
            return
        job.truth.cancel_flagged = now
        if job.fence == self._in_flight:
            self._leaving.append((done, self._landed))
        else:
            self._reclaimed(done, 0, now)

    def _remove(self, sequence: Sequence, now: int) -> None:
        if self._in_flight is not None and sequence.blocks:
            sequence.job.fence = self._in_flight
        self.scheduler.remove(sequence, now, self._in_flight)
        sequence.job.choices.remove(sequence)

    def cancel(self, id: int, reason: Finish, now: int, choice: int | None = None) -> None:
        """End it, or one choice of it, if it is here; else remember the cancel, which may have overtaken
        its Submit."""
        job = self.active.get(id)
        if choice is not None:
            forked = [s for s in (job.choices if job else ()) if not s.forks]
            for sequence in [s for s in forked if s.choice == choice]:
                self.end_choice(sequence, reason, now)
            return
        if job is not None:
            self.finish(job, reason, now)
            return
        self._early_cancels[id] = reason
        if len(self._early_cancels) > EARLY_CANCELS:
            self._early_cancels.popitem(last=False)

    def expire(self, now: int) -> None:
        """End everybody whose deadline has passed (ENGINE E31)."""
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, id = heapq.heappop(self._deadlines)
            job = self.active.get(id)
            if job is not None and job.request.deadline == deadline:
                self.finish(job, Finish.EXPIRED, now)

    def hand_back(self, id: int, reason: str, now: int) -> None:
        """Return a request that has not started; one that has goes on to its Done."""
        job = self.active.get(id)
        if job is None or job.started:
            return
        self._remove(job.choices[0], now)
        del self.active[id]
        self.handed_back += 1
        self.refuse(job.request, reason)

    def _reclaimed(self, done: m.Done, steps: int, now: int) -> None:
        """A flagged request holds nothing any more, so many applied steps after its flag."""
        self.accounts.freed(done.truth, steps, now)
        self.outbox.append(done)
