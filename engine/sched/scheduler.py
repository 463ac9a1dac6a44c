"""What the next step computes, and who holds memory for it (ENGINE 4 to 6).

One step, in this order: decode rows, least recently served first; running prefills in admission order;
then, only if nobody had to be preempted, new requests in dispatch order. Planning happens between
steps, never while one is executing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.kv.blocks import BlockPool, blocks_for
from engine.kv.prefix_cache import Match, PrefixCache
from engine.request import MissReason
from engine.sched.admission import ADMISSIONS, Books, Candidate, headroom, lifetime
from engine.sched.holds import Holds
from engine.sched.sequence import Sequence, State
from engine.telemetry import Meter

LIFETIME_AFTER = 3
"""So many preemptions, then the request resumes only with everything it may need (ENGINE E27)."""


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
    """Waiting and running sequences of one worker, and the memory they hold."""

    def __init__(
        self, config: EngineConfig, pool: BlockPool, cache: PrefixCache, holds: Holds, meter: Meter
    ) -> None:
        self.config = config
        self.pool = pool
        self.cache = cache
        self.holds = holds
        self.meter = meter
        self.waiting: OrderedDict[int, Sequence] = OrderedDict()
        self.running: dict[int, Sequence] = {}
        self.promised = 0
        """Sum over running sequences of blocks they may still need (invariant K7)."""
        self.backlog_tokens = 0
        """Sum of the estimates of waiting sequences."""
        self.ballast: list[int] = []
        self.ballast_target = 0
        self.exhausted: list[Sequence] = []
        """Alone and out of blocks: the caller ends them with ``length``."""
        self.stirred = False
        """The last plan preempted or exhausted somebody: if it came out empty, the next may not."""
        self._admissions = 0

    # -- the queue ----------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Append a fresh sequence to the backlog."""
        sequence.estimate = self.uncached(sequence)
        self.waiting[sequence.id] = sequence
        self.backlog_tokens += sequence.estimate

    def remove(self, sequence: Sequence, now: int, fence: int | None = None) -> None:
        """Take a sequence out for good, wherever it is; its blocks come free behind ``fence``."""
        if sequence.state is State.WAITING:
            del self.waiting[sequence.id]
            self.backlog_tokens -= sequence.estimate
        else:
            self._leave(sequence, now, fence, preempted=False)
        sequence.state = State.FINISHED

    def set_ballast(self, blocks: int, now: int) -> None:
        """Keep ``blocks`` out of use. What is not free now follows as it comes free."""
        self.ballast_target = blocks
        if surplus := self.ballast[blocks:]:
            del self.ballast[blocks:]
            self.pool.release(surplus, now)
        self._fill_ballast(now)

    # -- one step -----------------------------------------------------------------------------

    def plan(self, now: int, step: int) -> dict[Sequence, int]:
        """Tokens to compute per sequence in step ``step``, in row order; blocks for them are held."""
        limits = self.config.scheduler
        planned = _Step(limits.max_step_tokens)
        self._fill_ballast(now)
        ready = [s for s in self.running.values() if s.held is None]
        decoders = sorted((s for s in ready if s.decoding), key=lambda s: (s.served, s.order))
        prefills = [s for s in ready if not s.decoding]
        share = limits.max_step_tokens
        if prefills or (self.waiting and len(self.running) < limits.max_running):
            share -= math.ceil(limits.min_prefill_share * limits.max_step_tokens)
        self._decode(decoders, share, planned, now)
        self._prefill(prefills, planned, now)
        if not planned.preempted:
            self._admit(planned, now)
        if not planned.preempted:  # prefill left something over: nobody who could run stands still
            self._decode([s for s in decoders if s not in planned.chunks], planned.budget, planned, now)
        for sequence in planned.chunks:
            sequence.served = step
        self.stirred = planned.preempted or bool(self.exhausted)
        return planned.chunks

    def _decode(self, decoders: list[Sequence], share: int, planned: _Step, now: int) -> None:
        for sequence in decoders:
            if share <= 0 or planned.budget <= 0:
                return
            if not self._may_run(sequence, 1, now) or not self._hold_blocks(sequence, 1, planned, now):
                continue
            planned.give(sequence, 1)
            share -= 1

    def _prefill(self, prefills: list[Sequence], planned: _Step, now: int) -> None:
        for sequence in prefills:
            others = len(prefills) > 1 or bool(self.waiting)
            self._chunk(sequence, others, planned, now)

    def _chunk(self, sequence: Sequence, others_wait: bool, planned: _Step, now: int) -> None:
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

    # -- memory -------------------------------------------------------------------------------

    def _hold_blocks(self, sequence: Sequence, tokens: int, planned: _Step, now: int) -> bool:
        """Make the table cover the next ``tokens`` positions, preempting others if it must (E26)."""
        while True:
            end = sequence.computed + tokens
            missing = blocks_for(end, sequence.block_size) - len(sequence.table)
            if missing <= 0:
                return True
            blocks = self.pool.allocate(missing, now)
            if blocks is not None:
                sequence.grow(blocks)
                self.promised -= missing
                return True
            self.meter.inc("headrace_engine_allocation_failures_total")
            if self.pool.free + self.pool.fenced >= missing or self.config.preemption == "none":
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
        self._leave(victim, now, None, preempted=True)
        victim.state = State.WAITING
        victim.computed = victim.published = 0
        victim.truth.preemptions += 1
        victim.estimate = len(victim.tokens)
        self.backlog_tokens += victim.estimate
        self.meter.inc("headrace_engine_preemptions_total", cause="memory")
        ahead = [s for s in self.waiting.values() if s.request.rank < victim.request.rank]
        self.waiting[victim.id] = victim
        self.waiting.move_to_end(victim.id, last=False)
        for other in reversed(ahead):
            self.waiting.move_to_end(other.id, last=False)

    def _leave(self, sequence: Sequence, now: int, fence: int | None, *, preempted: bool) -> None:
        del self.running[sequence.id]
        self.promised -= sequence.promised
        self.cache.computed(sequence.digests[slice(*sequence.expects)])
        sequence.expects = (0, 0)
        ttl = self.config.cache.ttl
        life = None if ttl is None else round(ttl * 1e9)
        self.cache.released(sequence.table, preempted)
        self.pool.release(sequence.table, now, fence, life)
        sequence.table = []
        sequence.frozen_table = ()

    def _fill_ballast(self, now: int) -> None:
        """Take free blocks; those promised to running requests only if they may be preempted."""
        missing = self.ballast_target - len(self.ballast)
        if missing <= 0:
            return
        free = self.pool.free - (self.promised if self.config.preemption == "none" else 0)
        self.ballast += self.pool.allocate(max(0, min(missing, free)), now) or []

    # -- admission ----------------------------------------------------------------------------

    def _admit(self, planned: _Step, now: int) -> None:
        """Admit in dispatch order until one lacks capacity; each gets its first chunk at once."""
        limits = self.config.scheduler
        while self.waiting and len(self.running) < limits.max_running and planned.budget > 0:
            sequence = next(iter(self.waiting.values()))
            whole = sequence.estimate <= min(planned.budget, limits.prefill_chunk)
            if planned.partial >= limits.max_partial_prefills and not whole:
                return
            if not self._enter(sequence, now):
                return
            if not (self.holds.waiting and self.holds.reached(sequence, "admitted", now)):
                self._chunk(sequence, bool(self.waiting), planned, now)

    def _enter(self, sequence: Sequence, now: int) -> bool:
        """Check capacity, take the hits and allocate, all or nothing (ENGINE E23)."""
        again = sequence.truth.preemptions >= LIFETIME_AFTER
        admits = lifetime if again else ADMISSIONS[self.config.admission.policy]
        reserve = headroom(self.config.admission, self.pool.size, len(self.running))
        books = Books(self.pool.free - reserve, self.promised, sequence.block_size)
        tokens = len(sequence.tokens)
        best_case = tokens // sequence.block_size
        if not admits(Candidate(tokens, sequence.total, best_case), books):
            return False  # spares the lookup of a long prompt that waits at the head step after step
        match = self._match(sequence)
        shared = sum(self.pool.ref[block] > 0 for block in match.blocks)
        fresh = blocks_for(tokens, sequence.block_size) - len(match.blocks)
        if not admits(Candidate(tokens, sequence.total, shared), books):
            return False
        if self.pool.free - (len(match.blocks) - shared) < fresh:
            self.meter.inc("headrace_engine_allocation_failures_total")
            return False  # estimator and allocator disagree: back to the queue (ENGINE E24)
        self._take(sequence, match, fresh, now)
        return True

    def _take(self, sequence: Sequence, match: Match, fresh: int, now: int) -> None:
        if not sequence.started:
            self._account(sequence, match)
        self.cache.take(match.blocks, now)
        blocks = self.pool.allocate(fresh, now)
        assert blocks is not None, "checked by the caller"
        del self.waiting[sequence.id]
        self.backlog_tokens -= sequence.estimate
        sequence.grow([*match.blocks, *blocks])
        sequence.state = State.RUNNING
        sequence.order = self._admissions = self._admissions + 1
        sequence.served = -1
        sequence.computed = len(match.blocks) * sequence.block_size
        sequence.most_computed = max(sequence.most_computed, sequence.computed)
        sequence.published = len(match.blocks)
        sequence.publishing = self.config.cache.enabled
        if sequence.publishing:
            sequence.expects = (len(match.blocks), len(sequence.digests))
            self.cache.computing(sequence.digests[slice(*sequence.expects)])
        self.running[sequence.id] = sequence
        self.promised += sequence.promised

    def _account(self, sequence: Sequence, match: Match) -> None:
        """Truth of the first admission: hits, and a reason for each prompt token that is none."""
        truth = sequence.truth
        request = sequence.request
        sequence.first_hit = len(match.blocks)
        truth.hit_device = len(match.blocks) * sequence.block_size
        truth.misses = self.cache.explain(request.root, sequence.digests, request.tokens, match)
        never = any(miss.reason is MissReason.NEVER_COMPUTED for miss in truth.misses)
        truth.misses_complete = self.cache.history.complete or not never
        if self.config.cache.enabled:
            self.meter.inc("headrace_engine_prefix_query_tokens_total", sequence.prompt)
            self.meter.inc("headrace_engine_prefix_hit_tokens_total", truth.hit_device)
        self.meter.inc("headrace_engine_prompt_tokens_total", truth.hit_device, source="device")
        to_compute = sequence.prompt - truth.hit_device
        self.meter.inc("headrace_engine_prompt_tokens_total", to_compute, source="computed")
        for miss in truth.misses:
            self.meter.inc("headrace_engine_miss_tokens_total", miss.tokens, reason=miss.reason)

    def _match(self, sequence: Sequence) -> Match:
        if not self.config.cache.enabled:
            return Match((), 0)
        if full := len(sequence.tokens) // sequence.block_size:
            sequence.digest(full - 1)
        return self.cache.match(sequence.request.root, sequence.digests, sequence.tokens)

    def uncached(self, sequence: Sequence) -> int:
        hit = len(self._match(sequence).blocks) * sequence.block_size
        return len(sequence.tokens) - hit
