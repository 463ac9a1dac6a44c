"""What is reported of arrivals, and how often a law test is wrong (MEASUREMENT C18, C19)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from results.stats.arrival_law import ArrivalFacts, arrival_facts, law_test

S = 10**9


def facts_of(*seconds: float, a: float = 0.0, b: float = 10.0) -> ArrivalFacts:
    times = np.rint(np.array(seconds) * S).astype(np.int64)
    return arrival_facts(times, round(a * S), round(b * S))


def poisson(rate: float, span: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Drawn the other way round: a Poisson number of arrivals, each anywhere."""
    return np.sort(rng.integers(0, round(span * S), rng.poisson(rate * span)))


def test_facts_of_a_few_arrivals() -> None:
    """By hand: four arrivals, three gaps of 1, 2 and 3 s."""
    found = facts_of(1.0, 2.0, 4.0, 7.0)
    assert (found.n, found.rate, found.peak_1s, found.first_to_last_s) == (4, 0.4, 1, 6.0)
    assert found.gap_cv == pytest.approx(math.sqrt(2 / 3) / 2)
    assert found.gap_lag1 == pytest.approx(0.0)
    # One arrival in 4 of 10 bins of 1 s, and of 100 bins of 0.1 s.
    assert found.dispersion_1s == pytest.approx(0.4 * 0.6 * 10 / 9 / 0.4)
    assert found.dispersion_100ms == pytest.approx(0.04 * 0.96 * 100 / 99 / 0.04)
    assert found.reasons == {}


def test_only_the_window_counts() -> None:
    """[a, b): arrivals before it and at its end are others', bins begin at a, and a last part of one is
    left out."""
    found = facts_of(1.0, 2.5, 3.0, 4.5, 5.0, a=2.5, b=5.0)
    assert (found.n, found.rate) == (3, 1.2)
    assert found.dispersion_1s == 2.0  # 2 and 0 in the two whole bins


def test_the_peak_is_that_of_any_second() -> None:
    """A bin's edge does not cut a burst in two."""
    assert facts_of(1.8, 1.9, 2.1, 2.7, 2.8).peak_1s == 4


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (
            facts_of(),
            {
                "gap_cv": "n<3",
                "gap_lag1": "n<3",
                "dispersion_100ms": "no arrivals",
                "dispersion_1s": "no arrivals",
                "first_to_last_s": "n<2",
            },
        ),
        (facts_of(1.0, 2.0), {"gap_cv": "n<3", "gap_lag1": "n<3"}),
        (facts_of(1.0, 1.0, 1.0), {"gap_cv": "all at once", "gap_lag1": "all at once"}),
        (facts_of(1.0, 2.0, 3.0), {"gap_lag1": "the gaps are all equal"}),
        (facts_of(1.0, 1.1, 1.3, b=1.5), {"dispersion_1s": "fewer than two bins"}),
    ],
)
def test_what_is_undefined_is_none_with_its_reason(found: ArrivalFacts, reasons: dict[str, str]) -> None:
    """Never 0 and never NaN."""
    assert found.reasons == reasons
    assert {name for name, value in asdict(found).items() if value is None} == set(reasons)


def test_an_empty_window_has_no_rate() -> None:
    """A span of length zero divides nothing."""
    found = facts_of(1.0, a=5.0, b=5.0)
    assert (found.rate, found.reasons["rate"]) == (None, "an empty window")


@settings(deadline=None)
@given(st.lists(st.floats(0, 20), max_size=60), st.floats(0, 10), st.floats(0, 10))
def test_facts_are_numbers_that_json_takes(seconds: list[float], a: float, width: float) -> None:
    """Whatever arrived: no NaN, no infinity, no numpy type, None exactly where a reason is."""
    found = asdict(facts_of(*sorted(seconds), a=a, b=a + width))
    json.dumps(found, allow_nan=False)
    assert {name for name, value in found.items() if value is None} == set(found["reasons"])


@pytest.mark.parametrize(("rate", "span"), [(100.0, 20.0), (5.0, 100.0), (2000.0, 2.0)])
def test_the_law_test_is_wrong_as_often_as_it_says(rate: float, span: float) -> None:
    """Of 400 true Poisson processes at most the stated 5 % fail, within 3 standard errors; not none."""
    rng = np.random.default_rng(1)
    runs = 400
    failed = sum(
        not law_test(poisson(rate, span, rng), 0, round(span * S), rate, false_alarm=0.05).passed
        for _ in range(runs)
    )
    assert 1 <= failed <= runs * 0.05 + 3 * math.sqrt(runs * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (lambda rng: poisson(105.0, 400.0, rng), "n"),
        (lambda rng: np.repeat(poisson(50.0, 400.0, rng), 2), "gap_cv"),
        (lambda rng: np.sort(np.arange(40_000) * S // 100 + rng.integers(0, S // 100, 40_000)), "gap_shape"),
        (
            lambda rng: (np.sqrt(np.sort(rng.random(40_000))) * 400 * S).astype(np.int64),
            "evenly_over_window",
        ),
        (
            lambda rng: np.sort(np.concatenate([poisson(99.6, 400.0, rng), rng.integers(S, 2 * S, 160)])),
            "dispersion_1s",
        ),
        (lambda rng: np.full(40_000, S), "largest_gap_ns"),
    ],
)
def test_each_check_finds_what_it_is_for(wrong: object, name: str) -> None:
    """Another rate, pairs, jitter around a grid, a ramp, a clump, all at once."""
    due = wrong(np.random.default_rng(1))  # type: ignore[operator]
    found = law_test(due, 0, 400 * S, 100.0)
    assert found.passed is False
    assert name in {check.name for check in found.checks if check.p < 1e-4}


def test_too_few_arrivals_give_no_verdict() -> None:
    """Neither passed nor failed, with the reason."""
    found = law_test(np.arange(99) * S, 0, 100 * S, 1.0)
    assert (found.passed, found.reason) == (None, "n<100")
