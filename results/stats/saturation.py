"""Little's law and over-saturation from the requests in flight (MEASUREMENT C35, C36)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.stats.quantiles import Values

BINS = 60
BATCHES = 5
T_LIMIT = 2.306
"""Student's t, 97.5 %, 8 degrees of freedom."""
MIN_WINDOW_NS = 30_000_000_000
SHED_LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class Saturation:
    """The verdict of C36 with the numbers it stands on; ``over`` None comes with a reason."""

    over: bool | None
    welch_t: float | None = None
    """None where it is infinite (growth without noise)."""
    ends_difference: float | None = None
    detrended_sd: float | None = None
    reason: str | None = None


def over_saturated(bins: Values, shed_share: float) -> Saturation:
    """C36 on the mean number in flight in 60 equal bins; ``shed_share`` = rejected + expired / planned."""
    half, batch, tenth = len(bins) // 2, len(bins) // (2 * BATCHES), len(bins) // 10
    first = bins[:half].reshape(BATCHES, batch).mean(axis=1)
    second = bins[half:].reshape(BATCHES, batch).mean(axis=1)
    t = _welch(first, second)
    ends = float(bins[-tenth:].mean() - bins[:tenth].mean())
    spread = _detrended_sd(bins)
    grows = t > T_LIMIT and ends > 3 * spread
    return Saturation(bool(grows or shed_share > SHED_LIMIT), t if math.isfinite(t) else None, ends, spread)


def _welch(first: Values, second: Values) -> float:
    difference = float(second.mean() - first.mean())
    spread = math.sqrt((first.var(ddof=1) + second.var(ddof=1)) / BATCHES)
    if spread > 0:
        return difference / spread
    return 0.0 if difference == 0 else math.copysign(math.inf, difference)


def _detrended_sd(bins: Values) -> float:
    """sd of the residuals from the straight line; two degrees of freedom are used up."""
    x = np.arange(len(bins), dtype=np.float64)
    x -= x.mean()
    slope = float(x @ bins) / float(x @ x)
    residuals = bins - bins.mean() - slope * x
    return math.sqrt(float(residuals @ residuals) / (len(bins) - 2))


def _lives(data: pd.DataFrame) -> tuple[Values, Values]:
    """[start, closed) of the requests that were sent and let go, ns."""
    sent = data[data["start"].notna() & data["closed"].notna()]
    return sent["start"].to_numpy(dtype=np.float64), sent["closed"].to_numpy(dtype=np.float64)


def in_flight(data: pd.DataFrame, a: int, b: int, bins: int = BINS) -> Values:
    """Mean number in flight in equal bins of [a, b), exact: the lives clipped to each bin, integrated."""
    start, closed = _lives(data)
    edges = np.linspace(a, b, bins + 1)
    spent = np.array([np.clip(e - start, 0, np.maximum(closed - start, 0)).sum() for e in edges])
    result: Values = np.diff(spent) / ((b - a) / bins)
    return result


def integral(data: pd.DataFrame, a: int, b: int) -> float:
    """Σ of all [start, closed) clipped to [a, b), request-ns."""
    start, closed = _lives(data)
    return float(np.maximum(np.minimum(closed, b) - np.maximum(start, a), 0).sum())


def saturation(data: pd.DataFrame, window: tuple[int, int], shed_share: float) -> Saturation:
    """C36 over the window; undefined for windows under 30 s, unless requests were shed."""
    a, b = window
    if b - a < MIN_WINDOW_NS:
        if shed_share > SHED_LIMIT:
            return Saturation(True, reason="rejected or expired > 1 %")
        return Saturation(None, reason="the window is shorter than 30 s")
    return over_saturated(in_flight(data, a, b), shed_share)
