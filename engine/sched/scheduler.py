"""What the next step computes (ENGINE 4 and 6): ``plan`` is one step of E20.

Decode rows come first, least recently served first; then running prefills in admission order; then, only
if nobody had to be preempted, new requests in dispatch order. Planning happens between steps, never while
one is executing. Its cost grows with the running sequences, not with the pool or the backlog.
"""

from __future__ import annotations

import math
from itertools import islice
from operator import attrgetter

from engine.config import EngineConfig
from engine.sched import victims
from engine.sched.accounts import Accounts
from engine.sched.backfill import LOOK_AHEAD
from engine.sched.batch import Batch
from engine.sched.holds import Holds
from engine.sched.memory import Memory
from engine.sched.sequence import Sequence, State
from engine.sched.step import Step


class Scheduler(Batch):
    """Decides who of a worker's sequences is served next."""

    def __init__(self, config: EngineConfig, memory: Memory, holds: Holds, accounts: Accounts) -> None:
        super().__init__(config, memory, holds, accounts)
        self.stirred = False
        """The last plan preempted or exhausted somebody: if it came out empty, the next may not."""

    # -- one step -----------------------------------------------------------------------------

    def plan(self, now: int, step: int) -> Step:
        """Who computes how many tokens in step ``step``; blocks for them are held.

        The numbers are those of E20: (1), (6) and (7) are the worker's, (4) is done row by row.
        """
        planned = Step(step, self.config.scheduler.max_step_tokens, self.lockstep, self.holds.waiting)
        self.memory.transfers.next_step = step
        self.memory.fill_ballast(now)
        if self.holds.caught:  # who is paused stands still
            self.lockstep.dissolve()
        decoders, prefills = self._ready()
        share = self._decode_share(prefills)
        served = self._decode_all(decoders, share, planned, now)  # (2)
        if not served:
            decoders += self.lockstep.dissolve()
            self._decode(decoders, share, planned, now)
        self._prefill(prefills, planned, now)  # (3)
        self._admit(planned, now)  # (5)
        if not served and not planned.preempted:  # nobody stands still who could run
            self._decode([s for s in decoders if s not in planned.chunks], planned.budget, planned, now)
        for sequence in planned.chunks:
            sequence.served = step
        if len(planned):
            self.outlook.stepped()
        self.stirred = planned.preempted or bool(self.exhausted)
        return planned

    def _ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """Decoders that are not in lockstep, and prefills, in admission order; nobody who is paused."""
        if len(self.lockstep) == len(self.running):
            return [], []
        ready = [s for s in self.running.values() if s.lockstep is None]
        if self.holds.caught or self.memory.transfers.loading:
            ready = [s for s in ready if not s.paused]
        decoders = [s for s in ready if s.decoding]
        prefills = [] if len(decoders) == len(ready) else [s for s in ready if not s.decoding]
        return decoders, prefills

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

    def _decode_all(self, decoders: list[Sequence], share: int, planned: Step, now: int) -> bool:
        """A token to each, those in lockstep included, if there are enough: the usual case, in which a step
        costs least."""
        enough = len(self.lockstep) + len(decoders) <= share
        if not enough or planned.watched or not self._extend(decoders, now):
            return False
        planned.give_each(decoders)
        return True

    def _decode(self, decoders: list[Sequence], share: int, planned: Step, now: int) -> None:
        """A token each while the share lasts, least recently served first; what a victim returns is in it
        again."""
        kept = planned.budget - share
        for sequence in sorted(decoders, key=attrgetter("served", "order")):
            if planned.budget <= kept:
                return
            if self._may_run(sequence, 1, planned, now) and self.hold_blocks(sequence, 1, planned, now):
                planned.give(sequence, 1)

    def _extend(self, decoders: list[Sequence], now: int) -> bool:
        """Give a block to each whose table is full, in lockstep or not, if there are enough for all."""
        size = self.memory.cache.block_size
        full = self.lockstep.lacking() + [s for s in decoders if s.computed >= len(s.table) * size]
        return self.memory.extend(full, now)

    def _prefill(self, prefills: list[Sequence], planned: Step, now: int) -> None:
        for sequence in prefills:
            others_wait = len(prefills) > 1 or bool(self.waiting)
            self._chunk(sequence, others_wait, planned, now)

    def _admit(self, planned: Step, now: int) -> None:
        """Admit in dispatch order until one lacks capacity, whom some may pass (E25)."""
        while self.waiting and planned.budget > 0 and not planned.preempted:
            head = next(iter(self.waiting.values()))
            if not self._may_begin(head, planned):
                return
            if not self._let_in(head, planned, now):
                self._let_pass(head, planned, now)
                return

    def _let_pass(self, head: Sequence, planned: Step, now: int) -> None:
        """The head lacks capacity: take it from lower classes for an urgent one, or let others pass it."""
        head.lacks_since = now if head.lacks_since is None else head.lacks_since
        if self.config.priority_preemption and self._may_preempt:
            self._displace(planned, now)
        if self.config.admission.backfill and not planned.preempted and len(self.waiting) > 1:
            self._backfill(head, planned, now)

    def _backfill(self, head: Sequence, planned: Step, now: int) -> None:
        """Let those in whom the head need not wait for; once it has waited for long, none of its rank or
        below (E25)."""
        assert head.lacks_since is not None, "it is the one that others would pass"
        long = now - head.lacks_since >= 2 * self.config.queue.aging * 1e9
        behind = list(islice(self.waiting.values(), 1, 1 + LOOK_AHEAD))
        others = [s for s in behind if not long or s.request.rank < head.request.rank]
        if not others or self._places <= 0:
            return
        if self.memory.pool.fenced and self.capacity.would_fit(head, self.running.values(), ()):
            return  # what it lacks comes free with this step: two that give way to it would pass in turn
        reservation = self.capacity.reservation(head, self.running.values(), planned.number)
        for other in others:
            if planned.budget <= 0:
                return
            stay = self.capacity.stay(other, planned.number)
            passes = reservation.allows(stay) and self._may_begin(other, planned)
            if passes and self._let_in(other, planned, now):
                reservation.entered(stay)

    def _displace(self, planned: Step, now: int) -> None:
        """Preempt lower classes for the most urgent of those who wait first (E26), if that gets it in."""
        urgent = min(islice(self.waiting.values(), 1 + LOOK_AHEAD), key=lambda s: s.request.rank)
        rank, running = urgent.request.rank, self.running.values()
        lower = [s for s in running if not s.paused and s.request.rank > rank]
        if not lower or not self._may_begin(urgent, planned):
            return
        if self.adapters.waits(urgent.request.adapter, running):
            return
        if not self.capacity.would_fit(urgent, running, lower):
            return
        while self._places <= 0 or self.capacity.fits(urgent, running) is None:
            if self._places > 0 and self.memory.pool.fenced and self.capacity.would_fit(urgent, running, ()):
                return  # blocks come free by themselves: no further victim (E27)
            victim = victims.choose(running, self.exhausted, above=rank)
            if victim is None:
                return
            self.preempt(victim, planned, now, "priority")
        self._let_in(urgent, planned, now)

    def _may_begin(self, sequence: Sequence, planned: Step) -> bool:
        """Either this step computes all of it, or fewer than ``max_partial_prefills`` are cut short. Nobody
        comes in while its K/V is still on its way out."""
        if sequence.swapped is not None and sequence.swapped.saving:
            return False
        limits = self.config.scheduler
        whole = sequence.estimate <= min(planned.budget, limits.prefill_chunk)
        return whole or planned.partial < limits.max_partial_prefills

    @property
    def _places(self) -> int:
        return self.config.scheduler.max_running - len(self.running)

    def _let_in(self, sequence: Sequence, planned: Step, now: int) -> bool:
        """Admit it if it fits, and give it its first chunk at once."""
        if self._places <= 0 or not self.enter(sequence, now):
            return False
        if sequence.loading is not None:
            return True  # it waits aside
        if not (self.holds.waiting and self.holds.reached(sequence, "admitted", now)):
            self._chunk(sequence, bool(self.waiting), planned, now)
        return True

    # -- one sequence -------------------------------------------------------------------------

    def _chunk(self, sequence: Sequence, others_wait: bool, planned: Step, now: int) -> None:
        """Schedule as much of its prompt as the limits allow, perhaps nothing."""
        limits = self.config.scheduler
        tokens = min(sequence.left, planned.budget, limits.prefill_chunk)
        if others_wait and limits.long_prefill_cap is not None:
            tokens = min(tokens, limits.long_prefill_cap)
        if tokens < sequence.left and planned.partial >= limits.max_partial_prefills:
            return
        if (
            tokens > 0
            and self._may_run(sequence, tokens, planned, now)
            and self.hold_blocks(sequence, tokens, planned, now)
        ):
            planned.give(sequence, tokens)

    def _may_run(self, sequence: Sequence, tokens: int, planned: Step, now: int) -> bool:
        """False for a victim of this step, and for whom a breakpoint stops before its next token."""
        if sequence.state is not State.RUNNING or sequence in self.exhausted:
            return False
        if not planned.watched:
            return True
        if sequence.held is not None:
            return False
        draws = tokens == sequence.left
        return not (draws and self.holds.reached(sequence, f"decode:{sequence.generated + 1}", now))
