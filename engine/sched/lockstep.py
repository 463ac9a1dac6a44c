"""Those who take a token in every step together, kept in columns: a step costs each next to nothing.

A sequence that decodes moves by one token a step, as all others that decode do. So what moves is kept once
for all of them, and a member is where it came in, plus the steps since::

    decodes, told last when the others were ──join──> member ──leave──> on its own, with its own numbers again
                            computed = offset + steps ──┘ └─ ended, preempted, or not in a step of the others

Columns are in the order of admission. Whose draw takes more than its logits, or who has an adapter or a copy
to make, is no member; and nobody is while a hold waits or blocks are short.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine import messages as m
from engine.request import Finish, Logprob
from engine.runner.base import Row, StepPlan

if TYPE_CHECKING:
    from engine.sched.sequence import Sequence


class Lockstep:
    """The members, and what is true of all of them. Times in ns."""

    def __init__(self, block_size: int) -> None:
        self.steps = self.rows = self.tokens = 0
        """Steps that are over and had a row of every member; all rows and tokens of those steps."""
        self.served = -1
        """Number of the last step that was planned with a row of every member."""
        self.told_at = 0
        """When every member was told its last token."""
        self.left = 0
        """How many have left so far."""
        self.classes: Counter[str] = Counter()
        self.sequences: list[Sequence] = []
        self._orders: list[int] = []
        self._rows: list[Row] = []
        """As of the last step that was planned."""
        self._lasts: list[int] = []
        self._appends: list[Any] = []
        self._ids: list[int] = []
        self._attempts: list[int] = []
        self._choices: list[int] = []
        self._columns: tuple[list[Any], ...] = (
            *(self._orders, self.sequences, self._rows, self._lasts, self._appends),
            *(self._ids, self._attempts, self._choices),
        )
        self._phases: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        """Members by when a block of theirs is full: ``steps`` modulo its size."""
        self._ends: dict[int, dict[Sequence, None]] = {}
        """Members by the ``steps`` at which they have as many tokens as they may."""
        self._stops: Counter[int] = Counter()
        """How many members each token would end."""

    def __len__(self) -> int:
        return len(self.sequences)

    # -- in and out ---------------------------------------------------------------------------

    def takes(self, sequence: Sequence) -> bool:
        """Whether somebody who is served in the next step can be a member from then on."""
        return (
            sequence.decoding
            and sequence.last_token == self.told_at
            and sequence.most_computed <= sequence.computed
            and sequence.original is None
            and not sequence.looks_back
            and sequence.request.adapter is None
        )

    def join(self, sequence: Sequence) -> None:
        request, job = sequence.request, sequence.job
        offset, row = sequence.computed - self.steps, sequence.row(1)
        row.start, row.draw = row.start - 1, row.draw - 1  # the plan moves it on with the others
        values = (
            *(sequence.order, sequence, row, sequence.tokens[-1], sequence.tokens.append),
            *(request.id, request.attempt, sequence.choice),
        )
        at = bisect_left(self._orders, sequence.order)
        for column, value in zip(self._columns, values, strict=True):
            column.insert(at, value)
        self._phases[-offset % len(self._phases)][sequence] = None
        self._ends.setdefault(sequence.total - 1 - offset, {})[sequence] = None
        self._stops.update(sequence.stops)
        self.classes[request.class_] += 1
        if not job.members:
            job.since = self.steps, self.rows, self.tokens
        job.members += 1
        sequence.lockstep, sequence.offset, sequence.joined = self, offset, len(sequence.tokens)
        sequence.member_row = row

    def leave(self, sequence: Sequence) -> None:
        """It has its own numbers again, and its share of what was counted for all."""
        job, offset = sequence.job, sequence.offset
        at = bisect_left(self._orders, sequence.order)
        for column in self._columns:
            del column[at]
        del self._phases[-offset % len(self._phases)][sequence]
        end = sequence.total - 1 - offset
        del self._ends[end][sequence]
        if not self._ends[end]:
            del self._ends[end]
        self._forget_stops(sequence)
        self.classes[sequence.request.class_] -= 1
        self.left += 1
        sequence.lockstep = sequence.member_row = None
        sequence.computed = offset + self.steps
        sequence.most_computed = max(sequence.most_computed, sequence.computed)
        sequence.served, sequence.last_token = self.served, self.told_at
        job.truth.generated += len(sequence.tokens) - sequence.joined
        job.members -= 1
        if not job.members:
            self._settle(sequence)

    def _forget_stops(self, sequence: Sequence) -> None:
        for token in sequence.stops:  # `Counter.__isub__` would look at all that are left, too
            self._stops[token] -= 1
            if not self._stops[token]:
                del self._stops[token]

    def _settle(self, sequence: Sequence) -> None:
        """The last member of a request leaves: its steps since the first one came."""
        job = sequence.job
        steps, rows, tokens = job.since
        job.truth.steps_decode += self.steps - steps
        job.rows += self.rows - rows
        job.step_tokens += self.tokens - tokens

    def dissolve(self) -> list[Sequence]:
        """All leave, and are returned."""
        members = self.sequences.copy()
        for sequence in reversed(members):
            self.leave(sequence)
        return members

    # -- one step -----------------------------------------------------------------------------

    def lacking(self) -> list[Sequence]:
        """Members whose table has no place for their next token."""
        size = len(self._phases)
        return [s for s in self.between_blocks() if s.computed >= len(s.table) * size]

    def plan(self) -> list[Row]:
        """A row for each member: that of the step before, moved on by one."""
        for row, token in zip(self._rows, self._lasts, strict=True):
            row.start += 1
            row.draw += 1
            row.tokens = (token,)
        return self._rows

    def computed(self, plan: StepPlan) -> None:
        """The K/V of their rows is there."""
        self.steps += 1
        self.rows += len(plan.rows)
        self.tokens += plan.tokens

    def between_blocks(self) -> list[Sequence]:
        """Members whose last block is just full."""
        return list(self._phases[self.steps % len(self._phases)])

    def drawn(self, tokens: tuple[int, ...], logprobs: Mapping[int, tuple[Logprob, ...]]) -> m.StepTokens:
        """Append one to each member; returns what is to be told of it. ``logprobs`` by place."""
        for append, token in zip(self._appends, tokens, strict=True):
            append(token)
        self._lasts[:] = tokens
        who = tuple(self._ids), tuple(self._attempts), tuple(self._choices)
        return m.StepTokens(*who, tokens, dict(logprobs))

    def ended(self, tokens: tuple[int, ...]) -> list[tuple[Sequence, Finish]]:
        """Members for whom the last of these was their last one."""
        ended = dict.fromkeys(self._ends.get(self.steps, ()), Finish.LENGTH)
        if self._stops and not self._stops.keys().isdisjoint(tokens):
            rows = zip(self.sequences, tokens, strict=True)
            ended |= {sequence: Finish.STOP for sequence, token in rows if token in sequence.stops}
        return sorted(ended.items(), key=lambda each: each[0].order)
