"""What becomes of a finished step: every row's outcome goes to the sequence it was computed for (E20 (7)).

::

    row ──> its K/V is there ──> full blocks published ──> token appended ──> told ──> ended, or goes on
                                                            └─ the last of a prefill with n > 1: forked
"""

from __future__ import annotations

from engine import messages as m
from engine.request import Finish, Logprob
from engine.runner.base import Row, StepPlan, StepResult
from engine.sched.holds import Holds
from engine.sched.roster import Roster
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence, State

_RUNNING = State.RUNNING  # looked up once: an enum's member takes longer to find than a row to check
NO_NUMBER = "the model's output for this request is no number"


class Delivery:
    """Applies results in the order of their rows. ``eos_ids`` end an output that does not ignore them."""

    def __init__(self, scheduler: Scheduler, roster: Roster, holds: Holds, eos_ids: frozenset[int]) -> None:
        self.eos_ids = eos_ids
        self._scheduler = scheduler
        self._memory = scheduler.memory
        self._accounts = scheduler.accounts
        self._roster = roster
        self._outbox = roster.outbox
        self._holds = holds

    def computed(self, plan: StepPlan, sequences: tuple[Sequence, ...], result: StepResult, now: int) -> None:
        """The K/V of every row is there: count it, publish what became full (E16), end who failed."""
        rows = zip(sequences, plan.rows, plan.decoding, strict=True)
        for index, (sequence, row, decodes) in enumerate(rows):
            if sequence.state is not _RUNNING:
                continue
            if index in result.failed:
                error = result.errors.get(index, NO_NUMBER)
                own_fault = index in result.own_fault
                self._roster.finish(sequence.job, Finish.ERROR, now, error, own_fault)
                continue
            self._accounts.computed(sequence, row, decodes, plan)
            self._memory.publish(sequence, now)

    def drawn(self, plan: StepPlan, sequences: tuple[Sequence, ...], result: StepResult, now: int) -> None:
        """Append what was drawn and tell it. Nothing is left of what was drawn for those that have ended."""
        rows = zip(sequences, plan.rows, plan.decoding, result.tokens, strict=True)
        for index, (sequence, row, decodes, token) in enumerate(rows):
            if index in result.failed:
                continue
            if sequence.state is not _RUNNING:
                self._accounts.late(0 if token is None else 1 + row.forks)
            elif token is not None and decodes:
                self._tell(sequence, token, result.logprobs.get(index, ()), now)
            else:
                tokens = () if token is None else (token, *result.forked.get(index, ()))
                self._prefilled(sequence, row, tokens, result.logprobs.get(index, ()), now)
        self._accounts.told(now)

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
            choices = [sequence, *self._scheduler.fork(sequence)] if row.forks else [sequence]
            for place, (choice, token) in enumerate(zip(choices, tokens, strict=True)):
                self._tell(choice, token, logprobs[place : place + 1], now)
        if self._holds.waiting and sequence.state is _RUNNING:
            self._holds.reached(sequence, f"prefill:{sequence.chunks}", now)

    def _tell(self, sequence: Sequence, token: int, logprobs: tuple[Logprob, ...], now: int) -> None:
        """One more token of a choice, perhaps its last. Nothing about ``min_tokens``: the runner draws no
        end before it unless nothing else is left."""
        request, tokens, sampling = sequence.request, sequence.tokens, sequence.request.sampling
        tokens.append(token)
        self._accounts.generated(sequence, now)
        self._outbox.append(m.TokensOut(request.id, request.attempt, (token,), sequence.choice, logprobs))
        if token in sampling.stop_ids or (token in self.eos_ids and not sampling.ignore_eos):
            self._roster.end_choice(sequence, Finish.STOP, now)
        elif len(tokens) >= sequence.total:
            self._roster.end_choice(sequence, Finish.LENGTH, now)
