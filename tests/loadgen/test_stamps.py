"""Kernel stamps on the client's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stamps import JUMP_NS, OLDEST_NS, SAMPLE_NS, ClockBridge, ClockSample, sample_clock

EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000


class Clocks:
    """A machine whose CLOCK_REALTIME runs ``offset(mono)`` ns before its monotonic clock; each reading
    takes some time, drawn from ``seed``."""

    def __init__(self, offset: Callable[[int], int], seed: int = 1, cost: int = 100) -> None:
        self.offset, self.now = offset, 0
        self._random, self._cost = Random(seed), cost

    def mono(self) -> int:
        self.now += self._random.randint(0, self._cost)
        return self.now

    def real(self) -> int:
        self.now += self._random.randint(0, self._cost)
        return self.at(self.now)

    def at(self, mono: int) -> int:
        return mono + self.offset(mono)

    def sampled(self, *at: int) -> ClockBridge:
        bridge = ClockBridge()
        for self.now in at:
            bridge.add(sample_clock(self.mono, self.real))
        return bridge


def every(count: int) -> tuple[int, ...]:
    return tuple(k * SAMPLE_NS + MS for k in range(count))


def bent(offsets: list[int]) -> Callable[[int], int]:
    """``offsets[k]`` at 100 k ms, straight lines between."""

    def offset(mono: int) -> int:
        k, into = divmod(mono, SAMPLE_NS)
        a, b = offsets[min(k, len(offsets) - 1)], offsets[min(k + 1, len(offsets) - 1)]
        return EPOCH + a + (b - a) * into // SAMPLE_NS

    return offset


@given(
    st.lists(st.integers(-40_000, 40_000), min_size=3, max_size=8),
    st.lists(st.integers(MS, 2 * SAMPLE_NS), min_size=1, max_size=20),
    st.integers(0, 10_000),
    st.integers(0, 3_000),
)
def test_a_slow_drift_stays_within_the_bound(
    steps: list[int], stamps: list[int], seed: int, cost: int
) -> None:
    """Whatever slew the clock has, up to 400 ppm here, the error is never more than the stated bound."""
    offsets = [sum(steps[:k]) for k in range(len(steps))]
    clocks = Clocks(bent(offsets), seed, cost)
    # Samples lie where the slew changes, so that the offset is between theirs in between.
    bridge = clocks.sampled(*(k * SAMPLE_NS for k in range(len(offsets))))
    assert bridge.jumps == 0
    for t in stamps:
        found = bridge.mono(clocks.at(t))
        assert found is not None
        assert abs(found[0] - t) <= found[1] + 1
        assert found[1] <= 3 * cost + 40_000 + 10


@given(st.integers(-45_000, 45_000), st.floats(0, 1), st.integers(MS, 4 * SAMPLE_NS), st.integers(0, 1000))
def test_a_small_step_between_samples_stays_within_the_bound(
    step: int, where: float, t: int, seed: int
) -> None:
    """Too small for a jump: wherever between two samples the clock moved, the bound covers it."""
    when = round((2 + where) * SAMPLE_NS)
    clocks = Clocks(lambda mono: EPOCH + (step if mono >= when else 0), seed)
    bridge = clocks.sampled(*(k * SAMPLE_NS for k in range(5)))
    found = bridge.mono(clocks.at(t))
    if found is not None:  # None: read twice, or never
        assert abs(found[0] - t) <= found[1]


@given(st.integers(-400, 400), st.integers(0, 10 * SAMPLE_NS), st.integers(0, 1000))
def test_a_steady_slew_is_interpolated_away(ppm: int, t: int, seed: int) -> None:
    """With a steady slew the true error is that of the brackets only, also a little beyond the samples."""
    clocks = Clocks(lambda mono: EPOCH + mono * ppm // 1_000_000, seed)
    found = clocks.sampled(*every(8)).mono(clocks.at(t))
    assert found is not None
    inside = MS <= t <= 7 * SAMPLE_NS
    assert abs(found[0] - t) <= (200 if inside else found[1])


@given(
    st.one_of(st.integers(-(10**13), -3 * JUMP_NS), st.integers(3 * JUMP_NS, 10**13)),
    st.integers(0, 10 * SAMPLE_NS),
    st.integers(0, 5 * MS),
    st.integers(0, 1000),
)
def test_no_stamp_is_wrong_because_the_clock_was_set(step: int, t: int, late: int, seed: int) -> None:
    """Set by any amount, either way: the time of a read is right within its bound, or the user's."""
    when = 4 * SAMPLE_NS + 40 * MS
    clocks = Clocks(lambda mono: EPOCH + (step if mono >= when else 0), seed)
    bridge = clocks.sampled(*every(10))
    assert bridge.jumps == 1
    user = t + late
    found, bound, kernel = bridge.arrival(user, clocks.at(t))
    if kernel:
        assert abs(found - t) <= bound
    else:
        assert (found, bound) == (user, 0)
    spoilt = 4 * SAMPLE_NS + MS - 10_000 <= t <= 5 * SAMPLE_NS + MS + 10_000
    if spoilt:
        assert not kernel, "stamped between the samples around the jump"
    elif step > 0 or step < -OLDEST_NS:
        assert kernel, "elsewhere the kernel's stamp stands, unless the clock read the same time before"


def test_stamps_near_a_jump_are_not_believed_and_others_are() -> None:
    """A step of 200 µs spoils the 100 ms between the samples around it, not more."""
    when = 2 * SAMPLE_NS + 30 * MS
    clocks = Clocks(lambda mono: EPOCH + (200_000 if mono >= when else 0))
    bridge = clocks.sampled(*every(6))
    kernel = {t: bridge.arrival(t + MS, clocks.at(t))[2] for t in range(5 * MS, 450 * MS, 5 * MS)}
    spoilt = [t // MS for t, one in kernel.items() if not one]
    assert spoilt == list(range(205, 305, 5))


def test_a_time_that_the_clock_read_twice_is_decided_by_the_read() -> None:
    """Set back by an hour, both times of a stamp are an hour apart: only one can be this read's."""
    when = 2 * SAMPLE_NS + 30 * MS
    clocks = Clocks(lambda mono: EPOCH - (3_600_000 * MS if mono >= when else 0))
    bridge = clocks.sampled(*every(6))
    for t in (150 * MS, 420 * MS):
        assert bridge.arrival(t + MS, clocks.at(t)) == (
            pytest.approx(t, abs=200),
            pytest.approx(100, abs=100),
            True,
        )


def test_a_time_that_the_clock_read_twice_lately_is_not_believed() -> None:
    """Set back by 100 ms, two times are possible; the user's stamp stands in."""
    when = 2 * SAMPLE_NS + 30 * MS
    clocks = Clocks(lambda mono: EPOCH - (SAMPLE_NS if mono >= when else 0))
    bridge = clocks.sampled(*every(8))
    t = 3 * SAMPLE_NS + 10 * MS
    twin = t - SAMPLE_NS
    assert bridge.mono(clocks.at(t)) is None
    assert clocks.at(t) == EPOCH + twin
    assert bridge.arrival(t + 5, clocks.at(t)) == (t + 5, 0, False)


def test_a_stamp_that_cannot_be_its_reads_is_not_taken() -> None:
    """Neither one after the read nor one from long before it; and none is none."""
    bridge = Clocks(lambda mono: EPOCH).sampled(*every(5))
    user = 200 * MS
    assert bridge.arrival(user, 0) == (user, 0, False)
    assert bridge.arrival(user, EPOCH + user + MS) == (user, 0, False)
    assert bridge.arrival(user + OLDEST_NS + MS, EPOCH + user) == (user + OLDEST_NS + MS, 0, False)
    late, bound, kernel = bridge.arrival(user + 20 * MS, EPOCH + user)
    assert (kernel, abs(late - user) <= bound) == (True, True)


def test_no_arrival_is_after_its_read() -> None:
    """What the conversion's error puts behind the read counts as at the read."""
    bridge = ClockBridge()
    for k in range(3):
        bridge.add(ClockSample(k * SAMPLE_NS, EPOCH, 500))
    assert bridge.arrival(MS, EPOCH + MS + 300) == (MS, 501, True)


def test_beyond_the_samples_the_bound_grows() -> None:
    """The last offset holds on, give or take the fastest slew."""
    bridge = ClockBridge()
    assert bridge.mono(EPOCH) is None, "nothing is known yet"
    bridge.add(ClockSample(0, EPOCH, 50))
    assert bridge.mono(EPOCH + 100 * MS) == (100 * MS, 50 + 50_000 + 1)
    assert bridge.mono(EPOCH - 100 * MS) == (-100 * MS, 50 + 50_000 + 1)


def test_samples_come_in_order() -> None:
    """A sample from the past is refused."""
    bridge = ClockBridge()
    bridge.add(ClockSample(5, EPOCH, 1))
    with pytest.raises(ValueError, match="not after"):
        bridge.add(ClockSample(5, EPOCH, 1))


def test_a_clock_that_stands_still_has_jumped() -> None:
    """Samples so near that even a small step turns the clock back are no slew."""
    bridge = ClockBridge()
    bridge.add(ClockSample(0, EPOCH, 1))
    bridge.add(ClockSample(1000, EPOCH - 2000, 1))
    assert bridge.jumps == 1


def test_the_tightest_bracket_is_taken() -> None:
    """A reading that was held up says little; the best of the tries counts."""
    times = iter([0, 900, 1000, 1040, 2000, 9000])
    reals = iter([EPOCH + 500, EPOCH + 1021, EPOCH + 3000])
    assert sample_clock(lambda: next(times), lambda: next(reals), tries=3) == ClockSample(1020, EPOCH + 1, 20)


def test_the_real_clocks_convert_within_the_bound() -> None:
    """This machine's own clocks, bracketed tightly, agree with themselves."""
    bridge = ClockBridge()
    bridge.add(sample_clock())
    stamps = []
    for _ in range(50):
        a, real, b = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME), time.monotonic_ns()
        stamps.append((a, real, b))
    bridge.add(sample_clock())
    for (a, _, _), (later, _, _) in pairwise(stamps):
        assert a <= later
    for a, real, b in stamps:
        found = bridge.mono(real)
        if found is not None:  # else the clock was set just now
            assert a - found[1] <= found[0] <= b + found[1]
