"""Every prompt token that is not read from cache has its one true reason (ENGINE E18)."""

from __future__ import annotations

from array import array

import pytest

from engine import messages as m
from engine.config import EngineConfig
from engine.kv.blocks import BlockPool, Content
from engine.kv.prefix_cache import PrefixCache
from engine.request import MissReason
from engine.sched import admission
from engine.telemetry import Meter

SECOND = 1_000_000_000


def reasons(done):
    return [(miss.reason, miss.first_block, miss.blocks, miss.tokens) for miss in done.truth.misses]


def test_never_computed_and_below_block(bench, tokens):
    """A first prompt was never computed; its partial block is below a block."""
    done = bench(blocks=16).serve(tokens(10), 1)
    assert reasons(done) == [(MissReason.NEVER_COMPUTED, 0, 2, 8), (MissReason.BELOW_BLOCK, 2, 1, 2)]


def test_evicted_by_capacity_and_what_lies_behind(bench, tokens):
    """A lost block keeps its cause, and a resident block behind it takes the same."""
    b = bench(blocks=10)
    b.serve(tokens(20), 1)
    b.serve(tokens(24, seed=3), 1)  # 6 blocks: 5 blank ones and the 5th of the first prompt
    done = b.serve(tokens(20), 1)
    assert reasons(done) == [(MissReason.EVICTED_CAPACITY, 4, 1, 4)]
    assert b.count("evicted_blocks_total", cause="capacity", tier="device") >= 1
    b.drained()


def test_resident_behind_a_missing_block(bench, tokens):
    """A resident block that cannot be reached takes the reason of the gap before it."""
    b = bench(blocks=32)
    b.serve(tokens(16), 1)
    cache = b.worker.cache
    first = next(block for block in cache.content if cache.content[block].parent == b.root())
    cache.evicted(first, b.now)
    b.worker.pool.unmark(first)
    done = b.serve(tokens(17), 1)
    assert reasons(done)[0] == (MissReason.EVICTED_CAPACITY, 0, 4, 16)
    assert done.truth.hit_device == 0
    b.drained()


def test_evicted_by_ttl(bench, tokens):
    """After its life a block is gone, with an event, also while the worker idles."""
    b = bench(blocks=16, ttl=5.0)
    b.serve(tokens(9), 1)
    assert b.worker.next_wakeup == b.now + 5 * SECOND
    b.now += 5 * SECOND
    assert b.step() is None
    removed = [e for batch in b.told(m.KvEvents) for e in batch.events if e.kind == "removed"]
    assert [(len(e.digests), e.cause) for e in removed] == [(2, "ttl")]
    assert b.worker.next_wakeup is None
    done = b.serve(tokens(9), 1)
    assert reasons(done)[0] == (MissReason.EVICTED_TTL, 0, 2, 8)
    b.drained()


def test_a_hit_stops_the_life(bench, tokens):
    """A block's life runs from its last release."""
    b = bench(blocks=16, ttl=5.0)
    b.serve(tokens(9), 1)
    b.now += 4 * SECOND
    assert b.serve(tokens(9), 1).truth.hit_device == 8
    b.now += 4 * SECOND
    assert b.serve(tokens(9), 1).truth.hit_device == 8
    b.drained()


def test_preempted(bench, tokens, monkeypatch):
    """Blocks that a preemption released and an allocation took have that reason."""
    monkeypatch.setitem(
        admission.ADMISSIONS, "eager", lambda c, books: -(-c.tokens // 4) - c.ref_hit <= books.free
    )
    b = bench(blocks=8, policy="eager")
    first = b.submit(tokens(12), 12)
    second = b.submit(tokens(12, seed=2), 20)
    while not b.count("preemptions_total", cause="memory"):
        b.step()
    ((victim, _),) = b.worker.scheduler.waiting
    b.cancel(victim)
    b.run()
    done = b.serve(tokens(12, seed=2 if victim == second else 0), 1)
    assert MissReason.PREEMPTED in {miss.reason for miss in done.truth.misses}
    assert first in b.done
    b.drained()


def test_being_computed_only_while_it_is(bench, tokens):
    """While an earlier request computes the same prompt that is the reason; once done it is a hit."""
    b = bench(blocks=64, budget=32, chunk=16)
    shared = tokens(48)
    b.submit([*shared, 1], 2)
    b.step()  # 16 of 48 tokens are there
    second = b.submit([*shared, 2], 2)
    b.run()
    assert b.done[second].truth.hit_device >= 16
    assert reasons(b.done[second])[0][0] is MissReason.BEING_COMPUTED
    assert b.serve([*shared, 3], 1).truth.hit_device == 48
    b.drained()


def test_cancelled_computation_is_not_being_computed(bench, tokens):
    """A prompt whose computation was given up was never computed."""
    b = bench(blocks=64, budget=8)
    first = b.submit(tokens(40), 2)
    b.step()
    b.cancel(first)
    done = b.serve(tokens(40), 1)
    assert reasons(done)[0] == (MissReason.NEVER_COMPUTED, 2, 8, 32)
    b.drained()


def test_clear_leaves_no_local_reason(bench, tokens):
    """After a clear the worker does not know; the subscriber of its events does."""
    b = bench(blocks=64)
    b.serve(tokens(16), 1)
    b.send(m.Clear())
    assert b.worker.epoch == 2
    done = b.serve(tokens(16), 1)
    assert reasons(done) == [(MissReason.NEVER_COMPUTED, 0, 4, 16)]
    assert done.truth.epoch == 2
    b.drained()


def test_output_is_cached_too(bench, tokens):
    """A next turn reads the blocks that the answer filled."""
    b = bench(blocks=64)
    first = b.serve(tokens(10), 8)
    turn = [*tokens(10), *b.output[first.id], 1, 2, 3]
    assert b.serve(turn, 1).truth.hit_device == 16  # 10 + 7 computed tokens fill four blocks
    b.drained()


def test_first_hit_tokens_and_misses_sum_to_the_prompt(bench, tokens):
    """prompt = computed + hit_device, and the misses sum to computed."""
    b = bench(blocks=20)
    for length in (5, 8, 21, 21, 8, 40, 5, 40, 33):
        truth = b.serve(tokens(length), 2).truth
        assert truth.prompt == length == truth.computed + truth.hit_device
        assert sum(miss.tokens for miss in truth.misses) == truth.computed
    b.drained()


def test_overflow_marks_the_truth_incomplete(bench, tokens):
    """Once the bounded history has forgotten a loss, never_computed is marked as uncertain."""
    b = bench(blocks=8)
    b.worker.cache.history.bound = 3
    assert b.serve(tokens(20), 1).truth.misses_complete
    for seed in range(3, 8):
        b.serve(tokens(28, seed=seed), 1)
    assert b.count("miss_history_overflow_total") > 0
    assert not b.serve(tokens(20, seed=99), 1).truth.misses_complete
    b.drained()


def test_created_cache_tokens(bench, tokens):
    """What a request left in cache counts once, for the one that made it."""
    b = bench(blocks=64)
    assert b.serve(tokens(16), 1).truth.created_cache_tokens == 16
    assert b.serve(tokens(16), 1).truth.created_cache_tokens == 0
    assert b.serve([*tokens(16), 1, 2, 3, 4], 1).truth.created_cache_tokens == 4


@pytest.mark.parametrize("verify", [True, False])
def test_verification_catches_foreign_content(verify):
    """A hit needs parent and tokens to be equal, not only the key."""
    pool = BlockPool(4)
    cache = PrefixCache(pool, 2, Meter(EngineConfig(), "engine"), verify_tokens=verify)
    (block,) = pool.allocate(1, 0)
    cache.publish(block, Content(b"d" * 16, b"r", array("I", [1, 2]).tobytes(), b"r"), b"f")
    match = cache.match(b"r", [b"d" * 16], array("I", [1, 3, 5]))
    assert match.blocks == (() if verify else (block,))
