"""Moving-block bootstrap over requests in order of their due times (MEASUREMENT C32).

A sample may be one value per request, or many (every token gap). Either way requests are what is drawn:
blocks of neighbouring requests, so that what a slow moment did to several of them stays together.

Quantiles are not computed 2000 times. The bootstrap distribution of a quantile is inverted instead:
its 2.5 % point is the smallest sample x for which "at least a share q of the draw is <= x" holds in more
than 2.5 % of the draws. Counting needs prefix sums only, and a binary search finds x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from results.quantiles import Interval, Values

DRAWS = 2000
SEED = 0x48454144
"""Stored in every summary; the draws of a run are always the same."""

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Drawn blocks over n requests: ``starts`` has shape [draws, blocks]; each block is ``length`` long."""

    starts: Index
    length: int

    def sums(self, per_request: Values) -> Values:
        """Sum of ``per_request`` over each draw, shape [draws]."""
        prefix = np.concatenate([[0.0], np.cumsum(per_request, dtype=np.float64)])
        drawn: Values = (prefix[self.starts + self.length] - prefix[self.starts]).sum(axis=1)
        return drawn


def draw(n: int, draws: int = DRAWS, seed: int = SEED) -> Blocks:
    """Blocks of ceil(n^(1/3)) requests, as many as cover n. Needs n >= 1."""
    length = math.ceil(round(n ** (1 / 3), 9))
    count = math.ceil(n / length)
    starts = np.random.default_rng(seed).integers(0, n - length + 1, size=(draws, count))
    return Blocks(starts.astype(np.int64), length)


def ratio_interval(over: Values, under: Values, blocks: Blocks | None = None) -> Interval:
    """95 % of sum(over)/sum(under), both given per request in due order."""
    if len(over) < 2:
        return Interval(None, None)
    blocks = blocks or draw(len(over))
    totals, bases = blocks.sums(over), blocks.sums(under)
    drawn = totals[bases > 0] / bases[bases > 0]
    if not len(drawn):
        return Interval(None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(low), float(high))


def mean_interval(values: Values, owners: Index, n: int, blocks: Blocks | None = None) -> Interval:
    """95 % of the mean of ``values``; ``owners[i]`` in 0..n-1 says whose value i is."""
    return ratio_interval(_sums(owners, n, values), _sums(owners, n), blocks)


def quantile_interval(
    values: Values, owners: Index, n: int, q: float, blocks: Blocks | None = None
) -> Interval:
    """95 % of the quantile q; bounds are sample values."""
    if n < 2 or len(values) == 0:
        return Interval(None, None)
    blocks = blocks or draw(n)
    order = np.argsort(values, kind="stable")
    ordered, owner = values[order], owners[order]
    totals = blocks.sums(_sums(owners, n))

    def share_of_draws(rank: int) -> float:
        """Share of draws whose quantile is at most the sample of this rank (from 0)."""
        below = blocks.sums(_sums(owner[: rank + 1], n))
        return float(np.mean(below >= q * totals - 1e-9))

    low = _first(len(ordered), lambda rank: share_of_draws(rank) >= 0.025)
    high = _first(len(ordered), lambda rank: share_of_draws(rank) >= 0.975)
    return Interval(float(ordered[low]), float(ordered[high]))


def _sums(owners: Index, n: int, values: Values | None = None) -> Values:
    """Per request the sum of its values, or their number."""
    return np.bincount(owners, weights=values, minlength=n).astype(np.float64)


def _first(n: int, holds: Callable[[int], bool]) -> int:
    """Smallest index in 0..n-1 for which a monotone condition holds (n-1 if none)."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
