"""Quantiles, their support and their exact intervals (MEASUREMENT C30, C31)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from results.stats.quantiles import (
    binomial_interval,
    dependent,
    order_statistics,
    quantile,
    samples_needed,
    supported,
    why_unsupported,
)

floats = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(floats, min_size=2, max_size=300), st.sampled_from([0.1, 0.5, 0.9, 0.95, 0.99, 0.999]))
def test_quantile_is_numpys_linear_one_or_none(values: list[float], q: float) -> None:
    """A supported quantile equals numpy's linear method; an unsupported one is None."""
    found = quantile(np.sort(np.array(values)), q)
    if len(values) * min(q, 1 - q) >= 1 - 1e-9:
        assert found == pytest.approx(np.quantile(values, q, method="linear"), rel=1e-9, abs=1e-6)
    else:
        assert found is None


@pytest.mark.parametrize(("q", "n"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_support_starts_at_one_expected_sample_beyond(q: float, n: int) -> None:
    """Support begins exactly at n*min(q, 1-q) = 1, although 1-0.9 is not a binary fraction."""
    assert supported(n, q)
    assert not supported(n - 1, q)
    assert samples_needed(q) == n


def test_why_unsupported_names_the_side() -> None:
    """The reason says which tail is too thin."""
    assert why_unsupported(90, 0.99) == "n(1-q)<1"
    assert why_unsupported(5, 0.1) == "nq<1"
    assert why_unsupported(0, 0.5) == "no samples"


def brute_force(n: int, q: float) -> tuple[int, int]:
    low = max(k for k in range(n + 1) if k == 0 or binom.cdf(k - 1, n, q) <= 0.025)
    high = min(k for k in range(1, n + 2) if k == n + 1 or binom.sf(k - 1, n, q) <= 0.025)
    return low, high


@pytest.mark.parametrize("q", [0.05, 0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("n", [1, 2, 5, 10, 59, 60, 100, 299, 368, 369, 1000])
def test_order_statistics_equal_the_definition(n: int, q: float) -> None:
    """The ranks are those that trying every rank finds."""
    assert order_statistics(n, q) == brute_force(n, q)


def test_interval_has_no_upper_bound_while_samples_are_few() -> None:
    """With 100 samples nothing bounds p99 from above; 368 do."""
    assert binomial_interval(np.arange(100.0), 0.99).high is None
    assert binomial_interval(np.arange(400.0), 0.99).high is not None
    assert binomial_interval(np.arange(100.0), 0.99).low == 96.0


def test_infinite_samples_never_become_nan() -> None:
    """Between a finite and an infinite neighbour the quantile is infinite, at a finite one finite."""
    values = np.array([1.0] * 8 + [math.inf] * 2)
    assert quantile(values, 0.5) == 1.0
    assert quantile(values, 0.85) == math.inf
    assert quantile(values, 0.9) == math.inf


def test_dependence_sees_a_drift_and_not_noise() -> None:
    """Lag-1 autocorrelation tells a random walk from independent draws; constants are independent."""
    noise = np.random.default_rng(3).normal(size=400)
    assert not dependent(noise)
    assert dependent(np.cumsum(noise))
    assert not dependent(np.ones(50))
    assert not dependent(np.array([1.0, 2.0]))
