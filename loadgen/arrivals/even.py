"""Arrivals without chance in their gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.times import Times, not_negative, positive, within
from loadgen.shot import Rate, Seconds


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced, the first at 0: the gaps have no spread."""

    rate: Rate

    def __post_init__(self) -> None:
        positive("rate", self.rate)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        return within(np.arange(math.ceil(span * self.rate)) / self.rate, span)

    def expected(self, span: float) -> float:
        return span * self.rate


@dataclass(frozen=True, slots=True)
class Burst:
    """``size`` arrivals at once, at ``at`` and then every ``every`` s; each burst is spread evenly at
    random over ``over`` s. Without ``every`` there is one burst."""

    size: int
    every: Seconds | None = None
    at: Seconds = 0.0
    over: Seconds = 0.0

    def __post_init__(self) -> None:
        positive("size", self.size)
        not_negative("at", self.at)
        not_negative("over", self.over)
        if self.every is not None:
            positive("every", self.every)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        count = self._bursts(span)
        starts = self.at + np.arange(count) * (self.every or 0.0)
        spread = rng.uniform(0, self.over, (count, self.size)) if self.over else np.zeros((count, self.size))
        return within((starts[:, None] + spread).ravel(), span)

    def expected(self, span: float) -> float:
        return self.size * self._bursts(span)

    def _bursts(self, span: float) -> int:
        if self.every is None:
            return int(self.at < span)
        return max(0, math.ceil((span - self.at) / self.every))
