"""Arrival processes: what each promises, for any of its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import (
    ARRIVALS,
    Burst,
    Concurrency,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    PoissonConditioned,
    Ramp,
    Sine,
    Step,
    Steps,
)
from loadgen.plan import Arrival, ClosedLoop
from loadgen.streams import stream

S = 10**9
rates, times = st.floats(0.1, 50.0), st.floats(0.05, 30.0)
steps = st.lists(st.builds(Step, rates, times), min_size=1, max_size=5).map(tuple)

LAWS: dict[str, st.SearchStrategy[Any]] = {
    "constant": st.builds(Constant, rates),
    "poisson": st.builds(Poisson, rates),
    "gamma": st.builds(Gamma, rates, st.floats(0.01, 20.0)),
    "poisson_conditioned": st.builds(PoissonConditioned, rates, st.none() | st.integers(1, 500)),
    "on_off": st.builds(OnOff, rates, times, times, rates, st.sampled_from(["fixed", "exponential"])),
    "ramp": st.builds(Ramp, rates | st.just(0.0), rates, st.none() | times)
    | st.builds(Ramp, rates, st.just(0.0)),
    "sine": st.builds(Sine, rates, st.floats(0.0, 1.0), times),
    "steps": st.builds(Steps, steps),
    "burst": st.builds(Burst, st.integers(1, 9), st.none() | times, times, st.just(0.0) | times),
    "concurrency": st.builds(Concurrency, st.integers(1, 90), times, st.just(0.0) | times),
}


@pytest.mark.parametrize("name", ARRIVALS)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), span=st.floats(0.001, 40.0), seed=st.integers(0, 2**32))
def test_every_process_keeps_its_contract(name: str, data: Any, span: float, seed: int) -> None:
    """Times are ns, sorted, inside [0, span) and the same for the same stream."""
    arrival = data.draw(LAWS[name])
    due = arrival.due_times(span, stream(seed, name))
    assert due.dtype == np.int64
    assert (np.diff(due) >= 0).all()
    assert ((due >= 0) & (due < round(span * S))).all()
    assert np.array_equal(due, arrival.due_times(span, stream(seed, name)))
    assert math.isfinite(arrival.expected(span))


@pytest.mark.parametrize(
    "arrival",
    [
        Constant(7.0),
        Poisson(7.0),
        Gamma(7.0, 0.3),
        Gamma(7.0, 4.0),
        PoissonConditioned(7.0),
        OnOff(20.0, 1.5, 3.0, 1.0),
        OnOff(20.0, 1.5, 3.0, 1.0, "exponential"),
        Ramp(2.0, 12.0),
        Ramp(12.0, 0.0),
        Ramp(0.0, 9.0, over=4.0),
        Sine(7.0, 1.0, 8.0),
        Sine(7.0, 0.5, 0.7),
        Steps((Step(3.0, 2.0), Step(0.0, 1.0), Step(9.0, 4.0))),
        Burst(3, every=2.0, at=1.0, over=0.5),
    ],
    ids=repr,
)
def test_the_mean_count_is_the_expected_one(arrival: Arrival) -> None:
    """From the first second on: no law is short of arrivals at its start (5 standard errors)."""
    for span in (2.0, 10.0):
        counts = np.array([len(arrival.due_times(span, stream(k, "count"))) for k in range(800)])
        tolerance = 5 * counts.std() / math.sqrt(len(counts)) + 1
        if counts.std() > 0:
            tolerance -= 1
        assert abs(counts.mean() - arrival.expected(span)) <= tolerance


def test_a_steady_gamma_looks_the_same_at_any_time() -> None:
    """Clumped arrivals begin with the rest of a gap: the mean count of the first second is no other than
    that of the last."""
    law = Gamma(5.0, 3.0)
    due = np.concatenate([law.due_times(4.0, stream(k, "steady")) for k in range(6000)])
    per_second = np.bincount(due // S, minlength=4) / 6000
    assert per_second == pytest.approx([5.0] * 4, rel=0.1)


def test_one_process_does_not_see_the_end_of_the_span() -> None:
    """A longer span adds arrivals behind the others; only laws that are defined by the span differ."""
    for law in (Constant(7.0), Poisson(7.0), Gamma(7.0, 2.0), Burst(3, every=2.0)):
        short, long = (law.due_times(span, stream(1, "x")) for span in (5.0, 5.1))
        assert np.array_equal(short, long[: len(short)])


def test_a_burst_is_all_at_once_and_again_after_its_interval() -> None:
    """`size` arrivals at 0, `every`, 2 `every`; with `over` they are spread but stay inside it."""
    rng = stream(1, "burst")
    assert Burst(3, every=2.0).due_times(5.0, rng).tolist() == [t * S for t in (0, 0, 0, 2, 2, 2, 4, 4, 4)]
    assert Burst(2, at=1.0).due_times(5.0, rng).tolist() == [S] * 2
    spread = Burst(50, at=1.0, over=0.5).due_times(5.0, rng)
    assert len(set(spread.tolist())) == 50
    assert S <= spread.min() < spread.max() <= 1.5 * S


def test_a_conditioned_run_has_its_number_and_ends_on_time() -> None:
    """All n arrivals are there; the last comes at n/rate, which may be the last ns of the span."""
    due = PoissonConditioned(10.0).due_times(4.0, stream(1, "c"))
    assert (len(due), due[-1]) == (40, 4 * S - 1)
    due = PoissonConditioned(10.0, n=25).due_times(4.0, stream(1, "c"))
    assert (len(due), due[-1]) == (25, 2.5 * S)
    assert len(PoissonConditioned(0.1).due_times(4.0, stream(1, "c"))) == 0


@pytest.mark.parametrize(
    "arrival",
    [
        Constant(1e-15),
        Poisson(1e-15),
        Gamma(1e-15, 2.0),
        PoissonConditioned(1e-15, n=10),
        Ramp(0.0, 1e-15),
        Sine(1e-15, 0.5, 3.0),
        Steps((Step(1e-15, 2.0),)),
    ],
    ids=repr,
)
def test_what_comes_in_a_million_years_is_not_due_now(arrival: Arrival) -> None:
    """A time that does not fit into 64 bits of ns lies behind the span, never before it."""
    due = arrival.due_times(11.0, stream(1, "rare"))
    assert due.tolist() in ([], [0])


def test_on_and_off_are_told_apart() -> None:
    """At rate 0 nothing arrives while it is off; fixed durations begin with a full on."""
    due = OnOff(50.0, 2.0, 3.0).due_times(20.0, stream(1, "on"))
    assert (due % (5 * S) < 2 * S).all()
    assert len(np.unique(due // (5 * S))) == 4


def test_exponential_durations_are_more_scattered_than_fixed_ones() -> None:
    """Only their lengths differ: the variance of the count shows it."""
    spread = {
        durations: np.var(
            [len(OnOff(20.0, 1.0, 1.0, 0.0, durations).due_times(20.0, stream(k, "d"))) for k in range(500)]
        )
        for durations in ("fixed", "exponential")
    }
    # Poisson alone: 200. The rate's own covariance is 100 exp(-2 t): integrated twice over 20 s.
    assert spread["fixed"] == pytest.approx(200, rel=0.25)
    assert spread["exponential"] == pytest.approx(200 + 200 * (20 / 2 - 1 / 4), rel=0.25)


def test_after_the_last_step_nothing_arrives() -> None:
    """Steps hold for their time, pauses too."""
    due = Steps((Step(20.0, 2.0), Step(0.0, 3.0), Step(40.0, 1.0))).due_times(60.0, stream(1, "s"))
    seconds = np.unique(due // S).tolist()
    assert seconds == [0, 1, 5]


def test_users_of_a_closed_loop_begin_one_after_the_other() -> None:
    """Evenly over the ramp; without one, all at once. Who would begin after the span never does."""
    assert Concurrency(4, ramp_up=2.0).due_times(9.0, stream(1, "u")).tolist() == [
        0,
        S // 2,
        S,
        3 * S // 2,
    ]
    assert Concurrency(3).due_times(9.0, stream(1, "u")).tolist() == [0, 0, 0]
    assert len(Concurrency(10, ramp_up=10.0).due_times(4.0, stream(1, "u"))) == 4


def test_only_a_closed_loop_says_that_it_waits() -> None:
    """Whoever plans or judges can tell by the protocol."""
    loops = {name for name, law in ARRIVALS.items() if issubclass(law, Concurrency)}
    assert loops == {"concurrency"}
    assert isinstance(Concurrency(1), ClosedLoop)
    for arrival in (Constant(1.0), Poisson(1.0), Burst(1), Gamma(1.0, 1.0), OnOff(1.0, 1.0, 1.0)):
        assert not isinstance(arrival, ClosedLoop)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: Constant(bad),
        lambda bad: Poisson(bad),
        lambda bad: Gamma(bad, 1.0),
        lambda bad: Gamma(1.0, bad),
        lambda bad: PoissonConditioned(bad),
        lambda bad: OnOff(bad, 1.0, 1.0),
        lambda bad: OnOff(1.0, 1.0, bad),
        lambda bad: OnOff(1.0, bad, 1.0),
        lambda bad: Ramp(bad, bad),
        lambda bad: Ramp(1.0, 2.0, over=bad),
        lambda bad: Sine(bad, 0.5, 1.0),
        lambda bad: Sine(1.0, 0.5, bad),
        lambda bad: Steps((Step(bad, 1.0),)),
        lambda bad: Step(1.0, bad),
        lambda bad: Burst(1, every=bad),
        lambda bad: Concurrency(bad),
        lambda bad: Concurrency(1, requests=bad),
    ],
)
@pytest.mark.parametrize("bad", [0, -1.0, INF, NAN])
def test_what_gives_no_arrivals_is_refused(make: Callable[[Any], Arrival], bad: float) -> None:
    """Nothing arrives at rate 0, for no time or at no number; whoever wants no load leaves the line out."""
    with pytest.raises(ValueError, match=r"must (be|have)"):
        make(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: OnOff(1.0, 1.0, 1.0, bad),
        lambda bad: Ramp(bad, 2.0),
        lambda bad: Sine(1.0, bad, 1.0),
        lambda bad: Burst(1, at=bad),
        lambda bad: Burst(1, over=bad),
        lambda bad: Concurrency(1, think=bad),
        lambda bad: Concurrency(1, ramp_up=bad),
    ],
)
@pytest.mark.parametrize("bad", [-0.1, INF, NAN])
def test_what_may_be_zero_may_still_not_be_anything(make: Callable[[Any], Arrival], bad: float) -> None:
    """A pause or a delay of 0 has a meaning; a negative or infinite one has none."""
    with pytest.raises(ValueError, match="must be 0"):
        make(bad)


@pytest.mark.parametrize(
    "arrival",
    [
        Constant(1e9),
        Gamma(1e9, 1.0),
        PoissonConditioned(1.0, n=10**10),
        OnOff(1.0, 1e-9, 1e-9),
        OnOff(1.0, 1e-9, 1e-9, durations="exponential"),
        Ramp(0.0, 1e9),
        Sine(1e9, 0.1, 1.0),
        Steps((Step(1e9, 60.0),)),
        Burst(10**10),
        Burst(1, every=1e-9),
        Concurrency(10**10),
        Concurrency(1, requests=10**10),
    ],
    ids=repr,
)
def test_what_no_plan_could_hold_shows_before_it_is_drawn(arrival: Arrival) -> None:
    """`expected` is asked first: it counts all that would be held, not only arrivals."""
    assert arrival.expected(60.0) > 5_000_000
