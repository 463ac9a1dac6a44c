"""Where blocks are: exact against a linear walk, and never more than what is there (F30-F33, C1)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fleet.index import EventIndex
from engine.fleet.predicted import PredictedIndex
from engine.kv.blocks import block_digests
from engine.messages import KvEvent, KvEvents
from engine.request import MissReason
from tests.engine.fleet.world import prompt

ROOT = bytes(16)


def chain(blocks: int, seed: int = 0) -> tuple[bytes, ...]:
    return block_digests(ROOT, prompt(blocks * 16, seed), 16)


def index() -> EventIndex:
    made = EventIndex()
    made.know_root(ROOT)
    return made


def stored(epoch: int, seq: int, digests: Sequence[bytes], parent: bytes = ROOT) -> KvEvents:
    return KvEvents(epoch, seq, (KvEvent("stored", tuple(digests), parent),))


def removed(epoch: int, seq: int, digests: Sequence[bytes]) -> KvEvents:
    return KvEvents(epoch, seq, (KvEvent("removed", tuple(digests), cause="capacity"),))


@settings(max_examples=60)
@given(data=st.data())
def test_a_run_equals_a_linear_walk_whatever_was_stored_and_removed(data: st.DataObject) -> None:
    """Holes, forks, two workers, any order of events: bisection finds what walking would (F33)."""
    trunk = chain(6)
    fork = (*trunk[:3], *block_digests(trunk[2], prompt(48, 9), 16))
    parents = {d: p for c in (trunk, fork) for p, d in zip((ROOT, *c), c, strict=False)}
    found, held, seqs = index(), {0: set(), 1: set()}, {0: 0, 1: 0}
    for _ in range(data.draw(st.integers(0, 40))):
        worker, digest = data.draw(st.integers(0, 1)), data.draw(st.sampled_from(sorted(parents)))
        seqs[worker] += 1
        if data.draw(st.booleans()):
            held[worker].add(digest)
            found.apply(worker, stored(1, seqs[worker], [digest], parents[digest]))
        else:
            held[worker].discard(digest)
            found.apply(worker, removed(1, seqs[worker], [digest]))
        for worker in held:
            assert found.keys(worker) == held[worker]
            for digests in (trunk, fork):
                walk = next((i for i, d in enumerate(digests) if d not in held[worker]), len(digests))
                assert found.run(digests, worker) == walk
    assert len(found) == len(held[0] | held[1])


def test_a_restarted_worker_has_no_credit() -> None:
    """After the loss and before any new event its run is 0; three blocks published again are 3 (C1)."""
    found, digests = index(), chain(10)
    found.apply(0, stored(1, 1, digests))
    assert found.run(digests, 0) == 10
    found.depart(0)
    found.begin(0, 2)
    assert found.run(digests, 0) == 0
    assert found.why_lost(digests[0]) is MissReason.WORKER_RESTARTED
    found.apply(0, stored(2, 1, digests[:3]))
    assert found.run(digests, 0) == 3


def test_events_of_a_removed_worker_cannot_bring_it_back() -> None:
    """100 batches that were still queued change nothing (C1 b)."""
    found, digests = index(), chain(100)
    found.apply(0, stored(1, 1, digests[:1]))
    found.depart(0)
    for seq in range(2, 102):
        found.apply(0, stored(1, seq, [digests[seq - 2]]))
    assert len(found) == 0


def test_a_new_epoch_in_a_heartbeat_clears() -> None:
    """Also if the event that said so was lost; an older epoch's batches are dropped then (C1 a, c)."""
    found, digests = index(), chain(4)
    found.apply(0, stored(1, 1, digests))
    assert found.begin(0, 2)
    assert not found.begin(0, 2)
    assert found.run(digests, 0) == 0
    found.apply(0, stored(1, 2, digests))
    assert found.run(digests, 0) == 0
    found.apply(0, stored(2, 1, digests))
    assert found.run(digests, 0) == 4


def test_a_higher_epoch_in_a_batch_clears_and_a_repeated_number_is_ignored() -> None:
    """Cleared content is remembered as lost with its epoch."""
    found, digests = index(), chain(4)
    found.apply(0, stored(1, 1, digests))
    found.apply(0, removed(1, 1, digests))
    assert found.run(digests, 0) == 4
    found.apply(0, KvEvents(2, 1, (KvEvent("cleared"),)))
    assert found.run(digests, 0) == 0
    assert found.why_lost(digests[3]) is MissReason.WORKER_RESTARTED


def test_a_gap_costs_the_worker_its_credit_and_is_counted() -> None:
    """What a lost batch removed must not be credited, so all goes; others keep theirs."""
    found, digests = index(), chain(4)
    for worker in (0, 1):
        found.apply(worker, stored(1, 1, digests))
    found.apply(0, stored(1, 3, chain(2, seed=5)))
    assert found.gaps == 1
    assert found.run(digests, 0) == 0
    assert found.run(digests, 1) == 4
    assert found.run(chain(2, seed=5), 0) == 2


def test_a_block_with_an_unknown_parent_is_kept_and_counted() -> None:
    """It gives no credit until its parents come."""
    found, digests = index(), chain(4)
    found.apply(0, stored(1, 1, digests[2:], parent=digests[1]))
    assert found.orphans == 1
    assert found.run(digests, 0) == 0
    found.apply(0, stored(1, 2, digests[:2]))
    assert found.run(digests, 0) == 4


def test_predictions_overlap_and_go_with_their_attempts() -> None:
    """Two prompts share a prefix; what one predicted stays while the other still does (F31)."""
    predicted, digests = PredictedIndex(), chain(6)
    predicted.enter((1, 1), 0, digests[:4])
    predicted.enter((2, 1), 0, digests)
    assert predicted.run(digests, 0) == 6
    assert predicted.run(digests, 1) == 0
    assert predicted.elsewhere(digests[5], 1)
    assert not predicted.elsewhere(digests[5], 0)
    predicted.leave((2, 1))
    predicted.leave((2, 1))
    assert predicted.run(digests, 0) == 4
    predicted.leave((1, 1))
    assert len(predicted) == 0
