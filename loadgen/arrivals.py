"""When sessions start. The name states the law (MEASUREMENT C18); nothing is clipped or rescaled.

An arrival process is pure: ``due_times(span, rng)`` gives ns since the start of the span, sorted, each
in [0, span). Times are absolute, so a late send never moves the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import Arrival, Rate, Seconds

Times = NDArray[np.int64]
_NS = 1_000_000_000


def _within(seconds: NDArray[np.float64], span: float) -> Times:
    ns = np.rint(np.sort(seconds) * _NS).astype(np.int64)
    inside: Times = ns[ns < round(span * _NS)]
    return inside


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced, the first at 0: the gaps have no spread."""

    rate: Rate

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        return _within(np.arange(math.ceil(span * self.rate)) / self.rate, span)

    def expected(self, span: float) -> float:
        return span * self.rate


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps: independent users. The number of arrivals varies from seed to seed."""

    rate: Rate

    def __post_init__(self) -> None:
        _positive("rate", self.rate)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        chunk = math.ceil(span * self.rate + 4 * math.sqrt(span * self.rate)) + 8
        times = np.cumsum(rng.exponential(1 / self.rate, chunk))
        while times[-1] < span:
            times = np.concatenate([times, times[-1] + np.cumsum(rng.exponential(1 / self.rate, chunk))])
        return _within(times, span)

    def expected(self, span: float) -> float:
        return span * self.rate


@dataclass(frozen=True, slots=True)
class Burst:
    """``size`` arrivals at once, at 0 and then every ``every`` s; each burst is spread evenly at random
    over ``over`` s. Without ``every`` there is one burst, at ``at``."""

    size: int
    every: Seconds | None = None
    at: Seconds = 0.0
    over: Seconds = 0.0

    def __post_init__(self) -> None:
        _positive("size", self.size)
        if self.every is not None:
            _positive("every", self.every)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        step = math.inf if self.every is None else self.every
        count = 1 if self.every is None else max(0, math.ceil((span - self.at) / step))
        starts = self.at + (np.arange(count) * step if count > 1 else np.zeros(count))
        spread = rng.uniform(0, self.over, (count, self.size)) if self.over else np.zeros((count, self.size))
        return _within((starts[:, None] + spread).ravel(), span)

    def expected(self, span: float) -> float:
        return self.size * (1 if self.every is None else max(0.0, span - self.at) / self.every)


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value}")


ARRIVALS: dict[str, type[Arrival]] = {"constant": Constant, "poisson": Poisson, "burst": Burst}
