"""The prefix cache against a model that is a plain dictionary: which block holds which prefix."""

from __future__ import annotations

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import EngineConfig
from engine.kv.blocks import BlockPool, Content, block_digests
from engine.kv.eviction import EVICTIONS
from engine.kv.prefix_cache import PrefixCache
from engine.kv.uses import Use
from engine.telemetry import Meter

SIZE, WIDTH = 9, 2
ROOTS = (b"one", b"two")
CONFIG = EngineConfig()


class Cache(RuleBasedStateMachine):
    """Requests of a few shared prefixes come, read, compute, publish and go, in a pool that is too small."""

    @initialize(eviction=st.sampled_from(tuple(EVICTIONS)))
    def start(self, eviction):
        self.pool = BlockPool(SIZE, EVICTIONS[eviction](CONFIG))
        self.cache = PrefixCache(self.pool, WIDTH, Meter(CONFIG, "engine"))
        self.now = 0
        self.held: dict[int, bytes] = {}  # the model: block -> digest of what it holds
        self.told: set[bytes] = set()
        self.tables: list[list[int]] = []

    def run_of(self, digests):
        """What the model says can be read: the leading prefixes that some block holds."""
        resident = set(self.held.values())
        run = 0
        while run < len(digests) and digests[run] in resident:
            run += 1
        return run

    @rule(
        root=st.sampled_from(ROOTS),
        family=st.integers(0, 1),
        length=st.integers(1, 11),
        tail=st.integers(0, 2),
        computes=st.booleans(),
    )
    def request(self, root, family, length, tail, computes):
        """Look up, read what is there, take fresh blocks for the rest, publish what becomes full."""
        self.now += 1
        tokens = array("I", [family * 10 + i for i in range(length)] + [90 + tail] * tail)
        digests = list(block_digests(root, tokens, WIDTH))
        match = self.cache.match(root, digests, tokens)
        assert match.resident == self.run_of(digests)
        assert len(match.blocks) == min(match.resident, (len(tokens) - 1) // WIDTH)
        assert [self.held[block] for block in match.blocks] == digests[: len(match.blocks)]
        self.cache.take(match.blocks, self.now)
        fresh = self.pool.allocate(-(-len(tokens) // WIDTH) - len(match.blocks), self.now)
        if fresh is None:
            self.pool.release(list(match.blocks), self.now)
            return
        for block in fresh:  # whatever was in them is gone
            self.held.pop(block, None)
        table = [*match.blocks, *fresh]
        self.tables.append(table)
        for index in range(len(match.blocks), len(digests) if computes else len(match.blocks)):
            parent = digests[index - 1] if index else root
            block = tokens[index * WIDTH : (index + 1) * WIDTH].tobytes()
            self.cache.publish(table[index], Content(digests[index], parent, block, root), digests[index])
            self.held[table[index]] = digests[index]

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), life=st.sampled_from([None, 5, 20]))
    def leave(self, data, life):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.now += 1
        self.cache.released(table, preempted=False)
        self.pool.release(table, self.now, None, Use(life))

    @rule(ahead=st.integers(1, 12))
    def time_passes(self, ahead):
        """Lives run out: what the pool says is over, and only that, is gone."""
        self.now += ahead
        uses = self.pool.cached.uses
        over = {
            block
            for block in self.held
            if self.pool.ref[block] == 0
            and uses[block].life is not None
            and uses[block].released + uses[block].life <= self.now
        }
        self.cache.expire(self.now)
        for block in over:
            del self.held[block]

    @rule()
    def clear(self):
        self.cache.clear()
        self.held.clear()

    @invariant()
    def they_agree(self):
        """Contents, counts, events and the audit."""
        if not hasattr(self, "cache"):
            return
        assert {block: content.digest for block, content in self.cache.content.items()} == self.held
        assert len(self.cache) == len(set(self.held.values()))
        assert self.cache.inconsistencies() == []
        for event in self.cache.events.take():
            if event.kind == "cleared":
                self.told.clear()
            elif event.kind == "stored":
                assert not self.told & set(event.digests)
                self.told |= set(event.digests)
            else:
                assert self.told >= set(event.digests)
                self.told -= set(event.digests)
        assert self.told == set(self.held.values())
        for digest in self.told:
            assert self.cache.holds(digest)

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        for table in self.tables:
            self.pool.release(table, self.now)
        assert (self.pool.referenced, self.pool.free) == (0, SIZE)
        assert self.pool.cached_free == len(self.held)


Cache.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestCache = Cache.TestCase
