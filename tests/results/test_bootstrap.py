"""The moving-block bootstrap (MEASUREMENT C32)."""

import numpy as np

from results.bootstrap import Blocks, draw, mean_interval, quantile_interval, ratio_interval


def naive(values: np.ndarray, blocks: Blocks, q: float) -> tuple[float, float]:
    """The same draws, each put together and sorted."""
    drawn = [np.concatenate([values[s : s + blocks.length] for s in row]) for row in blocks.starts]
    quantiles = np.array([np.sort(d)[int(np.ceil(q * len(d) - 1e-9)) - 1] for d in drawn])
    ordered = np.sort(quantiles)
    at = [int(np.ceil(share * len(ordered))) - 1 for share in (0.025, 0.975)]
    return float(ordered[at[0]]), float(ordered[at[1]])


def test_inverted_distribution_equals_the_naive_one() -> None:
    """Counting and searching gives what putting 300 draws together gives."""
    values = np.random.default_rng(1).exponential(size=57)
    blocks = draw(len(values), draws=300)
    for q in (0.5, 0.9):
        found = quantile_interval(values, np.arange(57), 57, q, blocks)
        assert (found.low, found.high) == naive(values, blocks, q)


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
