"""Lives of cached blocks: promised per request, run from the last release, stopped by a hit (ENGINE E15)."""

from __future__ import annotations

import pytest

from engine import messages as m
from engine.request import MissReason

SECOND = 1_000_000_000


def hit(b, prompt, **more):
    return b.serve(prompt, 1, **more).truth.hit_device


def test_a_request_brings_its_own_life(bench, tokens):
    """Its blocks go when it has run out, one step later at most, others stay."""
    b = bench(blocks=40, ttl=60.0)
    b.serve(tokens(9), 1, life=5 * SECOND)
    released = b.now
    b.serve(tokens(9, seed=2), 1)
    assert b.worker.next_wakeup == released + 5 * SECOND
    b.now = released + 5 * SECOND
    b.step()
    removed = [e for batch in b.told(m.KvEvents) for e in batch.events if e.kind == "removed"]
    assert [(len(e.digests), e.cause) for e in removed] == [(2, "ttl")]
    assert hit(b, tokens(9, seed=2)) == 8
    assert b.serve(tokens(9), 1).truth.misses[0].reason is MissReason.EVICTED_TTL
    b.drained()


@pytest.mark.parametrize("lives", [(5, 60), (60, 5)])
def test_the_longest_life_of_all_users_counts(bench, tokens, lives):
    """In whatever order they come, from the last release on."""
    b = bench(blocks=40)
    for life in lives:
        b.serve(tokens(9), 1, life=life * SECOND)
    b.now += 59 * SECOND
    assert hit(b, tokens(9), life=SECOND) == 8
    b.now += 61 * SECOND
    assert hit(b, tokens(9)) == 0
    b.drained()


def test_blocks_in_use_do_not_age(bench, tokens):
    """A life begins when the last user has let go."""
    b = bench(blocks=40)
    b.serve(tokens(9), 1, life=SECOND)
    id = b.submit(tokens(9), 4, life=SECOND)
    b.begin()
    b.now += 3 * SECOND
    b.end()
    b.run()
    assert b.done[id].truth.hit_device == 8
    assert hit(b, tokens(9)) == 8
    b.now += SECOND
    b.step()
    assert hit(b, tokens(9)) == 0
    b.drained()


def test_without_a_life_the_configured_one_counts(bench, tokens):
    """``cache.ttl`` is for those that ask for none; a change of it is for releases from then on."""
    b = bench(blocks=40, ttl=2.0)
    b.serve(tokens(9), 1)
    b.send(m.Configure({"ttl": None}))
    b.serve(tokens(9, seed=2), 1)
    b.now += 2 * SECOND
    assert (hit(b, tokens(9)), hit(b, tokens(9, seed=2))) == (0, 8)
    b.drained()


def test_promised_lives_last_longest_under_pressure(bench, tokens):
    """With eviction ttl what nobody was promised goes first, then what would expire first."""
    b = bench(blocks=12, eviction="ttl")
    b.serve(tokens(9), 1, life=60 * SECOND)
    b.serve(tokens(9, seed=2), 1, life=5 * SECOND)
    b.serve(tokens(9, seed=3), 1)
    b.serve(tokens(33, seed=4), 1)  # 9 blocks: 6 blank ones, then 3 of the 6 cached
    assert hit(b, tokens(9)) == 8
    assert hit(b, tokens(9, seed=3)) == 0
    b.drained()
