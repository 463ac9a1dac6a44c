"""Random arrivals at a rate that stays the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.times import NS, Times, cumulated, positive, some_more_than, within
from loadgen.shot import Rate

CV_RANGE = (0.001, 100.0)
"""Beyond, gamma gaps are no numbers of use: all alike, or nearly all zero."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps: independent users. The number of arrivals varies from seed to seed."""

    rate: Rate

    def __post_init__(self) -> None:
        positive("rate", self.rate)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        chunk = some_more_than(span * self.rate, math.sqrt(span * self.rate))
        times = cumulated(0.0, lambda n: rng.exponential(1 / self.rate, n), span, chunk)
        return within(times[1:], span)

    def expected(self, span: float) -> float:
        return span * self.rate


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gamma gaps of mean 1/``rate``, with ``cv`` = standard deviation / mean: below 1 more
    even than Poisson, above 1 in clumps.

    It is as if it had begun long ago: the first arrival comes after the rest of a gap, so the mean count
    of any span is ``rate`` x span. (The gap that lies over a given moment has one more in its shape; what
    is left of it is an evenly drawn part.)
    """

    rate: Rate
    cv: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        low, high = CV_RANGE
        if not low <= self.cv <= high:
            raise ValueError(f"cv must be {low:g} to {high:g}, not {self.cv}; for 0 take `type: constant`")

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        shape = 1 / self.cv**2
        scale = 1 / (self.rate * shape)
        chunk = some_more_than(span * self.rate, self.cv * math.sqrt(span * self.rate))
        first = float(rng.gamma(shape + 1, scale) * rng.random())
        return within(cumulated(first, lambda n: rng.gamma(shape, scale, n), span, chunk), span)

    def expected(self, span: float) -> float:
        return span * self.rate


@dataclass(frozen=True, slots=True)
class PoissonConditioned:
    """Exponential gaps, all rescaled so that the last of ``n`` arrivals comes at exactly ``n``/``rate``.
    Without ``n``: as many as the rate gives in the span.

    The count is fixed, and so is less random than Poisson's at every scale: its variance in the first half
    is half of Poisson's. One that falls on the end of the span is due 1 ns before it; later ones, of an
    ``n`` too large for the span, are not in the plan.
    """

    rate: Rate
    n: int | None = None

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        if self.n is not None:
            positive("n", self.n)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        n = self._count(span)
        if n == 0:
            return np.zeros(0, dtype=np.int64)
        times = np.cumsum(rng.exponential(1.0, n))
        seconds = times * (n / self.rate / times[-1])
        end = round(span * NS)
        # Far beyond the span a time may not fit into an int of ns.
        ns = np.rint(seconds[seconds * NS < end + 1] * NS).astype(np.int64)
        ns[ns == end] = end - 1
        inside: Times = ns[ns < end]
        return inside

    def expected(self, span: float) -> float:
        return self._count(span)

    def _count(self, span: float) -> int:
        return self.n if self.n is not None else math.floor(span * self.rate * (1 + 1e-12))
