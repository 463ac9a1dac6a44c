"""How far a trace is played: whatever a seed can draw was checked before."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import (
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
from loadgen.plan import Arrival
from loadgen.streams import stream
from loadgen.tracefiles import Trace
from loadgen.tracefiles.reach import most_sessions

BOUND: list[Arrival] = [
    Constant(3.3),
    Burst(size=7, every=0.9, over=0.2),
    PoissonConditioned(4.0),
    Concurrency(users=3, ramp_up=1.0, requests=4),
    Poisson(5.0),
    Ramp(0.0, 9.0),
    Sine(rate=4.0, amplitude=0.9, period=3.0),
    Steps((Step(9.0, 2.0), Step(0.0, 1.0))),
    OnOff(rate_on=20.0, on_for=0.5, off_for=2.0),
]
UNBOUND: list[Arrival] = [
    Gamma(2.0, cv=10.0),
    Gamma(2.0, cv=0.5),
    OnOff(rate_on=50.0, on_for=1.0, off_for=30.0, durations="exponential"),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BOUND), st.floats(0.01, 40.0), st.integers(0, 2**32))
def test_no_seed_starts_more_sessions_than_the_bound(arrival: Arrival, span: float, seed: int) -> None:
    """Of every law that has one."""
    most = most_sessions(arrival, span)
    assert most is not None
    assert len(arrival.due_times(span, stream(seed, "x"))) <= most


@pytest.mark.parametrize("arrival", UNBOUND, ids=repr)
def test_of_a_law_in_clumps_every_session_is_checked(trace: Callable[..., Trace], arrival: Arrival) -> None:
    """A long prompt far behind the mean count may be sent: some seed draws that many."""
    rows = ["num_prefill_tokens,num_decode_tokens", *["5,6"] * 299, "128000,5"]
    made = trace("vidur", "\n".join(rows), arrival=arrival)
    seen = made.misfits(10.0, lambda given, asked: ["long"] if given > 1000 else [])
    assert [line for _, line, _ in seen] == [301]


def test_behind_the_bound_nothing_is_too_long(trace: Callable[..., Trace]) -> None:
    """What cannot come is no error; a law with a bound keeps it also where the trace is thinned."""
    rows = ["num_prefill_tokens,num_decode_tokens", *["5,6"] * 299, "128000,5"]
    for arrival in (Constant(2.0), Poisson(2.0)):
        made = trace("vidur", "\n".join(rows), arrival=arrival)
        assert made.misfits(10.0, lambda given, asked: ["long"] if given > 1000 else []) == []
    assert json.dumps(made.facts(10.0))
