"""Rounded times: what they were rounded to, and how they are spread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.streams import stream
from loadgen.tracefiles.times import quantum, spread

MS = 1_000_000
S = 1000 * MS


def test_the_quantum_of_jittering_buckets() -> None:
    """Ten requests each 3 s, give or take a millisecond: 3 s."""
    buckets = np.cumsum(np.tile([3000, 2999, 3000, 3001], 50)) * MS
    assert quantum(np.repeat(buckets, 10)) == 3 * S


def test_the_quantum_of_whole_seconds() -> None:
    """Arrivals at random, rounded down to seconds: 1 s, however few there are."""
    for rate in (0.2, 5.0):
        times = np.cumsum(stream(1, "t").exponential(1 / rate, 2000))
        assert quantum(np.floor(times).astype(np.int64) * S) == S


def test_times_that_are_all_different_have_no_quantum() -> None:
    """Also if they are as regular as a clock."""
    assert quantum(np.arange(100) * S) == 0
    assert quantum(np.array([5 * S, 5 * S])) == 0


TIMES = st.lists(st.integers(0, 40), min_size=1, max_size=60).map(lambda t: np.sort(np.array(t)) * S)


@given(TIMES, st.integers(1, 10**10))
def test_spreading_keeps_order_and_stays_in_the_bucket(times: np.ndarray, width: int) -> None:
    """Each n-th part of a bucket holds one of its n; times that stand alone are not touched."""
    moved, count = spread(times, width, stream(3, "spread"))
    assert (np.diff(moved) >= 0).all()
    distinct, n = np.unique(times, return_counts=True)
    assert count == n[n > 1].sum()
    for k, at in enumerate(distinct):
        own = moved[times == at] - at
        room = min(width, distinct[k + 1] - at) if k + 1 < len(distinct) else width
        if len(own) == 1:
            assert own[0] == 0
        else:
            part = np.arange(len(own)) * room / len(own)
            assert (own >= np.floor(part)).all()
            assert (own < part + room / len(own)).all()


def test_spreading_is_seeded() -> None:
    """One seed, one result; another seed, another."""
    times = np.repeat(np.arange(30), 4) * S
    one, two, other = (spread(times, S, stream(seed, "spread"))[0] for seed in (1, 1, 2))
    assert (one == two).all()
    assert (one != other).any()


@pytest.mark.parametrize("width", [0, -1])
def test_no_width_leaves_bursts(width: int) -> None:
    """`spread: 0s` sends equal times at once."""
    times = np.repeat(np.arange(3), 4) * S
    moved, count = spread(times, width, stream(1, "spread"))
    assert count == 0
    assert (moved == times).all()
