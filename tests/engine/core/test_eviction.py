"""Every eviction policy against a plain model of its rule that looks at all cached blocks (ENGINE E19)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import messages as m
from engine.config import CacheConfig, EngineConfig, MemoryConfig, TenantConfig
from engine.kv.blocks import BlockPool
from engine.kv.eviction import EVICTIONS, Footprint
from engine.kv.reuse import EDGES, Ages, Reuse
from engine.kv.uses import Use

SECOND = 1_000_000_000
SIZE = 12
WEIGHTS = {"default": 1.0, "a": 1.0, "b": 2.0}
CONFIG = EngineConfig(
    memory=MemoryConfig(kv_blocks=SIZE, block_size=4),
    tenants={name: TenantConfig(weight=weight) for name, weight in WEIGHTS.items()},
)


def policy(name):
    return EVICTIONS[name](CONFIG)


@dataclass
class Spell:
    """Idle from ``began`` on, in this list; ``hit`` is when it ended."""

    key: tuple[str, int]
    began: int
    hit: int | None = None


@dataclass
class Known:
    """What the plain model remembers of a cached block."""

    released: int = 0
    listed: int = 0
    life: int | None = None
    rank: int | None = None
    class_: str = ""
    owner: str = ""
    hits: int = 0
    start: int = 0
    copied: bool = False
    spell: Spell | None = None


class Plain:
    """The rules, written as they are told."""

    def __init__(self):
        self.free: dict[int, Known] = {}
        self.spells: list[Spell] = []

    def best(self, name, now):
        """The blocks that may go first: the best by rule, several only where the rule leaves it open."""
        key = {
            "lru": lambda k: k.released,
            "ttl": lambda k: (0, k.released) if k.life is None else (1, k.released + k.life),
            "priority": lambda k: (-k.rank, k.released),
            "reuse": lambda k: (self.probability(k, now) * cost(k.start), k.released),
            "footprint": lambda k: -self.footprint(k),
        }[name]
        candidates = self.heads(name)
        least = min(key(known) for known in candidates.values())
        return {block for block, known in candidates.items() if key(known) == least}

    def heads(self, name):
        """Longest unused of each list."""
        list_of = {
            "lru": lambda k: 0,
            "ttl": lambda k: k.life,
            "priority": lambda k: k.rank,
            "reuse": lambda k: (k.class_, min(k.hits, 3)),
            "footprint": lambda k: k.owner,
        }[name]
        copied = any(known.copied for known in self.free.values())
        heads = {}
        for block, known in sorted(self.free.items(), key=lambda item: item[1].listed):
            if known.copied == copied:
                heads.setdefault(list_of(known), (block, known))
        return dict(heads.values())

    def footprint(self, known):
        mine = [k for k in self.free.values() if k.owner == known.owner and k.copied == known.copied]
        return len(mine) / WEIGHTS.get(known.owner, 1.0)

    def probability(self, known, now, horizon=60 * SECOND):
        key, age = (known.class_, min(known.hits, 3)), now - known.released
        edge = max(edge for edge in EDGES if edge <= age)
        reached = hit = 0.0
        for spell in self.spells:
            length = (now if spell.hit is None else spell.hit) - spell.began
            if spell.key != key or length < edge:
                continue
            weight = 0.5 ** (now // (600 * SECOND) - (spell.began + edge) // (600 * SECOND))
            reached += weight
            hit += weight * (spell.hit is not None and length - edge <= horizon)
        return (hit + 1) / (reached + 2)


def cost(start):
    return CONFIG.cost.b * 4 + CONFIG.cost.e * 4 * (start + 2)


class Against(RuleBasedStateMachine):
    """A pool and the plain model side by side; every victim must be one that the rule allows."""

    @initialize(name=st.sampled_from(tuple(EVICTIONS)), copied_first=st.booleans())
    def start(self, name, copied_first):
        self.name, self.copied_first = name, copied_first
        self.pool = BlockPool(SIZE, policy(name))
        self.pool.cached.copied_first = copied_first
        self.pool.cached.is_copied = lambda block: block in self.copies
        self.pool.listener = self
        self.copies: set[int] = set()
        self.plain = Plain()
        self.known: dict[int, Known] = {}
        self.gone: dict[bytes, Known] = {}
        self.tables: list[list[int]] = []
        self.now = self.listed = 0

    def evicted(self, block, now):
        """The pool asks to forget: is it a block that may go?"""
        assert block in self.plain.best(self.name, now)
        del self.plain.free[block]
        self.copies.discard(block)
        digest = b"%d" % len(self.gone)
        self.gone[digest] = self.known.pop(block)
        self.pool.cached.eviction.evicted(block, digest)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def wanted(self, data):
        """Somebody asks for evicted content."""
        digest = data.draw(st.sampled_from(sorted(self.gone)))
        spell = self.gone[digest].spell
        if spell.hit is None:
            spell.hit = self.now
        self.pool.cached.eviction.wanted(digest, self.now)

    @rule(count=st.integers(1, 4), start=st.sampled_from([0, 4, 400]))
    def allocate(self, count, start):
        table = self.pool.allocate(count, self.now)
        if table is not None:
            for index, block in enumerate(table):
                self.pool.mark(block, start + 4 * index)
                self.known[block] = Known(start=start + 4 * index)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(
        data=st.data(),
        life=st.sampled_from([None, 50 * SECOND, 500 * SECOND]),
        rank=st.integers(0, 2),
        class_=st.sampled_from(["chat", "batch"]),
        owner=st.sampled_from(["a", "b", "c"]),
    )
    def release(self, data, life, rank, class_, owner):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table, self.now, None, Use(life, rank, class_, owner))
        for block in reversed(table):
            known = self.known[block]
            known.rank = rank if known.rank is None else min(rank, known.rank)
            known.life = known.life if life is None else max(life, known.life or 0)
            known.class_, known.owner = class_, owner
            if self.pool.ref[block] == 0:
                self.listed += 1
                known.released, known.listed = self.now, self.listed
                known.copied = self.copied_first and block in self.copies
                self.plain.free[block] = known
                known.spell = Spell((class_, min(known.hits, 3)), self.now)
                self.plain.spells.append(known.spell)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def hit(self, data):
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.known)), unique=True, min_size=1, max_size=3))
        for block in chosen:
            self.pool.cached.uses[block].hits += 1
            self.known[block].hits += 1
            if block in self.plain.free:
                self.pool.cached.eviction.hit(block, self.now)
                self.known[block].spell.hit = self.now
                del self.plain.free[block]
        self.pool.acquire(chosen)
        self.tables.append(chosen)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def copy(self, data):
        """A copy below comes or goes."""
        block = data.draw(st.sampled_from(sorted(self.known)))
        self.copies ^= {block}
        self.pool.cached.recopied(block)
        if self.copied_first and block in self.plain.free:
            self.listed += 1
            self.known[block].listed, self.known[block].copied = self.listed, block in self.copies

    @rule(seconds=st.sampled_from([0, 1, 3, 40, 400]))
    def wait(self, seconds):
        self.now += seconds * SECOND + 1

    @invariant()
    def lists_are_whole(self):
        if hasattr(self, "pool"):
            listed = [block for blocks in self.pool.cached.lists.values() for block in blocks]
            assert sorted(listed) == sorted(self.plain.free)


Against.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)
TestAgainst = Against.TestCase


@given(
    st.lists(st.tuples(st.sampled_from(tuple(EVICTIONS)), st.booleans()), min_size=1, max_size=6), st.data()
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_switching_keeps_everything(switches, data):
    """Whatever policies follow each other, the same blocks are cached, each once, and those that were
    released first are before later ones in their list."""
    pool = BlockPool(SIZE, policy("lru"))
    blocks = pool.allocate(SIZE, 0)
    for now, block in enumerate(data.draw(st.permutations(blocks))):
        pool.mark(block)
        life = data.draw(st.sampled_from([None, 5, 9]))
        pool.release([block], now, use=Use(life, data.draw(st.integers(0, 2)), owner=str(now % 3)))
    for name, copied_first in switches:
        pool.cached.follow(policy(name), copied_first)
        lists = [list(each) for each in pool.cached.lists.values()]
        assert sorted(block for each in lists for block in each) == sorted(blocks)
        for each in lists:
            times = [pool.cached.uses[block].released for block in each]
            assert times == sorted(times)
    assert sorted(pool.allocate(SIZE, 50)) == sorted(blocks)


class TestReuse:
    def test_the_formula(self):
        """p = (H + 1) / (S + 2): of four spells one ended after 3 s, one after 100 s, two go on; the age of
        5 s was reached by three, and none of them was hit within 60 s more."""
        ages = Ages()
        spells = [ages.begin(0) for _ in range(4)]
        ages.end(spells[0], 3 * SECOND, 60 * SECOND)
        ages.end(spells[1], 100 * SECOND, 60 * SECOND)
        now = 110 * SECOND
        assert ages.probability(0, now) == pytest.approx(2 / 6)
        assert ages.probability(2 * SECOND, now) == pytest.approx(2 / 6)
        assert ages.probability(5 * SECOND, now) == pytest.approx(1 / 5)
        assert ages.probability(50 * SECOND, now) == pytest.approx(1 / 5), "32 s + 60 s is before 100 s"
        assert ages.probability(64 * SECOND, now) == pytest.approx(2 / 5)

    def test_counts_halve(self):
        """After 600 s what was counted counts half."""
        ages = Ages()
        ages.end(ages.begin(0), SECOND // 2, 60 * SECOND)
        assert ages.probability(0, 599 * SECOND) == pytest.approx(2 / 3)
        assert ages.probability(0, 600 * SECOND) == pytest.approx(1.5 / 2.5)
        assert ages.probability(0, 1800 * SECOND) == pytest.approx(1.125 / 2.125)

    def test_a_spell_goes_on_after_eviction(self):
        """What is wanted again after its eviction was a hit that eviction prevented; what is forgotten was
        none."""
        reuse = Reuse(CONFIG.cost, 4, 60.0)
        pool = BlockPool(2, reuse)
        first, second = pool.allocate(2, 0)
        for block in (first, second):
            pool.mark(block)
        pool.release([first, second], 0)
        uses, key = pool.cached.uses[first], (False, ("default", 0))
        before = reuse.rank(key, uses, 2 * SECOND)[0]
        reuse.evicted(second, b"second")
        reuse.wanted(b"second", 10 * SECOND)
        hit = reuse.rank(key, uses, 10 * SECOND)[0]
        reuse.evicted(first, b"first")
        reuse.forgotten(b"first")
        reuse.wanted(b"first", 12 * SECOND)
        assert hit > before
        assert reuse.rank(key, uses, 12 * SECOND)[0] == hit

    def test_nothing_is_kept_for_ever(self, bench, tokens):
        """Spells under way are those of cached and of remembered blocks; a clear ends them all."""
        b = bench(blocks=10, eviction="reuse", host=6)
        for seed in range(40):
            b.serve(tokens(17, seed=seed), 1)
            b.now += SECOND
        reuse, cache = b.worker.pool.cached.eviction, b.worker.cache
        spells = sum(len(each) for ages in reuse._ages.values() for each in ages._waiting)
        assert spells == len(reuse._idle) + len(reuse._evicted)
        assert len(reuse._idle) == b.worker.pool.cached_free
        assert all(cache.history.why_lost(d) or cache.below.holds(d) for d in reuse._evicted)
        b.send(m.Clear())
        assert not any(each for ages in reuse._ages.values() for each in ages._waiting)

    def test_a_late_start_costs_more(self):
        """Of two blocks with the same history the one that is dearer to compute stays."""
        pool = BlockPool(2, Reuse(CONFIG.cost, 4, 60.0))
        table = pool.allocate(2, 0)
        for block, start, class_ in zip(table, (40_000, 0), ("chat", "batch"), strict=True):
            pool.mark(block, start)
            pool.release([block], 0, use=Use(class_=class_))
        assert pool.allocate(1, 1) == [table[1]]


class TestFootprint:
    def test_the_longest_list_is_known_without_a_search(self):
        """Whatever lengths lists have, as many contenders as there are weights."""
        footprint = Footprint({"b": 2.0})
        lengths = {"a": 3, "b": 5, "c": 4}
        for owner, length in lengths.items():
            for step in range(1, length + 1):
                footprint.resized((False, owner), step)
        assert set(footprint.contenders(())) == {(False, "c"), (False, "b")}
        for step in (3, 2, 1, 0):
            footprint.resized((False, "c"), step)
        assert set(footprint.contenders(())) == {(False, "a"), (False, "b")}

    def test_sessions(self):
        """Counted by session, tenants' weights mean nothing."""
        config = replace(CONFIG, cache=CacheConfig(footprint_of="session"))
        footprint = EVICTIONS["footprint"](config)
        for step in (1, 2):
            footprint.resized((False, "b/1"), step)
        footprint.resized((False, "a/7"), 1)
        assert list(footprint.contenders(())) == [(False, "b/1")]


@pytest.mark.parametrize("name", EVICTIONS)
def test_a_victim_costs_the_same_in_a_big_pool(name, monkeypatch):
    """Heads are compared, never blocks: as many ranks are asked for with 3,000 cached blocks as with 30."""
    asked = []
    for blocks in (30, 3000):
        eviction = policy(name)
        pool = BlockPool(blocks, eviction)
        for number, block in enumerate(pool.allocate(blocks, 0)):
            pool.mark(block)
            use = Use([None, 9, 99][number % 3], number % 3, owner=f"o{number}", class_="xyz"[number % 3])
            pool.release([block], number, use=use)
        with monkeypatch.context() as patch:
            spy = Mock(wraps=eviction.rank)
            patch.setattr(eviction, "rank", spy)
            pool.allocate(5, blocks)
        asked.append(spy.call_count)
    assert asked[0] == asked[1] <= 15
