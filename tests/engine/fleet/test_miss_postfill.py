"""The reasons that only the gateway knows, as of its decision (ENGINE E18, FLEET F32)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.fleet.index import EventIndex
from engine.fleet.misses import facts_at, refine
from engine.fleet.predicted import PredictedIndex
from engine.kv.blocks import block_digests
from engine.messages import KvEvent, KvEvents
from engine.request import Miss, MissReason
from tests.engine.fleet.world import prompt

ROOT = bytes(16)
DIGESTS = block_digests(ROOT, prompt(6 * 16), 16)
R = MissReason


def holding(**blocks: tuple[int, ...]) -> EventIndex:
    """``w0=(0, 1)``: worker 0 holds blocks 0 and 1."""
    index = EventIndex()
    index.know_root(ROOT)
    for name, held in blocks.items():
        events = tuple(KvEvent("stored", (DIGESTS[i],), DIGESTS[i - 1] if i else ROOT) for i in held)
        index.apply(int(name[1:]), KvEvents(1, 1, events))
    return index


def test_another_workers_block_is_named_before_anything_the_worker_says() -> None:
    """Except for what E17 and the block size exclude: those come first in E18's order."""
    facts = facts_at(DIGESTS, 0, holding(w1=(0, 1, 2)), PredictedIndex(), others=0b10)
    misses = [
        Miss(R.EVICTED_CAPACITY, 0, 2, 32),
        Miss(R.NEVER_COMPUTED, 2, 3, 48),
        Miss(R.LAST_BLOCK_RULE, 5, 1, 16),
        Miss(R.BELOW_BLOCK, 6, 1, 5),
    ]
    assert refine(misses, facts, 16) == (
        Miss(R.ON_OTHER_WORKER, 0, 3, 48),
        Miss(R.NEVER_COMPUTED, 3, 2, 32),
        Miss(R.LAST_BLOCK_RULE, 5, 1, 16),
        Miss(R.BELOW_BLOCK, 6, 1, 5),
    )


def test_what_was_lost_with_an_epoch_is_worker_restarted() -> None:
    """Unless the worker itself knows an earlier reason, or another worker still holds it."""
    index = holding(w0=(0, 1, 2), w1=(0,))
    index.depart(0)
    index.begin(0, 2)
    facts = facts_at(DIGESTS, 0, index, PredictedIndex(), others=0b10)
    misses = [Miss(R.NEVER_COMPUTED, 0, 2, 32), Miss(R.EVICTED_CAPACITY, 2, 1, 16)]
    assert refine(misses, facts, 16) == (
        Miss(R.ON_OTHER_WORKER, 0, 1, 16),
        Miss(R.WORKER_RESTARTED, 1, 1, 16),
        Miss(R.EVICTED_CAPACITY, 2, 1, 16),
    )


def test_what_lapsed_on_another_worker_is_no_first_time() -> None:
    """A prefix that ran out of life or place there and is asked of us: the last loss is the reason."""
    index = holding(w1=(0, 1, 2), w2=(2,))
    removed = (
        KvEvent("removed", (DIGESTS[0],), cause="ttl"),
        KvEvent("removed", (DIGESTS[1], DIGESTS[2]), cause="capacity"),
    )
    index.apply(1, KvEvents(1, 2, removed))
    facts = facts_at(DIGESTS, 0, index, PredictedIndex(), others=0b110)
    assert refine([Miss(R.NEVER_COMPUTED, 0, 6, 96)], facts, 16) == (
        Miss(R.EVICTED_TTL, 0, 1, 16),
        Miss(R.EVICTED_CAPACITY, 1, 1, 16),
        Miss(R.ON_OTHER_WORKER, 2, 1, 16),
        Miss(R.NEVER_COMPUTED, 3, 3, 48),
    )


def test_a_workers_own_loss_stands_against_one_elsewhere() -> None:
    """It was held here and lost here; that another worker lost it too, earlier or later, explains nothing."""
    index = holding(w0=(0,), w1=(0, 1))
    index.apply(0, KvEvents(1, 2, (KvEvent("removed", (DIGESTS[0],), cause="capacity"),)))
    index.apply(1, KvEvents(1, 2, (KvEvent("removed", (DIGESTS[0], DIGESTS[1]), cause="ttl"),)))
    facts = facts_at(DIGESTS, 0, index, PredictedIndex(), others=0b10)
    misses = [Miss(R.EVICTED_CAPACITY, 0, 1, 16), Miss(R.NEVER_COMPUTED, 1, 1, 16)]
    assert refine(misses, facts, 16)[0] == Miss(R.EVICTED_CAPACITY, 0, 1, 16)


def test_an_old_loss_says_nothing_of_a_block_that_is_there() -> None:
    """Held again at the decision; if it goes before the request is admitted, the worker knows why."""
    index = holding(w0=(0,))
    index.apply(0, KvEvents(1, 2, (KvEvent("removed", (DIGESTS[0],), cause="ttl"),)))
    index.apply(0, KvEvents(1, 3, (KvEvent("stored", (DIGESTS[0],), ROOT),)))
    assert facts_at(DIGESTS, 0, index, PredictedIndex(), others=0)[0] == (0, None)


def test_what_another_worker_is_computing_is_being_computed() -> None:
    """By the gateway's own record of dispatches; the worker's own are not elsewhere."""
    predicted = PredictedIndex()
    predicted.enter((1, 1), 1, DIGESTS[:2])
    predicted.enter((2, 1), 0, DIGESTS)
    facts = facts_at(DIGESTS, 0, holding(), predicted, others=0b10)
    assert refine([Miss(R.NEVER_COMPUTED, 0, 6, 96)], facts, 16) == (
        Miss(R.BEING_COMPUTED, 0, 2, 32),
        Miss(R.NEVER_COMPUTED, 2, 4, 64),
    )


def test_a_resident_block_behind_a_missing_one_takes_that_ones_reason() -> None:
    """W0 holds block 1 but not 0; both are missed for the reason of block 0."""
    facts = facts_at(DIGESTS, 0, holding(w0=(1,), w1=(0,)), PredictedIndex(), others=0b10)
    assert refine([Miss(R.EVICTED_CAPACITY, 0, 2, 32)], facts, 16) == (Miss(R.ON_OTHER_WORKER, 0, 2, 32),)


def test_workers_that_do_not_count_hold_nothing() -> None:
    """A worker out of rotation is no place where the block was."""
    facts = facts_at(DIGESTS, 0, holding(w1=(0,)), PredictedIndex(), others=0)
    assert refine([Miss(R.NEVER_COMPUTED, 0, 1, 16)], facts, 16) == (Miss(R.NEVER_COMPUTED, 0, 1, 16),)


@given(
    held=st.sets(st.integers(0, 5)),
    mine=st.sets(st.integers(0, 5)),
    cuts=st.sets(st.integers(1, 5)),
    reasons=st.lists(st.sampled_from(list(R)[1:]), min_size=7, max_size=7),
)
def test_no_token_is_lost_or_counted_twice(
    held: set[int], mine: set[int], cuts: set[int], reasons: list[MissReason]
) -> None:
    """Whatever is known, the refined runs cover exactly the same blocks and tokens in the same order."""
    index = holding(w1=tuple(sorted(held)), w0=tuple(sorted(mine)))
    facts = facts_at(DIGESTS, 0, index, PredictedIndex(), others=0b10)
    edges = [0, *sorted(cuts), 6]
    misses = [
        Miss(reason, a, b - a, (b - a) * 16) for (a, b), reason in zip(pairwise(edges), reasons, strict=False)
    ]
    misses.append(Miss(R.BELOW_BLOCK, 6, 1, 3))
    refined = refine(misses, facts, 16)
    at = 0
    for miss in refined:
        assert miss.first_block == at
        assert miss.tokens == (3 if at == 6 else miss.blocks * 16)
        at += miss.blocks
    assert at == 7
