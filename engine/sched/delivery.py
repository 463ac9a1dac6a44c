"""What becomes of a finished step: every row's outcome goes to the sequence it was computed for (E20 (7)).

::

    row ──> its K/V is there ──> full blocks published ──> token appended ──> told ──> ended, or goes on
                                                            └─ the last of a prefill with n > 1: forked

Those in lockstep come first, all at once; who has left them while the step was in flight goes on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import cast

from engine import messages as m
from engine.request import Finish, Logprob
from engine.runner.base import Row, StepPlan, StepResult
from engine.sched.holds import Holds
from engine.sched.roster import Roster
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence, State

_RUNNING = State.RUNNING  # looked up once: an enum's member takes longer to find than a row to check
NO_NUMBER = "the model's output for this request is no number"


@dataclass(frozen=True, slots=True)
class Flight:
    """A step being executed: its plan, whose its rows are, who gets a copy, and when it began (ns).
    ``left`` is Lockstep.left at that time: as long as it has not changed, nobody has left."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    left: int
    copying: tuple[Sequence, ...]
    started: int


class Delivery:
    """Applies results in the order of their rows. ``eos_ids`` end an output that does not ignore them."""

    def __init__(self, scheduler: Scheduler, roster: Roster, holds: Holds, eos_ids: frozenset[int]) -> None:
        self.eos_ids = eos_ids
        self._lockstep = scheduler.lockstep
        self._scheduler = scheduler
        self._memory = scheduler.memory
        self._accounts = scheduler.accounts
        self._roster = roster
        self._outbox = roster.outbox
        self._holds = holds

    # -- the K/V of every row is there --------------------------------------------------------

    def computed(self, flight: Flight, result: StepResult, now: int) -> None:
        """Count it, publish what became full (E16), end who failed."""
        for index in result.failed:
            self._failed(flight.sequences[index], index, result, now)
        for index in self._alone(flight):
            sequence, plan = flight.sequences[index], flight.plan
            if sequence.state is _RUNNING:
                self._accounts.computed(sequence, plan.rows[index], plan.decoding[index], plan)
                self._memory.publish(sequence, now)
        if len(self._lockstep):
            self._lockstep.computed(flight.plan)
            for sequence in self._lockstep.between_blocks():
                self._memory.publish(sequence, now)

    def _failed(self, sequence: Sequence, index: int, result: StepResult, now: int) -> None:
        if sequence.state is _RUNNING:
            error, own_fault = result.errors.get(index, NO_NUMBER), index in result.own_fault
            self._roster.finish(sequence.job, Finish.ERROR, now, error, own_fault)

    def _alone(self, flight: Flight) -> list[int]:
        """Rows of those that are not in lockstep, or no longer."""
        first = flight.plan.together
        if self._lockstep.left == flight.left:
            return list(range(first, len(flight.sequences)))
        return [index for index, sequence in enumerate(flight.sequences) if sequence.lockstep is None]

    # -- what was drawn -----------------------------------------------------------------------

    def drawn(self, flight: Flight, result: StepResult, now: int) -> None:
        """Append it and tell it. Nothing is left of what was drawn for those that have ended."""
        plan, alone = flight.plan, self._alone(flight)
        if len(self._lockstep):
            self._tell_together(flight, result, now)
        for index in alone:
            sequence, token = flight.sequences[index], result.tokens[index]
            if index in result.failed:
                continue
            logprobs = result.logprobs.get(index, ())
            if sequence.state is not _RUNNING:
                self._accounts.late(0 if token is None else 1 + plan.rows[index].forks)
            elif token is not None and plan.decoding[index]:
                self._tell(sequence, token, logprobs, now)
            else:
                tokens = () if token is None else (token, *result.forked.get(index, ()))
                self._prefilled(sequence, plan.rows[index], tokens, logprobs, now)
        self._accounts.told(now)
        self._lockstep.told_at = now

    def _tell_together(self, flight: Flight, result: StepResult, now: int) -> None:
        """One more token of everybody in lockstep, for some the last."""
        members, count = self._lockstep, flight.plan.together
        logprobs = result.logprobs
        tokens = cast(tuple[int, ...], result.tokens[:count])  # they all draw, and whose row failed has left
        if members.left != flight.left:
            here = [sequence.lockstep is not None for sequence in flight.sequences[:count]]
            tokens = tuple(compress(tokens, here))
            places = compress(range(count), here)
            logprobs = {to: logprobs[at] for to, at in enumerate(places) if at in logprobs}
        elif count < len(result.tokens):
            logprobs = {at: each for at, each in logprobs.items() if at < count}
        said = members.drawn(tokens, logprobs)
        self._accounts.generated_together(members)
        self._outbox.append(said)
        for sequence, reason in members.ended(said.tokens):
            self._roster.end_choice(sequence, reason, now)

    def _prefilled(
        self,
        sequence: Sequence,
        row: Row,
        tokens: tuple[int, ...],
        logprobs: tuple[Logprob, ...],
        now: int,
    ) -> None:
        """A chunk of its prompt is there. The last one has drawn a token, and where several choices share
        the prompt the first token of each."""
        sequence.chunks += 1
        request, computed = sequence.request, min(sequence.computed, sequence.prompt)
        self._outbox.append(m.Progress(request.id, request.attempt, computed))
        if tokens:
            sequence.stops = frozenset(request.sampling.stop_ids)
            if not request.sampling.ignore_eos:
                sequence.stops |= self.eos_ids
            choices = [sequence, *self._scheduler.fork(sequence)] if row.forks else [sequence]
            for place, (choice, token) in enumerate(zip(choices, tokens, strict=True)):
                self._tell(choice, token, logprobs[place : place + 1], now)
        if self._holds.waiting and sequence.state is _RUNNING:
            self._holds.reached(sequence, f"prefill:{sequence.chunks}", now)

    def _tell(self, sequence: Sequence, token: int, logprobs: tuple[Logprob, ...], now: int) -> None:
        """One more token of a choice, perhaps its last. Nothing about ``min_tokens``: the runner draws no
        end before it unless nothing else is left."""
        request, tokens = sequence.request, sequence.tokens
        tokens.append(token)
        self._accounts.generated(sequence, now)
        self._outbox.append(m.TokensOut(request.id, request.attempt, (token,), sequence.choice, logprobs))
        if token in sequence.stops:
            self._roster.end_choice(sequence, Finish.STOP, now)
        elif len(tokens) >= sequence.total:
            self._roster.end_choice(sequence, Finish.LENGTH, now)
