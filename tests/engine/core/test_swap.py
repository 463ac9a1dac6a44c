"""Preemption by swap: a victim's K/V goes to host memory and comes back (ENGINE E26)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.request import Finish, Phase
from engine.runner.base import Move

LONG = 24
"""Tokens of a prompt that costs more to compute again than to move."""


def crowded(bench, tokens, **more):
    """Two requests that outgrow a pool of 14 blocks together; stepped until one is preempted."""
    b = bench(**({"blocks": 14, "policy": "prompt", "preemption": "swap", "swap": 20} | more))
    ids = [b.submit(tokens(LONG - seed, seed=seed), 20) for seed in (1, 2)]
    seen = spied(b)
    while not b.count("preemptions_total", cause="memory"):
        b.begin()
        if b.count("preemptions_total", cause="memory"):
            break
        b.end()
    (victim,) = b.worker.scheduler.waiting.values()
    return b, ids, victim, seen


def spied(b):
    seen, execute = [], b.runner.execute

    def watched(plan):
        seen.append(plan)
        return execute(plan)

    b.runner.execute = watched
    return seen


def waiting(b, reason):
    counts = b.worker.heartbeat(b.now).metrics["headrace_engine_requests_waiting"]
    return sum(count for (_, why), count in counts if why == reason)


def test_out_and_in_again(bench, tokens):
    """The victim's blocks, the partial one too, move out and in, nothing is computed again, and its text is
    what it would have said alone."""
    b, ids, victim, _ = crowded(bench, tokens)
    computed = victim.swapped.computed
    assert computed % 4, "its last block is partial"
    b.end()
    b.run()
    blocks = -(-computed // 4)
    assert b.count("swapped_blocks_total", direction="out") == blocks
    assert 0 < b.count("swapped_blocks_total", direction="in") <= blocks
    truths = [b.done[id].truth for id in ids]
    assert sum(truth.preemptions for truth in truths) == 1
    assert [truth.recomputed for truth in truths] == [0, 0]
    b.taught()
    b.drained()


def test_blocks_come_free_when_the_copy_ends(bench, tokens):
    """While they are copied they are fenced, and nobody else is preempted for them (E27, E35)."""
    b, _, victim, _ = crowded(bench, tokens)
    pool = b.worker.pool
    assert {move.move for move in b.flying.transfers} == {Move.SAVE}
    assert pool.fenced == -(-victim.swapped.computed // 4)
    assert (victim.table, victim.promised > 0, b.count("preemptions_total", cause="memory")) == ((), True, 1)
    assert waiting(b, "swapped") == 1
    free = pool.free
    b.end()
    assert pool.fenced == 0
    assert pool.free > free
    b.run()
    assert waiting(b, "swapped") == 0
    b.drained()


@pytest.mark.parametrize("more", [{"swap": 3}, {"latency": 10.0}], ids=["no room", "not worth it"])
def test_computed_again_instead(bench, tokens, more):
    """Without room, or where moving twice takes as long as computing, the victim is computed again."""
    b, ids, victim, _ = crowded(bench, tokens, **more)
    assert victim.swapped is None
    b.end()
    b.run()
    assert b.count("swapped_blocks_total", direction="out") == 0
    assert sum(b.done[id].truth.recomputed for id in ids) > 0
    b.taught()
    b.drained()


def test_a_copy_below_is_not_made_again(bench, tokens):
    """Blocks that host memory has already stay there, pinned; only the others are moved."""
    b = bench(blocks=14, policy="prompt", preemption="swap", swap=20, host=30)
    b.serve(tokens(LONG, seed=1), 1)
    b.send(m.Ballast(14))
    b.step()
    b.send(m.Ballast(0))
    ids = [b.submit(tokens(LONG, seed=seed), 20) for seed in (2, 1)]
    while not b.count("preemptions_total", cause="memory"):
        b.step()
    (victim,) = b.worker.scheduler.waiting.values()
    assert victim.id == ids[1]
    pinned = [source for source in victim.swapped.sources if source.entry is not None]
    assert len(pinned) >= 5
    assert b.count("swapped_blocks_total", direction="out") == len(victim.swapped.sources) - len(pinned)
    b.run()
    b.taught()
    b.drained()


def test_cancelled_while_swapped(bench, tokens):
    """Its slots are free at once; nothing comes back."""
    b, _, victim, seen = crowded(bench, tokens)
    b.cancel(victim.id)
    slots = b.worker.memory.transfers.free_slots
    assert len(slots) == 20
    b.end()
    b.run()
    assert b.done[victim.id].reason is Finish.CANCELLED
    assert b.done[victim.id].truth.cancel_phase in (Phase.PREFILL, Phase.DECODE)
    assert not [move for plan in seen for move in plan.transfers if move.move is Move.LOAD]
    b.drained()


def test_no_patience_is_lost_with_a_return(bench, tokens):
    """However long it takes: unlike a restore it has been paid for already (E26, E45)."""
    b, _, victim, _ = crowded(bench, tokens)
    transfers = b.worker.memory.transfers
    transfers.sizes = replace(transfers.sizes, per_step=2)
    b.end()
    while not b.worker.idle:
        if b.step() is None:
            b.now = b.worker.next_wakeup
        b.now += 2 * 10**9
    assert b.count("swapped_blocks_total", direction="in") > 1
    assert b.done[victim.id].truth.recomputed == 0
    b.taught()
    b.drained()


def test_a_failed_copy_is_computed_again(bench, tokens):
    """A victim whose K/V did not reach the host loses nothing but time."""
    b, _, victim, _ = crowded(bench, tokens)
    b.runner.fails = lambda move: move.move is Move.SAVE
    b.end()
    b.run()
    assert b.done[victim.id].reason is Finish.LENGTH
    assert b.done[victim.id].truth.recomputed > 0
    b.taught()
    b.drained()


def test_a_failed_return_is_computed_again(bench, tokens):
    """So does one whose K/V did not come back, or only in part."""
    b, _, victim, _ = crowded(bench, tokens)
    loads = []
    b.runner.fails = lambda move: move.move is Move.LOAD and (loads.append(move) or len(loads) == 2)
    b.end()
    b.run()
    assert len(loads) >= 2
    assert b.done[victim.id].reason is Finish.LENGTH
    b.taught()
    b.drained()


def test_a_lost_step_loses_the_copy(bench, tokens):
    """The step that copies raises: its own requests end, the victim is computed again."""
    b, _, victim, _ = crowded(bench, tokens)
    b.fail()
    b.run()
    assert b.done[victim.id].reason is Finish.LENGTH
    b.taught()
    b.drained()


def test_an_urgent_request_waits_for_the_copy(bench, tokens):
    """Who takes blocks of a lower class takes no more victims while those of the first are copied (E27)."""
    b = bench(blocks=16, policy="prompt", preemption="swap", swap=40, priority_preemption=True)
    bulk = [b.submit(tokens(16, seed=seed), 4, rank=2) for seed in (1, 2, 3)]
    b.step()
    urgent = b.submit(tokens(18, seed=4), 4, rank=0)
    b.step()
    assert b.count("preemptions_total", cause="priority") == 1
    assert urgent not in b.steps_of
    b.step()
    assert urgent in b.steps_of
    b.run()
    assert sum(b.done[id].truth.recomputed for id in bulk) == 0
    b.taught()
    b.drained()


@given(st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_nobody_notices(bench, tokens, data):
    """Tight pools, choices, classes, failing moves: every text is as if alone, and nothing is left behind."""
    draw = data.draw
    b = bench(
        blocks=draw(st.sampled_from([10, 16])),
        policy="prompt",
        preemption="swap",
        swap=draw(st.sampled_from([4, 12, 40])),
        host=draw(st.sampled_from([0, 10])),
        budget=draw(st.sampled_from([6, 24])),
        priority_preemption=draw(st.booleans()),
        moves=draw(st.sampled_from([2, 64])),
    )
    failing, moved = draw(st.sets(st.integers(0, 40), max_size=3)), []
    b.runner.fails = lambda move: move.move is not Move.COPY and (moved.append(move) or len(moved) in failing)
    for seed in range(draw(st.integers(2, 6))):
        prompt = tokens(draw(st.integers(1, 20)), seed=seed % 3)
        out_max, rank, n = draw(st.integers(1, 14)), draw(st.integers(0, 1)), draw(st.sampled_from([1, 2]))
        b.submit(prompt, out_max, rank=rank, n=n)
        for _ in range(draw(st.integers(0, 6))):
            b.step()
    b.run()
    b.taught()
    b.drained()
