"""What the next step computes (ENGINE 4 and 6): ``plan`` is one step of E20.

Decode rows come first, least recently served first; then running prefills in admission order; then, only
if nobody had to be preempted, new requests in dispatch order. Planning happens between steps, never while
one is executing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.sched.accounts import Accounts
from engine.sched.holds import Holds
from engine.sched.memory import Memory
from engine.sched.sequence import Sequence, State


@dataclass(slots=True)
class _Step:
    """The step being planned: tokens per sequence, and what is left to give."""

    budget: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    partial: int = 0
    preempted: bool = False

    def give(self, sequence: Sequence, tokens: int) -> None:
        self.chunks[sequence] = tokens
        self.budget -= tokens
        self.partial += tokens < sequence.left

    def take_back(self, sequence: Sequence) -> None:
        """A victim that was already scheduled returns its budget (ENGINE E26)."""
        tokens = self.chunks.pop(sequence, 0)
        self.budget += tokens
        self.partial -= 0 < tokens < sequence.left


class Scheduler:
    """Waiting and running sequences of one worker, and who of them is served next."""

    def __init__(self, config: EngineConfig, memory: Memory, holds: Holds, accounts: Accounts) -> None:
        self.config = config
        self.memory = memory
        self.holds = holds
        self.accounts = accounts
        self.waiting: OrderedDict[int, Sequence] = OrderedDict()
        self.running: dict[int, Sequence] = {}
        self.backlog_tokens = 0
        """Sum of the estimates of waiting sequences."""
        self.exhausted: list[Sequence] = []
        """Alone and out of blocks: the caller ends them with ``length``."""
        self.stirred = False
        """The last plan preempted or exhausted somebody: if it came out empty, the next may not."""
        self._admissions = 0

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from the next step on."""
        self.config = config
        self.memory.configure(config)

    def add(self, sequence: Sequence) -> None:
        """Append a fresh sequence to the backlog."""
        sequence.estimate = self.memory.uncached(sequence)
        self.waiting[sequence.id] = sequence
        self.backlog_tokens += sequence.estimate

    def remove(self, sequence: Sequence, now: int, fence: int | None = None) -> None:
        """Take a sequence out for good, wherever it is; its blocks come free behind ``fence``."""
        if sequence.state is State.WAITING:
            del self.waiting[sequence.id]
            self.backlog_tokens -= sequence.estimate
        else:
            del self.running[sequence.id]
            self.memory.leave(sequence, now, fence)
        sequence.state = State.FINISHED

    # -- one step -----------------------------------------------------------------------------

    def plan(self, now: int, step: int) -> dict[Sequence, int]:
        """Tokens to compute per sequence in step ``step``, in row order; blocks for them are held.

        The numbers are those of E20: (1), (6) and (7) are the worker's, (4) is done row by row.
        """
        planned = _Step(self.config.scheduler.max_step_tokens)
        self.memory.fill_ballast(now)
        decoders, prefills = self._ready()
        self._decode(decoders, self._decode_share(prefills), planned, now)  # (2)
        self._prefill(prefills, planned, now)  # (3)
        self._admit(planned, now)  # (5)
        self._decode_more(decoders, planned, now)
        for sequence in planned.chunks:
            sequence.served = step
        self.stirred = planned.preempted or bool(self.exhausted)
        return planned.chunks

    def _ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """Decoders, least recently served first, and prefills in admission order; nobody who is paused."""
        ready = [s for s in self.running.values() if s.held is None]
        decoders = sorted((s for s in ready if s.decoding), key=lambda s: (s.served, s.order))
        return decoders, [s for s in ready if not s.decoding]

    def _decode_share(self, prefills: list[Sequence]) -> int:
        """Decode rows before any prefill: while one waits it keeps its share, but for one row.

        That row is what keeps decoders going when ``min_prefill_share`` rounds up to the whole budget.
        Prefill does not starve either: decoders end, and new ones come out of prefill only.
        """
        limits = self.config.scheduler
        prefill_waits = prefills or (self.waiting and len(self.running) < limits.max_running)
        if not prefill_waits:
            return limits.max_step_tokens
        return max(1, limits.max_step_tokens - math.ceil(limits.min_prefill_share * limits.max_step_tokens))

    def _decode(self, decoders: list[Sequence], share: int, planned: _Step, now: int) -> None:
        for sequence in decoders:
            if share <= 0 or planned.budget <= 0:
                return
            if self._may_run(sequence, 1, now) and self._hold_blocks(sequence, 1, planned, now):
                planned.give(sequence, 1)
                share -= 1

    def _prefill(self, prefills: list[Sequence], planned: _Step, now: int) -> None:
        for sequence in prefills:
            others_wait = len(prefills) > 1 or bool(self.waiting)
            self._chunk(sequence, others_wait, planned, now)

    def _admit(self, planned: _Step, now: int) -> None:
        """Admit in dispatch order until one lacks capacity; each gets its first chunk at once."""
        limits = self.config.scheduler
        if planned.preempted:
            return
        while self.waiting and len(self.running) < limits.max_running and planned.budget > 0:
            sequence = next(iter(self.waiting.values()))
            whole = sequence.estimate <= min(planned.budget, limits.prefill_chunk)
            if planned.partial >= limits.max_partial_prefills and not whole:
                return
            if not self._enter(sequence, now):
                return
            if not (self.holds.waiting and self.holds.reached(sequence, "admitted", now)):
                self._chunk(sequence, bool(self.waiting), planned, now)

    def _decode_more(self, decoders: list[Sequence], planned: _Step, now: int) -> None:
        """Prefill left something over: nobody who could run stands still."""
        if not planned.preempted:
            self._decode([s for s in decoders if s not in planned.chunks], planned.budget, planned, now)

    # -- one sequence -------------------------------------------------------------------------

    def _chunk(self, sequence: Sequence, others_wait: bool, planned: _Step, now: int) -> None:
        """Schedule as much of its prompt as the limits allow, perhaps nothing."""
        limits = self.config.scheduler
        tokens = min(sequence.left, planned.budget, limits.prefill_chunk)
        if others_wait and limits.long_prefill_cap is not None:
            tokens = min(tokens, limits.long_prefill_cap)
        if tokens < sequence.left and planned.partial >= limits.max_partial_prefills:
            return
        if (
            tokens > 0
            and self._may_run(sequence, tokens, now)
            and self._hold_blocks(sequence, tokens, planned, now)
        ):
            planned.give(sequence, tokens)

    def _may_run(self, sequence: Sequence, tokens: int, now: int) -> bool:
        """False for a victim of this step, and for whom a breakpoint stops before its next token."""
        if sequence.state is not State.RUNNING or sequence.held is not None or sequence in self.exhausted:
            return False
        draws = tokens == sequence.left
        if draws and self.holds.waiting:
            return not self.holds.reached(sequence, f"decode:{sequence.generated + 1}", now)
        return True

    def _enter(self, sequence: Sequence, now: int) -> bool:
        """From the backlog into the batch: check capacity, take the hits and allocate, or nothing (E23)."""
        match = self.memory.fits(sequence, len(self.running))
        if match is None:
            return False
        if not sequence.started:
            self.accounts.admitted(sequence, match, self.config.cache.enabled)
        self.memory.take(sequence, match, now)
        del self.waiting[sequence.id]
        self.backlog_tokens -= sequence.estimate
        self.running[sequence.id] = sequence
        sequence.state = State.RUNNING
        sequence.order = self._admissions = self._admissions + 1
        sequence.served = -1
        return True

    # -- out of blocks ------------------------------------------------------------------------

    def _hold_blocks(self, sequence: Sequence, tokens: int, planned: _Step, now: int) -> bool:
        """Make the table cover the next ``tokens`` positions, preempting others if it must (E26)."""
        pool = self.memory.pool
        while missing := self.memory.grow(sequence, tokens, now):
            if pool.free + pool.fenced >= missing or self.config.preemption == "none":
                return False  # blocks come free by themselves: no victim
            if len(self.running) == 1:
                self.exhausted.append(sequence)
                return False
            victim = self._victim()
            if victim is None or (victim is sequence and self._unheld() == 1):
                return False  # the others are paused and keep their blocks
            self._preempt(victim, planned, now)
            if victim is sequence:
                return False
        return True

    def _unheld(self) -> int:
        return sum(s.held is None for s in self.running.values())

    def _victim(self) -> Sequence | None:
        """Lowest class, then fewest tokens to recompute, then last admitted; paused ones never."""
        return max(
            (s for s in self.running.values() if s.held is None and s not in self.exhausted),
            key=lambda s: (s.request.rank, -s.computed, s.order),
            default=None,
        )

    def _preempt(self, victim: Sequence, planned: _Step, now: int) -> None:
        """Give its blocks back and put it at the front of its class, to be computed again (E27)."""
        planned.take_back(victim)
        planned.preempted = True
        del self.running[victim.id]
        self.memory.leave(victim, now, preempted=True)
        victim.state = State.WAITING
        victim.computed = victim.published = 0
        victim.estimate = len(victim.tokens)
        self.backlog_tokens += victim.estimate
        self.accounts.preempted(victim)
        ahead = [s for s in self.waiting.values() if s.request.rank < victim.request.rank]
        self.waiting[victim.id] = victim
        self.waiting.move_to_end(victim.id, last=False)
        for other in reversed(ahead):
            self.waiting.move_to_end(other.id, last=False)
