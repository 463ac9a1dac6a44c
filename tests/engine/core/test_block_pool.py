"""The block pool: where every block is, and in which order blocks are handed out."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import EngineConfig
from engine.kv.blocks import BlockPool
from engine.kv.eviction import EVICTIONS
from engine.kv.uses import Use

SECOND = 1_000_000_000


def fresh(blocks=6, eviction="lru"):
    return BlockPool(blocks, EVICTIONS[eviction](EngineConfig()))


def cached(pool, count, now, **use):
    """Allocate, mark and release ``count`` blocks at ``now``."""
    blocks = pool.allocate(count, now)
    for block in blocks:
        pool.mark(block)
    pool.release(blocks, now, use=Use(**use))
    return blocks


def orders(pool):
    return list(pool.blank), {key: list(blocks) for key, blocks in pool.cached.lists.items()}


def test_null_block_is_never_handed_out():
    """A pool of N usable blocks hands out the ids 1..N."""
    pool = fresh(4)
    assert sorted(pool.allocate(4, 0)) == [1, 2, 3, 4]
    assert pool.allocate(1, 0) is None


def test_failed_allocation_changes_nothing():
    """An allocation that cannot be served in full leaves lists and order as they were."""
    pool = fresh(6)
    cached(pool, 3, 0)
    before = orders(pool)
    assert pool.allocate(7, 1) is None
    assert orders(pool) == before


def test_a_prefix_outlives_its_suffix():
    """Released together, the last block of a table is the first to lose its content."""
    pool = fresh(3)
    table = cached(pool, 3, 0)
    assert pool.allocate(1, 1) == [table[-1]]


def test_undigested_blocks_go_first():
    """Blocks without a digest are handed out before any cached one is sacrificed."""
    pool = fresh(4)
    table = cached(pool, 2, 0)
    assert set(pool.allocate(2, 1)).isdisjoint(table)


def test_lru_takes_the_longest_unused_whatever_its_life():
    """Under lru the block released first goes first, also across lives."""
    pool = fresh(2)
    (old,) = cached(pool, 1, 0, life=100 * SECOND)
    (new,) = cached(pool, 1, 1)
    assert (pool.allocate(1, 2), pool.allocate(1, 2)) == ([old], [new])


def test_ttl_takes_unpromised_blocks_then_least_life_left():
    """Under ttl blocks without a life go first, then those that would expire first."""
    pool = fresh(3, eviction="ttl")
    (long,) = cached(pool, 1, 0, life=100 * SECOND)
    (short,) = cached(pool, 1, 1, life=5 * SECOND)
    (none,) = cached(pool, 1, 2)
    assert [pool.allocate(1, 3)[0] for _ in range(3)] == [none, short, long]


def test_longest_life_of_all_users_counts():
    """A block that two requests used keeps the longer of their lives."""
    pool = fresh(1)
    (block,) = pool.allocate(1, 0)
    pool.mark(block)
    pool.acquire([block])
    pool.release([block], 1, use=Use(life=9 * SECOND))
    pool.release([block], 2, use=Use(life=5 * SECOND))
    assert pool.cached.next_expiry() == 2 + 9 * SECOND


def test_parents_are_passed_over():
    """A head whose extension is resident is passed over, eight at most."""
    pool = fresh(12)
    table = cached(pool, 12, 0)
    order = list(reversed(table))
    pool.cached.has_child = lambda block: block != order[3]
    assert pool.allocate(1, 1) == [order[3]]
    pool.cached.has_child = lambda block: block != order[10]
    assert pool.allocate(1, 1) == [order[0]], "those behind are not looked at"


def test_fenced_blocks_are_not_free():
    """Blocks released behind a fence come free when the step has been applied, not before."""
    pool = fresh(2)
    table = pool.allocate(2, 0)
    pool.release(table, 1, fence=3)
    assert (pool.free, pool.fenced, pool.allocate(1, 1)) == (0, 2, None)
    pool.applied(2, 2)
    assert pool.free == 0
    pool.applied(3, 3)
    assert (pool.free, pool.fenced) == (2, 0)
    pool.release(pool.allocate(1, 4), 5, fence=3)
    assert pool.free == 2, "a fence that has passed holds nothing back"


class Pool(RuleBasedStateMachine):
    """Random use of a small pool against a model that is a set per place."""

    SIZE = 7

    def __init__(self):
        super().__init__()
        self.tables = []
        self.now = 0
        self.step = 0

    @initialize(eviction=st.sampled_from(tuple(EVICTIONS)))
    def start(self, eviction):
        self.pool = fresh(self.SIZE, eviction)

    @rule(count=st.integers(0, 8))
    def allocate(self, count):
        self.now += 1
        free = self.pool.free
        before = orders(self.pool)
        table = self.pool.allocate(count, self.now)
        assert (table is None) == (count > free)
        if table is None:
            assert orders(self.pool) == before
        elif table:
            assert not any(self.pool.digested[block] for block in table)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(
        data=st.data(),
        fence=st.booleans(),
        life=st.sampled_from([None, 3, 10]),
        rank=st.integers(0, 2),
        owner=st.sampled_from("abc"),
    )
    def release(self, data, fence, life, rank, owner):
        self.now += 1
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table, self.now, self.step if fence else None, Use(life, rank, "c", owner))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def mark(self, data):
        table = data.draw(st.sampled_from(self.tables))
        self.pool.mark(table[0])

    @rule(data=st.data())
    def hit(self, data):
        blocks = [block for block in range(1, self.SIZE + 1) if self.pool.digested[block]]
        if blocks:
            chosen = data.draw(st.lists(st.sampled_from(blocks), unique=True, min_size=1))
            self.pool.acquire(chosen)
            self.tables.append(chosen)

    @rule()
    def apply(self):
        self.pool.applied(self.step, self.now)
        self.step += 1

    @rule(ahead=st.integers(0, 12))
    def expire(self, ahead):
        self.now += ahead
        for block in self.pool.cached.expired(self.now):
            assert self.pool.ref[block] == 0
            self.pool.unmark(block)
        expiry = self.pool.cached.next_expiry()
        assert expiry is None or expiry > self.now

    @rule(eviction=st.sampled_from(tuple(EVICTIONS)), copied_first=st.booleans())
    def change_policy(self, eviction, copied_first):
        """Every block changes its list, none its content."""
        before = {block for blocks in orders(self.pool)[1].values() for block in blocks}
        self.pool.cached.follow(EVICTIONS[eviction](EngineConfig()), copied_first)
        assert {block for blocks in orders(self.pool)[1].values() for block in blocks} == before

    @invariant()
    def every_block_is_in_one_place(self):
        if not hasattr(self, "pool"):
            return
        blank, cached_lists = orders(self.pool)
        held = {block for table in self.tables for block in table}
        fenced = [block for _, blocks in self.pool.fences for block in blocks]
        listed = [*blank, *(b for blocks in cached_lists.values() for b in blocks), *fenced, *held]
        assert sorted(listed) == list(range(1, self.SIZE + 1))
        assert self.pool.free == len(listed) - len(fenced) - len(held)
        assert self.pool.fenced == len(fenced)
        assert self.pool.referenced == len(held)
        assert not any(self.pool.digested[block] for block in blank)
        for block in range(1, self.SIZE + 1):
            assert self.pool.ref[block] == sum(block in table for table in self.tables)


Pool.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
TestPool = Pool.TestCase
