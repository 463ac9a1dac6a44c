"""Which block holds which content, and why a prompt token was not read from cache.

The digest map names content that is resident *and computed*: a digest enters it only after the step
that computed the block has committed (ENGINE E16), and leaves it when the pool hands the block out
again, when its life ends, or when everything is cleared. What leaves the device may stay below it
(engine.kv.tiers).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from engine.kv.blocks import BlockPool, Content, token_bytes
from engine.kv.events import EventLog
from engine.kv.miss_history import MissHistory, MissRuns, content_fingerprints
from engine.kv.places import Sizes
from engine.kv.tally import Tally
from engine.kv.tiers import Tiers
from engine.request import Miss, MissReason, Tokens
from engine.telemetry import Meter

LEAST_HISTORY = 16_384
"""So many lost digests and content fingerprints are remembered at least; four times the pool's blocks if
that is more."""


@dataclass(frozen=True, slots=True)
class Match:
    """The leading run of a request's blocks that is resident.

    ``blocks`` is what may be read, capped by the last-token rule (ENGINE E17); ``resident`` counts
    the whole run.
    """

    blocks: tuple[int, ...]
    resident: int


class Published(StrEnum):
    """What became of a computed block."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    """The content is there already; this copy only replaces it if the other goes first (E14)."""
    COLLISION = "collision"
    """The key is taken by other content; the block stays without digest."""


class PrefixCache:
    """The digest map of one pool, its events, and the bounded memory behind true miss reasons.

    ``digest_bits`` shortens the lookup key only (for tests of collisions); ``history`` bounds how many
    lost digests and content fingerprints are remembered; ``sizes`` are those of the tiers below.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        meter: Meter,
        *,
        verify_tokens: bool = True,
        digest_bits: int = 128,
        history: int | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.meter = meter
        self.verify_tokens = verify_tokens
        self.content: dict[int, Content] = {}
        self.events = EventLog(meter)
        self.history = MissHistory(max(4 * pool.size, LEAST_HISTORY) if history is None else history, meter)
        self._key_bytes = digest_bits // 8
        self._map: dict[bytes, int] = {}
        self._copies: dict[bytes, list[int]] = {}
        self._children = Tally()
        self.being_computed = Tally()
        """Blocks of admitted requests, until they are published."""
        self._preempted: set[int] = set()
        self.below = Tiers(sizes or Sizes(), meter, self.events, self.history, self.holds, self._recopied)
        self.history.on_forgotten = lambda digest: pool.cached.eviction.forgotten(digest)
        pool.listener = self
        pool.cached.has_child = self._has_resident_child
        pool.cached.is_copied = lambda block: self.below.copied(self.content[block].digest)

    def __len__(self) -> int:
        """Distinct contents resident."""
        return len(self._map)

    def match(self, root: bytes, digests: list[bytes], tokens: Tokens[int]) -> Match:
        """The leading resident run of ``tokens``' full blocks. Changes nothing; O(run)."""
        data = token_bytes(tokens)
        found: list[int] = []
        parent = root
        for index, digest in enumerate(digests):
            block = self._find(digest, parent, data, index)
            if block is None:
                break
            found.append(block)
            parent = digest
        readable = min(len(found), (len(tokens) - 1) // self.block_size)
        return Match(tuple(found[:readable]), len(found))

    def take(self, blocks: tuple[int, ...], now: int) -> None:
        """Reference the blocks of a hit; their lives stop."""
        cached = self.pool.cached
        for block in blocks:
            uses = cached.uses[block]
            uses.hits += 1
            if self.pool.ref[block] == 0:
                cached.eviction.hit(block, now)
                gap = (now - uses.released) / 1e9
                self.meter.observe("headrace_engine_block_reuse_gap_seconds", gap)
            self._preempted.discard(block)
        self.pool.acquire(blocks)

    def find(self, digest: bytes, parent: bytes, tokens: bytes) -> int | None:
        """The device block with this content, verified like a hit."""
        return self._find(digest, parent, tokens, 0)

    def holds(self, digest: bytes) -> bool:
        block = self._map.get(digest[: self._key_bytes])
        return block is not None and self.content[block].digest == digest

    def is_first_copy(self, block: int) -> bool:
        """True if the map names this very block."""
        content = self.content.get(block)
        return content is not None and self._map.get(content.digest[: self._key_bytes]) == block

    def explain(self, root: bytes, digests: list[bytes], tokens: Tokens[int], match: Match) -> list[Miss]:
        """One true reason for every prompt token that ``match`` does not cover (ENGINE E18).

        Three reasons cannot be known here and are the gateway's to fill in: ``on_other_worker``,
        ``worker_restarted`` and ``being_computed`` elsewhere.
        """
        runs = MissRuns()
        first = len(match.blocks)
        behind: MissReason | None = None
        contents: tuple[bytes, ...] = ()
        for index in range(first, len(digests)):
            digest = digests[index]
            reason: MissReason
            if index < match.resident:
                reason = MissReason.LAST_BLOCK_RULE
            elif behind is not None and self.holds(digest):
                reason = behind
            elif self.below.holds(digest):
                reason = behind = MissReason.EVICTED_CAPACITY
            elif (lost := self.history.why_lost(digest)) is not None:
                reason = behind = lost
            elif digest in self.being_computed:
                reason = behind = MissReason.BEING_COMPUTED
            else:
                contents = contents or content_fingerprints(tokens, self.block_size)
                other = self.history.known_elsewhere(contents[index], root)
                reason = behind = MissReason.DIFFERENT_NAMESPACE if other else MissReason.NEVER_COMPUTED
            runs.add(reason, index, self.block_size)
        if tail := len(tokens) % self.block_size:
            runs.add(MissReason.BELOW_BLOCK, len(digests), tail)
        return runs.misses()

    # -- writing ------------------------------------------------------------------------------

    def publish(
        self,
        block: int,
        content: Content,
        fingerprint: bytes,
        start: int = 0,
        now: int = 0,
    ) -> Published:
        """Enter a computed block, which begins at position ``start``, after its step has committed (E16)."""
        digest, parent, _, root = content
        key = digest[: self._key_bytes]
        holder = self._map.get(key)
        if holder is not None and self.content[holder].digest != digest:
            return Published.COLLISION
        self.content[block] = content
        self.pool.mark(block, start)
        if holder is not None:
            self._copies.setdefault(key, []).append(block)
            self.meter.inc("headrace_engine_duplicate_blocks_total")
            return Published.DUPLICATE
        self._map[key] = block
        self._children.add(parent)
        self.pool.cached.eviction.wanted(digest, now)
        if self.below.entries:
            self.below.returned(digest)
        self.history.stored(digest, root, fingerprint)
        self.events.stored(digest, None if parent == root else parent)
        return Published.STORED

    def released(self, blocks: tuple[int, ...], preempted: bool) -> None:
        """Remember whether a preemption released these blocks: their loss then has that reason."""
        if preempted:
            self._preempted.update(block for block in blocks if self.pool.digested[block])
        elif self._preempted:
            self._preempted.difference_update(blocks)

    def evicted(self, block: int, now: int) -> None:
        """The pool gives a cached block to somebody else."""
        preempted, content = block in self._preempted, self.content[block]
        self._observe_idle(block, now, "capacity")
        last = self._forget(block, "preempted" if preempted else "capacity")
        if last and not self.below.demote(block, content, self.pool.cached.uses[block].expires, now):
            reason = MissReason.PREEMPTED if preempted else MissReason.EVICTED_CAPACITY
            self.history.lost(content.digest, reason)

    def expire(self, now: int) -> None:
        """Drop the blocks whose life has run out, with their copies below (ENGINE E15)."""
        for block in self.pool.cached.expired(now):
            self._observe_idle(block, now, "ttl")
            digest = self.content[block].digest
            if self._forget(block, "ttl"):
                self.below.drop(digest, "ttl")
                self.history.lost(digest, MissReason.EVICTED_TTL)
            self.pool.unmark(block)
        self.below.expire(now)

    def next_expiry(self) -> int | None:
        """When the first life ends, in any tier; None if none will."""
        times = (self.pool.cached.next_expiry(), self.below.expiries.next)
        return min((time for time in times if time is not None), default=None)

    def clear(self) -> None:
        """Drop every digest. What was resident leaves no reason here: the event subscriber knows it was
        held by an earlier epoch."""
        for block in list(self.content):
            self.pool.unmark(block)
        self.pool.cached.eviction.cleared()
        self.below.clear()
        self.content, self._map, self._copies = {}, {}, {}
        self._children, self.being_computed = Tally(), Tally()
        self._preempted.clear()
        self.events.cleared()

    def inconsistencies(self) -> list[str]:
        """What does not agree between the map, its copies and the contents (invariant K4)."""
        named = [*self._map.values(), *chain.from_iterable(self._copies.values())]
        held = {block: content.digest[: self._key_bytes] for block, content in self.content.items()}
        wrong = [block for key, block in self._map.items() if held.get(block) != key]
        broken = [f"block {block} does not hold what the map says" for block in wrong]
        if sorted(named) != sorted(self.content):
            broken.append(f"{len(named)} blocks are named, {len(self.content)} hold content")
        if sum(self._children.counts.values()) != len(self._map):
            broken.append("the count of children does not match the map")
        return broken

    def _find(self, digest: bytes, parent: bytes, data: bytes, index: int) -> int | None:
        block = self._map.get(digest[: self._key_bytes])
        if block is None or not self.verify_tokens:
            return block
        width = 4 * self.block_size
        content = self.content[block]
        if content.parent == parent and content.tokens == data[index * width : (index + 1) * width]:
            return block
        self.meter.inc("headrace_engine_prefix_collisions_total")
        return None

    def _has_resident_child(self, block: int) -> bool:
        digest = self.content[block].digest
        # with a second copy nothing is lost, so no child is orphaned
        return digest in self._children and digest[: self._key_bytes] not in self._copies

    def _forget(self, block: int, cause: str) -> bool:
        """Take a block out of the map. True if it was the last copy on the device."""
        content = self.content.pop(block)
        self._preempted.discard(block)
        key = content.digest[: self._key_bytes]
        copies = self._copies.get(key)
        self.pool.cached.eviction.evicted(block, None if copies else content.digest)
        if copies:
            if self._map[key] == block:
                self._map[key] = copies.pop(0)
            else:
                copies.remove(block)
            if not copies:
                del self._copies[key]
            return False
        del self._map[key]
        self._children.drop(content.parent)
        self.events.removed(content.digest, cause)
        return True

    def _recopied(self, digest: bytes) -> None:
        """A slower tier has got its first copy of this content, or lost its last."""
        if self.holds(digest):
            key = digest[: self._key_bytes]
            for block in (self._map[key], *self._copies.get(key, ())):
                self.pool.cached.recopied(block)

    def _observe_idle(self, block: int, now: int, cause: str) -> None:
        idle = (now - self.pool.cached.uses[block].released) / 1e9
        self.meter.observe("headrace_engine_block_idle_before_evict_seconds", idle)
        self.meter.inc("headrace_engine_evicted_blocks_total", cause=cause, tier="device")
