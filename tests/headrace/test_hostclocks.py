"""Clocks of several hosts: what is used as their offset, and how wrong that may be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.hostclocks import OURS, Reading, clock_id, host_clock
from loadgen.stamps import ClockSample

ns = st.integers(0, 10**7)
offsets = st.integers(-(10**15), 10**15)


def reading(offset: int, out: int, work: int, back: int, wall_error: int) -> Reading:
    """Of a host whose monotonic clock is ours plus ``offset`` and whose wall clock is ``wall_error`` wrong;
    the question takes ``out`` to get there, ``work`` is how long it looks at its clocks."""
    before, epoch = 5_000_000, 10**18
    there = ClockSample(before + out + work + offset, epoch + wall_error - offset, work)
    return Reading.of(before, ClockSample(before, epoch, 0), there, before + out + 2 * work + back)


@given(offset=offsets, out=ns, work=st.integers(0, 10**5), back=ns, wall_error=offsets)
def test_the_bound_holds_whatever_the_wall_clocks_say(offset, out, work, back, wall_error):
    """What is used as the offset is never further from the true one than the bound; a wall clock is
    believed exactly where the round trip cannot refute it."""
    start = reading(offset, out, work, back, wall_error)
    told = host_clock(start, reading(offset, back, work, out, wall_error))
    assert abs(told["offset_ns"] - offset) <= told["bound_ns"] <= 2 * (out + back)
    assert (told["offset_ns"] == offset - wall_error) == (-back <= -wall_error <= out)


@given(drift=st.integers(-(10**9), 10**9))
def test_drift_is_reported_and_widens_the_bound(drift):
    """A clock that has moved by the end of the run makes the last times as wrong as it moved."""
    told = host_clock(reading(70, 0, 0, 0, 0), reading(70 + drift, 0, 0, 0, 0))
    assert told == {"offset_ns": 70, "drift_ns": drift, "bound_ns": abs(drift)}


def test_what_is_not_known_of_a_clock_is_not_there():
    """A host that was lost before the end has no drift and no bound; our own clock has none of either."""
    assert host_clock(Reading(7, 5, 9), None) == {"offset_ns": 7, "drift_ns": None, "bound_ns": None}
    assert host_clock(OURS, OURS) == {"offset_ns": 0, "drift_ns": 0, "bound_ns": 0}
    assert clock_id() == clock_id()
