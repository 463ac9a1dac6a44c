"""Arrivals keep to the law that their name states, for one load process and for eight (case C-14)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.arrivals import (
    ARRIVALS,
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
from loadgen.plan import Arrival, Load, Phases, Plan
from loadgen.plan_io import read_shots, write_plan
from loadgen.streams import stream
from loadgen.workload import Fixed
from results.stats.arrival_law import ArrivalFacts, arrival_facts, law_test

C14 = json.loads((Path(__file__).parent.parent / "cases" / "loadgen" / "C-14.json").read_text())
VARIANTS = {v["id"].partition("/")[2]: v for v in C14["variants"]}

Times = NDArray[np.int64]
S = 10**9
N, RATE, SPAN = 40_000, 100.0, 400.0
WINDOW = (0, 400 * S)
POISSON = VARIANTS["poisson"]["expect"]


def ns(seconds: Any) -> Times:
    return np.sort(np.rint(np.asarray(seconds) * S).astype(np.int64))


def within_case(facts: ArrivalFacts) -> bool:
    """The bounds that the case states for Poisson arrivals."""
    assert facts.gap_cv is not None
    assert facts.gap_lag1 is not None
    assert facts.dispersion_100ms is not None
    assert facts.dispersion_1s is not None
    return (
        POISSON["gap_cv"][0] <= facts.gap_cv <= POISSON["gap_cv"][1]
        and abs(facts.gap_lag1) <= POISSON["gap_lag1_abs_max"]
        and POISSON["idc_0.1s"][0] <= facts.dispersion_100ms <= POISSON["idc_0.1s"][1]
        and POISSON["idc_1s"][0] <= facts.dispersion_1s <= POISSON["idc_1s"][1]
    )


@pytest.mark.parametrize("seed", VARIANTS["poisson"]["inputs"]["seeds"])
def test_poisson_arrivals_pass_the_law_test(seed: int) -> None:
    """Gaps are exponential and independent, counts are Poisson, the rate is the asked one."""
    due = Poisson(RATE).due_times(SPAN, stream(seed, "test"))
    facts = arrival_facts(due, *WINDOW)
    assert within_case(facts), facts
    assert facts.rate == pytest.approx(RATE, rel=POISSON["mean_rate_rel_error_max"])
    assert law_test(due, *WINDOW, RATE).passed


def test_constant_arrivals_have_no_spread() -> None:
    """`constant` does not draw exponential gaps."""
    due = Constant(RATE).due_times(SPAN, stream(1, "test"))
    cv = arrival_facts(due, *WINDOW).gap_cv
    assert cv is not None
    assert cv <= VARIANTS["constant"]["expect"]["gap_cv_max"]
    assert law_test(due, *WINDOW, RATE, cv=0).passed
    assert not law_test(due, *WINDOW, RATE).passed
    drawn = Poisson(RATE).due_times(SPAN, stream(1, "test"))
    assert not law_test(drawn, *WINDOW, RATE, cv=0).passed


def plan_of(arrival: Arrival, slices: int) -> Plan:
    return Plan.make([Load("c", arrival, Fixed(4, 1))], Phases(window=SPAN), 1, slices)


def test_one_and_eight_load_processes_send_by_the_same_law(tmp_path: Path) -> None:
    """What eight processes read from the plan is, together, what one would send: nobody draws again."""
    sent = {}
    for slices in (1, 8):
        write_plan(plan_of(Poisson(RATE), slices), tmp_path / "plan.parquet")
        parts = [read_shots(tmp_path / "plan.parquet", k, prompts=False)[0] for k in range(slices)]
        share = len(sent[1]) / slices if sent else 0
        assert all(abs(len(part) - share) <= 1 for part in parts if sent)
        sent[slices] = np.sort(np.array([shot.due_ns for part in parts for shot in part], dtype=np.int64))
    assert np.array_equal(sent[1], sent[8])
    assert within_case(arrival_facts(sent[8], *WINDOW))
    assert law_test(sent[8], *WINDOW, RATE).passed


def test_processes_that_draw_with_one_seed_fail_the_law_test() -> None:
    """Negative control: each of eight draws its own eighth of the load, all with the same seed."""
    one = Poisson(RATE / 8).due_times(SPAN, stream(1, "worker"))
    due = np.sort(np.repeat(one, 8))
    assert arrival_facts(due, *WINDOW).rate == pytest.approx(RATE, rel=0.02)
    assert not law_test(due, *WINDOW, RATE).passed


def test_workers_that_draw_in_turn_from_one_seed_fail_the_law_test() -> None:
    """Negative control of the case: ten generators with one seed, in turn; the mean rate is right."""
    inputs, expect = (VARIANTS["same-seed-workers"][key] for key in ("inputs", "expect"))
    workers = inputs["workers"]
    gaps = stream(1, "worker").exponential(1 / RATE, N // workers)
    due = ns(np.cumsum(np.repeat(gaps, workers)))
    window = (0, int(due[-1]) + 1)
    facts = arrival_facts(due, *window)
    assert facts.gap_lag1 == pytest.approx(expect["gap_lag1_about"], abs=0.02)
    assert facts.dispersion_1s is not None
    assert facts.dispersion_1s >= expect["idc_1s_at_least"]
    assert not within_case(facts)
    failed = {c.name for c in law_test(due, *window, RATE).checks if c.p < 1e-6}
    assert {"gap_lag1", "dispersion_1s"} <= failed


def per_second_blocks(seed: int, at: float | None) -> Times:
    """A hundred arrivals in each second, one of them at the fixed place ``at`` of it."""
    places = stream(seed, "blocks").uniform(0, 1, (N // 100, 100))
    if at is not None:
        places[:, 0] = at
    return ns((places + np.arange(N // 100)[:, None]).ravel())


def test_per_second_blocks_fail_the_law_test() -> None:
    """Negative control: one arrival exactly on each whole second, which gap statistics hardly show."""
    due = per_second_blocks(1, at=0.0)
    share = float((due % S == 0).mean())
    assert share == pytest.approx(VARIANTS["second-boundary"]["expect"]["share_on_whole_second"])
    assert not law_test(due, *WINDOW, RATE).passed


@pytest.mark.parametrize("jitter_us", [0, 200])
@pytest.mark.parametrize("at", [0.0004, 0.2504, 0.7314])
def test_any_fixed_place_of_the_second_is_found(at: float, jitter_us: float) -> None:
    """Also inside a true Poisson process, at any place, and kept to roughly: 1 % of the arrivals give
    themselves away."""
    off = stream(1, "off").uniform(-jitter_us, jitter_us, 400) / 1e6
    fixed = ns(np.arange(400) + at + off)
    due = np.sort(np.concatenate([Poisson(99.0).due_times(SPAN, stream(1, "most")), fixed]))
    failed = {c.name for c in law_test(due, *WINDOW, RATE).checks if c.p < 1e-6}
    exact = set() if jitter_us else {"most_at_one_phase_of_a_second"}
    assert failed == exact | {"most_in_one_ms_of_a_second"}


def test_as_many_arrivals_in_each_second_are_found() -> None:
    """Evenly drawn inside each second is too even over all of them."""
    failed = {c.name for c in law_test(per_second_blocks(1, None), *WINDOW, RATE).checks if c.p < 1e-6}
    assert "dispersion_1s" in failed


def test_times_rounded_to_milliseconds_are_found() -> None:
    """A trace with coarse stamps is no Poisson process."""
    due = Poisson(RATE).due_times(SPAN, stream(1, "ms")) // 10**6 * 10**6
    assert not law_test(due, *WINDOW, RATE).passed


def test_a_conditioned_run_is_another_law_and_has_its_own_name() -> None:
    """Rescaled to its end, the first half has half of Poisson's count variance."""
    inputs, expect = (VARIANTS["conditioned"][key] for key in ("inputs", "expect"))
    n, runs = inputs["n"], range(inputs["runs"])

    def first_half(arrival: Arrival) -> float:
        halves = [int((arrival.due_times(1.0, stream(k, "half")) < S // 2).sum()) for k in runs]
        return float(np.var(halves))

    about = expect["first_half_count_variance_about"]
    assert first_half(ARRIVALS[expect["name"]](rate=100.0, n=n)) == pytest.approx(about, rel=0.1)  # type: ignore[call-arg]
    about = expect["poisson_first_half_count_variance_about"]
    assert first_half(ARRIVALS["poisson"](rate=100.0)) == pytest.approx(about, rel=0.1)  # type: ignore[call-arg]
    assert ARRIVALS[expect["name"]] is PoissonConditioned


def test_a_burst_is_reported_from_first_to_last_send() -> None:
    """C19: how long issuing it took."""
    inputs, expect = (VARIANTS["burst"][key] for key in ("inputs", "expect"))
    facts = arrival_facts(ns(np.array(inputs["starts_ms"]) / 1e3), 0, 10 * S)
    assert facts.n == expect["burst_n"]
    assert facts.first_to_last_s == pytest.approx(expect["burst_skew_ms"] / 1e3, abs=1e-9)


@pytest.mark.parametrize("cv", [0.2, 0.7, 2.0, 4.0])
def test_gamma_gaps_have_their_spread(cv: float) -> None:
    """The gaps are gamma, independent, of the stated cv; Poisson they are not."""
    due = Gamma(RATE, cv).due_times(SPAN, stream(1, "gamma"))
    assert law_test(due, *WINDOW, RATE, cv).passed
    assert not law_test(due, *WINDOW, RATE).passed
    assert not law_test(due, *WINDOW, RATE, cv * 1.1).passed


BENT: list[Any] = [
    Ramp(10.0, 190.0),
    Ramp(200.0, 0.0),
    Ramp(0.0, 120.0, over=100.0),
    Sine(RATE, 0.8, 60.0),
    Sine(RATE, 1.0, 7.3),
    Steps((Step(150.0, 100.0), Step(0.0, 50.0), Step(100.0, 250.0))),
]


@pytest.mark.parametrize("law", BENT, ids=repr)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_changing_rate_is_exact_on_its_own_clock(law: Any, seed: int) -> None:
    """On the axis of expected arrivals every one of them is a Poisson process; on the wall's it is not."""
    due = law.due_times(SPAN, stream(seed, "bent"))
    total = law.expected(SPAN)
    bent = ns(law.expected_by(due / S, SPAN) / RATE)
    assert law_test(bent, 0, round(total / RATE * S), RATE).passed
    assert not law_test(due, *WINDOW, total / SPAN).passed


def test_on_off_arrivals_are_poisson_while_on() -> None:
    """With the off times cut out, nothing but a Poisson process is left."""
    due = OnOff(RATE, 2.0, 3.0).due_times(SPAN, stream(1, "on"))
    on = due // (5 * S) * (2 * S) + due % (5 * S)
    assert law_test(on, 0, 160 * S, RATE).passed
    assert not law_test(due, *WINDOW, RATE * 2 / 5).passed
    drawn = OnOff(RATE, 2.0, 3.0, durations="exponential").due_times(SPAN, stream(1, "on"))
    dispersion = arrival_facts(drawn, *WINDOW).dispersion_1s
    assert dispersion is not None
    assert dispersion > 10
