"""One metric over one set of requests: its statistics with their intervals, or the reason for none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from results.outcomes import Mask
from results.stats.bootstrap import QuantileDraws, mean_interval
from results.stats.quantiles import (
    QUANTILES,
    Interval,
    Values,
    binomial_interval,
    dependent,
    quantile,
    why_unsupported,
)
from results.token_events import Samples

STATISTIC = re.compile(r"p(\d{1,2}(?:[._]\d+)?)|mean|min|max|count|share")
FEW_FOR_P99 = 300


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval. ``value`` None comes with a ``reason``; ``interval`` None means
    the number is exact for what it counts."""

    value: float | None
    interval: Interval | None = None
    reason: str | None = None
    n: int | None = None


def quantile_of(statistic: str) -> float | None:
    """0.99 for ``p99``, 0.999 for ``p99.9`` or ``p99_9``; None for other statistics."""
    match = STATISTIC.fullmatch(statistic)
    if match is None or match.group(1) is None:
        return None
    return float(match.group(1).replace("_", ".")) / 100


@dataclass(frozen=True)
class Distribution:
    """Samples of requests in due order. ``pooled``: a request has many samples, so they depend.

    They may be many: ``make`` gives them again whenever they are asked for after they were let go.
    """

    make: Callable[[], Samples] = field(repr=False)
    pooled: bool = False
    why_none: str = "no samples"
    """The reason if there are none."""
    _cache: dict[str, Estimate] = field(default_factory=dict)

    @cached_property
    def samples(self) -> Samples:
        return self.make()

    @cached_property
    def n(self) -> int:
        return self.samples.n

    @cached_property
    def _ordered(self) -> Values:
        return np.sort(self.samples.values)

    @cached_property
    def _dependent(self) -> bool:
        return self.pooled or dependent(self.samples.values)

    @cached_property
    def _requests(self) -> tuple[Any, int]:
        """Owners, which are in due order, renumbered 0..k-1; and k."""
        numbered = np.cumsum(np.diff(self.samples.owners, prepend=-1) != 0, dtype=np.int32) - np.int32(1)
        return numbered, int(numbered[-1]) + 1 if len(numbered) else 0

    @cached_property
    def _draws(self) -> QuantileDraws | None:
        return QuantileDraws.of(self.samples.values, *self._requests, ordered=self._ordered)

    def estimate(self, statistic: str) -> Estimate:
        """``pNN``, ``mean``, ``min``, ``max`` or ``count``."""
        if statistic not in self._cache:
            self._cache[statistic] = self._estimate(statistic)
        return self._cache[statistic]

    def _estimate(self, statistic: str) -> Estimate:
        values = self.samples.values
        if statistic == "count":
            return Estimate(self.n, n=self.n)
        if self.n == 0:
            return Estimate(None, reason=self.why_none, n=0)
        if statistic in ("min", "max"):
            return Estimate(float(values.min() if statistic == "min" else values.max()), n=self.n)
        if statistic == "mean":
            owners, k = self._requests
            interval = mean_interval(values, owners, k)
            return Estimate(float(values.mean()), interval, n=self.n)
        q = quantile_of(statistic)
        assert q is not None, f"unknown statistic {statistic}"
        value = quantile(self._ordered, q)
        if value is None:
            return Estimate(None, reason=why_unsupported(self.n, q), n=self.n)
        return Estimate(value, self._quantile_interval(q, value), n=self.n)

    def _quantile_interval(self, q: float, value: float) -> Interval:
        """Around ``value``: bounds are samples, and where these are few it may lie between two of them."""
        if not self._dependent:
            return binomial_interval(self._ordered, q)
        if self._draws is None:
            return Interval(None, None)
        found = self._draws.interval(q)
        low, high = (value if bound is None else bound for bound in (found.low, found.high))
        return Interval(min(low, value), max(high, value))

    def table(self) -> dict[str, Any]:
        """The block of summary.json (JOINTS 6): values in s, null with ``<name>_reason`` beside it."""
        values = self.samples.values
        result: dict[str, Any] = {"n": self.n, "std": float(values.std(ddof=1)) if self.n > 1 else None}
        intervals: dict[str, list[float | None]] = {}
        for name in ("mean", "min", "max", *QUANTILES):
            found = self.estimate(name)
            result[name] = found.value
            if found.value is None:
                result[f"{name}_reason"] = found.reason
            elif found.interval is not None:
                intervals[name] = [found.interval.low, found.interval.high]
        if self.n < 2:
            result["std_reason"] = "n<2"
        if intervals:
            result["ci95"] = intervals
        if result["p99"] is not None and self.n < FEW_FOR_P99:
            result["p99_mark"] = f"n<{FEW_FOR_P99}"
        self.let_go()
        return result

    def let_go(self) -> None:
        """Keep what was said, not what it was said of."""
        for name in ("samples", "_ordered", "_requests", "_draws"):
            self.__dict__.pop(name, None)


def all_attempts(values: Values, failed: Mask, bound_s: float | None) -> dict[str, Any]:
    """Quantiles with failures as +infinity (C24). An infinite quantile is null with its lower bound:
    the longest client timeout, ``bound_s`` (None: no timeout is known)."""
    kept = values[~failed]
    ordered = np.sort(np.concatenate([kept[~np.isnan(kept)], np.full(int(failed.sum()), np.inf)]))
    result: dict[str, Any] = {"n": len(ordered), "failed": int(failed.sum())}
    for name, q in QUANTILES.items():
        value = quantile(ordered, q)
        if value is None:
            result[name], result[f"{name}_reason"] = None, why_unsupported(len(ordered), q)
        elif math.isinf(value):
            result[name], result[f"{name}_reason"] = None, "a failed request"
            result[f"{name}_lower_bound"] = bound_s
        else:
            result[name] = value
    return result
