"""The moving-block bootstrap (MEASUREMENT C32)."""

import numpy as np
import pytest

from results.stats.bootstrap import Blocks, QuantileDraws, draw, mean_interval, ratio_interval


def naive(values: np.ndarray, blocks: Blocks, q: float) -> tuple[float, float]:
    """The same draws, each put together and sorted."""
    drawn = [np.concatenate([values[s : s + blocks.length] for s in row]) for row in blocks.starts]
    quantiles = np.array([np.sort(d)[int(np.ceil(q * len(d) - 1e-9)) - 1] for d in drawn])
    ordered = np.sort(quantiles)
    at = [int(np.ceil(share * len(ordered))) - 1 for share in (0.025, 0.975)]
    return float(ordered[at[0]]), float(ordered[at[1]])


def test_counting_equals_putting_draws_together() -> None:
    """Products of counts give what 300 draws give that are really made."""
    values = np.random.default_rng(1).exponential(size=57)
    blocks = draw(57, draws=300)
    draws = QuantileDraws.of(values, np.arange(57), 57, blocks.weights())
    assert draws is not None
    for q in (0.1, 0.5, 0.9):
        found = draws.interval(q)
        assert (found.low, found.high) == naive(values, blocks, q)


def test_a_grid_is_close_to_all_samples() -> None:
    """Beyond the grid's size the bounds move by less than a fifth of the interval."""
    values = np.random.default_rng(9).exponential(size=3000)
    owners = np.arange(3000) // 10
    draws = QuantileDraws.of(values, owners, 300)
    assert draws is not None
    for q in (0.5, 0.99):
        found = draws.interval(q)
        assert found.low is not None
        assert found.high is not None
        exact = np.quantile(values, q)
        assert found.low <= exact <= found.high
        spread = np.sqrt(q * (1 - q) / 3000) / (1 - q)
        assert (found.high - found.low) / (2 * 1.96 * spread) == pytest.approx(1, abs=0.35)


def test_weights_and_sums_agree() -> None:
    """Weights say how often a request was drawn: weighted totals equal the sums of the blocks."""
    blocks = draw(40, draws=50)
    values = np.arange(40.0)
    np.testing.assert_allclose(blocks.weights() @ values, blocks.sums(values))


def test_block_length_is_the_cube_root() -> None:
    """Blocks of ceil(n^(1/3)) requests cover n."""
    assert draw(27).length == 3
    assert draw(28).length == 4
    assert draw(1000).length == 10
    assert draw(1).starts.shape == (2000, 1)


def test_mean_interval_covers_like_the_normal_one() -> None:
    """On independent data the interval is about +-1.96 standard errors."""
    values = np.random.default_rng(2).normal(10, 2, 1000)
    found = mean_interval(values, np.arange(1000), 1000)
    assert found.low is not None
    assert found.high is not None
    assert abs((found.high - found.low) / (2 * 1.96 * 2 / np.sqrt(1000)) - 1) < 0.15


def test_pooled_samples_are_drawn_by_request() -> None:
    """Many equal samples of a few requests do not make the interval narrow."""
    per_request = np.random.default_rng(4).normal(10, 2, 40)
    values, owners = np.repeat(per_request, 50), np.repeat(np.arange(40), 50)
    alone = mean_interval(per_request, np.arange(40), 40)
    pooled = mean_interval(values, owners, 40)
    assert pooled.low is not None
    assert alone.low is not None
    np.testing.assert_allclose(pooled.low, alone.low)


def test_same_seed_same_interval_and_one_request_has_none() -> None:
    """Draws are fixed; one request bounds nothing."""
    values = np.arange(30.0)
    assert ratio_interval(values, np.ones(30)) == ratio_interval(values, np.ones(30))
    assert mean_interval(np.array([1.0]), np.array([0]), 1).low is None
    assert QuantileDraws.of(np.array([1.0]), np.array([0]), 1) is None
