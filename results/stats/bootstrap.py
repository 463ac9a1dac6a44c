"""Moving-block bootstrap over requests in order of their due times (MEASUREMENT C32).

A sample may be one value per request, or many (every token gap). Either way requests are what is drawn:
blocks of neighbouring requests, so that what a slow moment did to several of them stays together.

For quantiles no draw is ever put together. With W[draw, request] = how often a request was drawn and
C[request, k] = how many of its samples lie at or below the k-th value of a grid, W C says how many of each
draw's samples do, and the first k that reaches the share q is that draw's quantile. All numbers are small
integers, so float32 products are exact, on any machine and in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from results.stats.quantiles import Interval, Values

DRAWS = 2000
SEED = 0x48454144
"""Stored in every summary; the draws of a run are always the same."""
GRID = 512
"""Up to so many samples quantile bounds are exact; beyond, they are samples of a grid, fine in the tails."""
MOST = 4096
"""Beyond so many requests, equal groups of neighbours are drawn instead (blocks get no shorter)."""

AT_ONCE = 2_000_000
FEWEST = 3
"""Of two requests there is one block, so that all draws are the same: that is no interval of width 0."""

Index = NDArray[np.int64]
Owners = NDArray[np.integer[Any]]
Counts = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Drawn blocks over n requests: ``starts`` has shape [draws, blocks]; each block is ``length`` long."""

    starts: NDArray[np.int32]
    length: int
    n: int

    def sums(self, per_request: Values) -> Values:
        """Sum of ``per_request`` over each draw, shape [draws]."""
        prefix = np.concatenate([[0.0], np.cumsum(per_request, dtype=np.float64)])
        drawn = np.empty(len(self.starts))
        some = max(1, AT_ONCE // max(1, self.starts.shape[1]))
        for part in _parts(len(self.starts), some):
            starts = self.starts[part]
            drawn[part] = (prefix[starts + self.length] - prefix[starts]).sum(axis=1)
        return drawn

    def weights(self) -> Counts:
        """How often each draw has each request, shape [draws, n]."""
        found = np.empty((len(self.starts), self.n), dtype=np.float32)
        for part in _parts(len(self.starts), max(1, AT_ONCE // (self.n + 1))):
            found[part] = self._weights(self.starts[part])
        return found

    def _weights(self, starts: NDArray[np.int32]) -> Index:
        draws, width = len(starts), self.n + 1
        row = np.arange(draws)[:, None] * width
        begins = np.bincount((row + starts).ravel(), minlength=draws * width)
        ends = np.bincount((row + starts + self.length).ravel(), minlength=draws * width)
        weights: Index = np.cumsum((begins - ends).reshape(draws, width)[:, :-1], axis=1)
        return weights


@lru_cache(maxsize=2)
def draw(n: int, draws: int = DRAWS, seed: int = SEED) -> Blocks:
    """Blocks of ceil(n^(1/3)) requests, as many as cover n. Needs n >= 1."""
    length = math.ceil(round(n ** (1 / 3), 9))
    count = math.ceil(n / length)
    starts = np.random.default_rng(seed).integers(0, n - length + 1, size=(draws, count))
    return Blocks(starts.astype(np.int32), length, n)


@lru_cache(maxsize=4)
def _weights(n: int) -> Counts:
    return draw(n).weights()


def ratio_interval(over: Values, under: Values) -> Interval:
    """95 % of sum(over)/sum(under), both given per request in due order."""
    if len(over) < FEWEST:
        return Interval(None, None)
    blocks = draw(len(over))
    totals, bases = blocks.sums(over), blocks.sums(under)
    drawn = totals[bases > 0] / bases[bases > 0]
    if not len(drawn):
        return Interval(None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(low), float(high))


def mean_interval(values: Values, owners: Owners, n: int) -> Interval:
    """95 % of the mean of ``values``; ``owners[i]`` in 0..n-1 says whose value i is."""
    return ratio_interval(_sums(owners, n, values), _sums(owners, n))


def _sums(owners: Owners, n: int, values: Values | None = None) -> Values:
    """Per request the sum of its values, or their number."""
    total = np.zeros(n)
    for part in _parts(len(owners)):
        weights = None if values is None else values[part]
        total += np.bincount(owners[part], weights=weights, minlength=n)
    return total


def _parts(n: int, size: int = AT_ONCE) -> Iterator[slice]:
    """Some at a time: what numpy makes of them on the way takes several times their room."""
    return (slice(at, at + size) for at in range(0, n, size))


@dataclass(frozen=True, slots=True)
class QuantileDraws:
    """The drawn samples of one metric, ready for any quantile."""

    grid: Values
    below: Counts
    """[draws, k]: samples of a draw at or below grid[k]."""

    @staticmethod
    def of(
        values: Values,
        owners: Owners,
        n: int,
        weights: Counts | None = None,
        ordered: Values | None = None,
    ) -> QuantileDraws | None:
        """``ordered``: the values, sorted, where that is at hand. None if there is nothing to draw from."""
        if n < FEWEST or len(values) == 0:
            return None
        group = math.ceil(n / MOST)
        n = math.ceil(n / group)
        grid = np.unique((np.sort(values) if ordered is None else ordered)[_grid(len(values))])
        counts = np.zeros(n * len(grid), dtype=np.int64)
        for part in _parts(len(values)):
            cell = np.searchsorted(grid, values[part], side="left")
            counts += np.bincount(owners[part] // group * len(grid) + cell, minlength=len(counts))
        per_request = np.cumsum(counts.reshape(n, len(grid)), axis=1).astype(np.float32)
        drawn = _weights(n) if weights is None else weights
        return QuantileDraws(grid, drawn @ per_request)

    def interval(self, q: float) -> Interval:
        """95 % of the quantile q; bounds are sample values."""
        reached = self.below >= q * self.below[:, -1:] - 1e-3
        first = np.sort(reached.argmax(axis=1))
        low, high = (math.ceil(share * len(first)) - 1 for share in (0.025, 0.975))
        return Interval(float(self.grid[first[low]]), float(self.grid[first[high]]))


def _grid(n: int) -> Index:
    """Ranks 0..n-1, all of them if few; else evenly spread, and closer and closer at both ends."""
    if n <= GRID:
        return np.arange(n)
    even = np.linspace(0, n - 1, GRID // 2)
    tail = np.geomspace(1, n / 4, GRID // 4) - 1
    ranks = np.concatenate([even, tail, n - 1 - tail])
    return np.unique(np.round(ranks).astype(np.int64))
