"""What sequences hold of the pool, from their admission to their end (ENGINE 5 and E16).

Blocks of one sequence::

    match ──> take: hits + fresh ones ──> grow, as it generates ──> leave: all given back
                                  └─ publish, as blocks become full ─┘

``Memory`` never chooses who is served; the scheduler does, and asks ``Capacity`` who fits.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import EngineConfig
from engine.kv.blocks import BlockPool, blocks_for
from engine.kv.eviction import EVICTIONS
from engine.kv.prefix_cache import Match, PrefixCache, Published
from engine.kv.uses import Use
from engine.request import Request
from engine.sched.aside import Source
from engine.sched.sequence import Sequence
from engine.sched.transfers import Transfers
from engine.telemetry import Meter


class Memory:
    """The pool and the prefix cache of one worker, with the books of who was promised what."""

    def __init__(self, config: EngineConfig, pool: BlockPool, cache: PrefixCache, meter: Meter) -> None:
        self.config = config
        self.pool = pool
        self.cache = cache
        self.meter = meter
        self.transfers = Transfers(config, cache, meter)
        self.uncopied: list[Sequence] = []
        """Running choices that have no copy yet of the partial block where their prompt ends."""
        self.turnover = 0
        """How often somebody has come to hold blocks here, or has ceased to."""
        self.promised = 0
        """Sum over running sequences of blocks they may still need (invariant K7)."""
        self.ballast: list[int] = []
        self.ballast_target = 0

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from now on."""
        if _eviction(config) != _eviction(self.config):
            follow = EVICTIONS[config.cache.eviction](config)
            self.pool.cached.follow(follow, config.cache.copied_first)
        self.config = config
        self.transfers.configure(config)

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

    def take(self, sequence: Sequence, match: Match, now: int, path: tuple[Source, ...] = ()) -> None:
        """Give it the hits of ``match`` and fresh blocks for all its other tokens; the caller has seen that
        they are there (engine.sched.capacity). With a ``path`` it then waits aside until that is loaded."""
        self.turnover += 1
        hits = (*match.blocks, *(source.block for source in path if source.block))
        self.cache.take(hits, now)
        self.transfers.pin(sequence, path)
        fresh = self.pool.allocate(blocks_for(len(sequence.tokens), sequence.block_size) - len(hits), now)
        assert fresh is not None, "the caller has looked"
        unused = iter(fresh)
        behind = [source.block or next(unused) for source in path]
        sequence.grow([*match.blocks, *behind, *unused], sequence.job.in_common(hits))
        self.transfers.begin(sequence, len(match.blocks), path, now)
        sequence.computed = len(match.blocks) * sequence.block_size
        sequence.most_computed = max(sequence.most_computed, sequence.computed)
        sequence.published = len(match.blocks)
        sequence.publishing = self.config.cache.enabled
        if sequence.publishing:
            sequence.expects = (len(match.blocks), len(sequence.digests))
            self.cache.being_computed.add(*sequence.digests[slice(*sequence.expects)])
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

    def extend(self, sequences: list[Sequence], now: int) -> bool:
        """A block more for each of them, or nothing and False."""
        if len(sequences) > self.pool.free:
            return False
        blocks = self.pool.allocate(len(sequences), now) or ()
        for sequence, block in zip(sequences, blocks, strict=True):
            sequence.grow((block,))
        self.promised -= len(sequences)
        return True

    def publish(self, sequence: Sequence, now: int) -> None:
        """Offer the blocks that became full in a committed step to the cache (ENGINE E16)."""
        size = sequence.block_size
        full = sequence.computed // size
        if full <= sequence.published or not sequence.publishing:
            return
        for index in range(sequence.published, full):
            block = sequence.table[index]
            if self.pool.digested[block]:
                continue  # a hit behind a block that was loaded
            content, fingerprint = sequence.content(index)
            published = self.cache.publish(block, content, fingerprint, index * size, now)
            if published is Published.COLLISION:  # what follows could never be reached by a lookup
                sequence.publishing = False
                break
        sequence.published = full
        begin, end = sequence.expects
        done = min(sequence.published, end)
        if done > begin:
            self.cache.being_computed.drop(*sequence.digests[begin:done])
            sequence.expects = (done, end)

    def fork(self, sequence: Sequence, choice: int) -> Sequence:
        """Another choice of a request whose prompt has just been computed (ENGINE E36). It takes no block
        yet: what it will need is promised already, or it must see where to get it as everybody does."""
        self.turnover += 1
        fork = sequence.fork(choice)
        self.pool.acquire(fork.blocks)
        if fork.original is not None:
            self.uncopied.append(fork)
        before, sequence.forks = sequence.promised, sequence.forks - 1
        self.promised += fork.promised + sequence.promised - before
        return fork

    def copied(self, sequence: Sequence, now: int) -> None:
        """The step that makes its copy has been applied: it lets go of the original."""
        assert sequence.original is not None, "it had a copy to make"
        self._give_back(sequence, (sequence.original,), now)
        self.uncopied.remove(sequence)
        sequence.original = None
        sequence.job.recount()

    def set_aside(self, victim: Sequence, now: int) -> None:
        """How a victim leaves: its blocks come free, and its K/V moves to host memory, or it is computed
        again from what the cache still has of it then (ENGINE E26)."""
        self.leave(victim, now, self.transfers.swap_out(victim), preempted=True)
        victim.computed = victim.published = 0

    def loaded(self, sequence: Sequence, now: int) -> bool:
        """It need not wait aside any longer: what was to be loaded is there, or only its first blocks are,
        and False. Full blocks are in the cache then."""
        loading, sequence.loading = sequence.loading, None
        assert loading is not None, "it has waited aside"
        if loading.lost is None:
            sequence.computed = loading.computed
            sequence.most_computed = max(sequence.most_computed, sequence.computed)
        else:
            sequence.computed = loading.lost * sequence.block_size
            sequence.gave_up = True
        self.publish(sequence, now)
        return loading.lost is None

    @property
    def overcommitted(self) -> bool:
        """More is promised than there will ever be, ballast aside: another policy let them in."""
        return self.promised > self.pool.free + self.pool.fenced + len(self.ballast)

    def leave(self, sequence: Sequence, now: int, fence: int | None = None, preempted: bool = False) -> None:
        """Take all its blocks back; they come free once step ``fence`` has been applied (ENGINE E35)."""
        self.turnover += 1
        self.promised -= sequence.promised
        self.cache.being_computed.drop(*sequence.digests[slice(*sequence.expects)])
        sequence.expects = (0, 0)
        self._give_back(sequence, sequence.blocks, now, fence, preempted)
        if sequence.original is not None:
            self.uncopied.remove(sequence)
        sequence.drop()

    def _give_back(
        self,
        sequence: Sequence,
        blocks: tuple[int, ...],
        now: int,
        fence: int | None = None,
        preempted: bool = False,
    ) -> None:
        self.cache.released(blocks, preempted)
        self.pool.release(blocks, now, fence, self._use(sequence.request))

    def _use(self, request: Request) -> Use:
        """Who gives blocks back; without a life of its own the configured one."""
        cache, life = self.config.cache, request.life
        if life is None and cache.ttl is not None:
            life = round(cache.ttl * 1e9)
        session = f"{request.tenant}/{request.session}"
        owner = session if cache.footprint_of == "session" and request.session else request.tenant
        return Use(life, request.rank, request.class_, owner)

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


def _eviction(config: EngineConfig) -> tuple[object, ...]:
    """All that a policy of eviction depends on."""
    cache = config.cache
    chosen = (cache.eviction, cache.copied_first, cache.reuse_horizon, cache.footprint_of)
    return *chosen, config.cost, config.tenants
