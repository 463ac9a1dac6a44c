"""Quantiles that say when they cannot be given, and how sure they are (MEASUREMENT C30, C31)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

Values = NDArray[np.float64]

QUANTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
"""The quantiles of every table; the keys are those of summary.json."""

_TAIL = 0.025
_ROUNDING = 1e-9
"""0.9 is not a binary fraction: 10 * (1 - 0.9) must count as 1."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval; None = no bound on that side."""

    low: float | None
    high: float | None


def supported(n: int, q: float) -> bool:
    """Whether n samples carry the quantile q: at least one sample is expected beyond it."""
    return n * min(q, 1 - q) >= 1 - _ROUNDING


def samples_needed(q: float) -> int:
    """The smallest n that ``supported`` accepts."""
    return math.ceil(1 / min(q, 1 - q) - _ROUNDING) if 0 < q < 1 else 1


def why_unsupported(n: int, q: float) -> str:
    if n == 0:
        return "no samples"
    return "n(1-q)<1" if q >= 0.5 else "nq<1"


def quantile(ordered: Values, q: float) -> float | None:
    """Linear, at position (n-1)q of sorted data; None if unsupported. May be inf, never NaN."""
    n = len(ordered)
    if not supported(n, q):
        return None
    position = (n - 1) * q
    below = math.floor(position + _ROUNDING)
    part = max(0.0, position - below)
    low = float(ordered[below])
    if part <= _ROUNDING or math.isinf(low):
        return low
    return low + part * (float(ordered[below + 1]) - low)


def order_statistics(n: int, q: float) -> tuple[int, int]:
    """Ranks (l, u), counted from 1, whose samples enclose the quantile with 95 %; exact, binomial.

    With B ~ Bin(n, q): l is the largest with P(B < l) <= 2.5 %, u the smallest with P(B >= u) <= 2.5 %.
    l = 0 and u = n + 1 stand for "no bound".
    """
    spread = 2 * math.sqrt(n * q * (1 - q))
    low = max(0, math.floor(n * q - spread))
    while low > 0 and bdtr(low - 1, n, q) > _TAIL:
        low -= 1
    while low < n and bdtr(low, n, q) <= _TAIL:
        low += 1
    high = min(n + 1, math.ceil(n * q + spread) + 1)
    while high > 1 and bdtrc(high - 2, n, q) <= _TAIL:
        high -= 1
    while high <= n and bdtrc(high - 1, n, q) > _TAIL:
        high += 1
    return low, high


def binomial_interval(ordered: Values, q: float) -> Interval:
    """The exact interval of independent samples."""
    low, high = order_statistics(len(ordered), q)
    return Interval(
        float(ordered[low - 1]) if low >= 1 else None,
        float(ordered[high - 1]) if high <= len(ordered) else None,
    )


def dependent(values: Values) -> bool:
    """Whether the lag-1 autocorrelation in the given order exceeds 2/sqrt(n) (MEASUREMENT C31)."""
    n = len(values)
    if n < 3 or values.min() == values.max():  # what their mean is off by is no spread
        return False
    centred = values - values.mean()
    spread = float(centred @ centred)
    if spread <= 0 or not math.isfinite(spread):
        return False
    return float(centred[1:] @ centred[:-1]) / spread > 2 / math.sqrt(n)
