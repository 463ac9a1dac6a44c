"""What sequences hold of the pool, from their admission to their end (ENGINE 5 and E16).

Blocks of one sequence::

    fits? ──> take: hits + fresh ones ──> grow, as it generates ──> leave: all given back
                                  └─ publish, as blocks become full ─┘

``Memory`` never chooses who is served; the scheduler does.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.kv.blocks import BlockPool, blocks_for
from engine.kv.prefix_cache import Match, PrefixCache, Published
from engine.sched.admission import ADMISSIONS, Books, Candidate, headroom, lifetime
from engine.sched.sequence import Sequence
from engine.telemetry import Meter

LIFETIME_AFTER = 3
"""So many preemptions, then the request resumes only with everything it may need (ENGINE E27)."""


class Memory:
    """The pool and the prefix cache of one worker, with the books of who was promised what."""

    def __init__(self, config: EngineConfig, pool: BlockPool, cache: PrefixCache, meter: Meter) -> None:
        self.config = config
        self.pool = pool
        self.cache = cache
        self.meter = meter
        self.promised = 0
        """Sum over running sequences of blocks they may still need (invariant K7)."""
        self.ballast: list[int] = []
        self.ballast_target = 0

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from now on."""
        self.config = config
        self.pool.eviction = config.cache.eviction

    # -- admission ----------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> Match:
        """What the cache holds of its leading blocks; nothing while the cache is off."""
        if not self.config.cache.enabled:
            return Match((), 0)
        if full := len(sequence.tokens) // sequence.block_size:
            sequence.digest(full - 1)
        return self.cache.match(sequence.request.root, sequence.digests, sequence.tokens)

    def uncached(self, sequence: Sequence) -> int:
        """Tokens that it would have to compute if it were admitted now."""
        hit = len(self.match(sequence).blocks) * sequence.block_size
        return len(sequence.tokens) - hit

    def fits(self, sequence: Sequence, running: int) -> Match | None:
        """Its hits if it may be admitted beside so many running ones, None if it lacks capacity (E23)."""
        again = sequence.truth.preemptions >= LIFETIME_AFTER
        admits = lifetime if again else ADMISSIONS[self.config.admission.policy]
        reserve = headroom(self.config.admission, self.pool.size, running)
        books = Books(self.pool.free - reserve, self.promised, sequence.block_size)
        tokens = len(sequence.tokens)
        best_case = tokens // sequence.block_size
        if not admits(Candidate(tokens, sequence.total, best_case), books):
            return None  # spares the lookup of a long prompt that waits at the head step after step
        match = self.match(sequence)
        shared = sum(self.pool.ref[block] > 0 for block in match.blocks)
        if not admits(Candidate(tokens, sequence.total, shared), books):
            return None
        fresh = blocks_for(tokens, sequence.block_size) - len(match.blocks)
        if self.pool.free - (len(match.blocks) - shared) < fresh:
            self.meter.inc("headrace_engine_allocation_failures_total")
            return None  # estimator and allocator disagree: back to the queue (ENGINE E24)
        return match

    def take(self, sequence: Sequence, match: Match, now: int) -> None:
        """Give it the hits that ``fits`` has just found and fresh blocks for all its other tokens."""
        self.cache.take(match.blocks, now)
        fresh = blocks_for(len(sequence.tokens), sequence.block_size) - len(match.blocks)
        blocks = self.pool.allocate(fresh, now)
        assert blocks is not None, "fits has looked"
        sequence.grow([*match.blocks, *blocks])
        sequence.computed = len(match.blocks) * sequence.block_size
        sequence.most_computed = max(sequence.most_computed, sequence.computed)
        sequence.published = len(match.blocks)
        sequence.publishing = self.config.cache.enabled
        if sequence.publishing:
            sequence.expects = (len(match.blocks), len(sequence.digests))
            self.cache.computing(sequence.digests[slice(*sequence.expects)])
        self.promised += sequence.promised

    # -- while it runs ------------------------------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int, now: int) -> int:
        """Make its table cover the next ``tokens`` positions; returns the blocks it lacks, all or none."""
        missing = blocks_for(sequence.computed + tokens, sequence.block_size) - len(sequence.table)
        if missing <= 0:
            return 0
        blocks = self.pool.allocate(missing, now)
        if blocks is None:
            self.meter.inc("headrace_engine_allocation_failures_total")
            return missing
        sequence.grow(blocks)
        self.promised -= missing
        return 0

    def publish(self, sequence: Sequence) -> None:
        """Offer the blocks that became full in a committed step to the cache (ENGINE E16)."""
        if not sequence.publishing:
            return
        full = sequence.computed // sequence.block_size
        for index in range(sequence.published, full):
            published = self.cache.publish(
                sequence.table[index],
                sequence.digest(index),
                sequence.parent(index),
                sequence.block(index),
                sequence.request.root,
                sequence.fingerprint(index),
            )
            if published is Published.COLLISION:  # what follows could never be reached by a lookup
                sequence.publishing = False
                break
        sequence.published = max(full, sequence.published)
        begin, end = sequence.expects
        done = min(sequence.published, end)
        if done > begin:
            self.cache.computed(sequence.digests[begin:done])
            sequence.expects = (done, end)

    def leave(self, sequence: Sequence, now: int, fence: int | None = None, preempted: bool = False) -> None:
        """Take all its blocks back; they come free once step ``fence`` has been applied (ENGINE E35)."""
        self.promised -= sequence.promised
        self.cache.computed(sequence.digests[slice(*sequence.expects)])
        sequence.expects = (0, 0)
        ttl = self.config.cache.ttl
        life = None if ttl is None else round(ttl * 1e9)
        self.cache.released(sequence.table, preempted)
        self.pool.release(sequence.table, now, fence, life)
        sequence.table = []
        sequence.frozen_table = ()

    # -- from outside -------------------------------------------------------------------------

    def set_ballast(self, blocks: int, now: int) -> None:
        """Keep ``blocks`` out of use. What is not free now follows as it comes free."""
        self.ballast_target = blocks
        if surplus := self.ballast[blocks:]:
            del self.ballast[blocks:]
            self.pool.release(surplus, now)
        self.fill_ballast(now)

    def fill_ballast(self, now: int) -> None:
        """Take free blocks; those promised to running requests only if they may be preempted."""
        missing = self.ballast_target - len(self.ballast)
        if missing <= 0:
            return
        free = self.pool.free - (self.promised if self.config.preemption == "none" else 0)
        self.ballast += self.pool.allocate(max(0, min(missing, free)), now) or []

    def clear(self, running: Iterable[Sequence]) -> None:
        """Drop all digests. Who runs computes on and publishes no more: its chain in the map is cut."""
        self.cache.clear()
        for sequence in running:
            sequence.publishing = False
            sequence.expects = (0, 0)
