"""Poisson arrivals whose rate changes with time, exact: a Poisson process of rate 1 on a bent time axis.

With L(t) = expected arrivals until t, and unit Poisson times u: the arrivals are the t with L(t) = u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadgen.arrivals.times import Reals, Times, cumulated, not_negative, positive, some_more_than, within
from loadgen.shot import Rate, Seconds, Share


def _unit_times(total: float, rng: np.random.Generator) -> Reals:
    """The arrivals before ``total`` of a Poisson process of rate 1."""
    chunk = some_more_than(total, math.sqrt(total))
    times = cumulated(0.0, rng.standard_exponential, total, chunk)[1:]
    return times[times < total]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Poisson arrivals whose rate goes straight from ``from`` to ``to`` during ``over``, then stays.
    Without ``over`` it takes the whole time of load: warm-up, window and cool-down."""

    from_: Rate
    to: Rate
    over: Seconds | None = None

    def __post_init__(self) -> None:
        not_negative("from", self.from_)
        not_negative("to", self.to)
        positive("the higher of from and to", max(self.from_, self.to))
        if self.over is not None:
            positive("over", self.over)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        over, slope = self._shape(span)
        u = _unit_times(self.expected(span), rng)
        until_over = self.from_ * over + slope * over**2 / 2
        bent = np.minimum(u, until_over)
        # Rounding must not make the root of a rate that has just come down to 0 imaginary.
        root = np.sqrt(np.maximum(self.from_**2 + 2 * slope * bent, 0.0))
        rest = np.maximum(u - until_over, 0.0)
        times = 2 * bent / (self.from_ + root) + (rest / self.to if self.to > 0 else 0.0)
        return within(times, span)

    def expected_by(self, seconds: Reals, span: float) -> Reals:
        """Expected arrivals until each of ``seconds``."""
        over, slope = self._shape(span)
        early = np.minimum(seconds, over)
        return self.from_ * early + slope * early**2 / 2 + self.to * np.maximum(seconds - over, 0.0)

    def expected(self, span: float) -> float:
        return float(self.expected_by(np.array([span]), span)[0])

    def _shape(self, span: float) -> tuple[float, float]:
        over = span if self.over is None else self.over
        return over, (self.to - self.from_) / over


@dataclass(frozen=True, slots=True)
class Sine:
    """Poisson arrivals whose rate goes up and down around its mean ``rate``, by ``amplitude`` of it, once
    in ``period``; it begins at the mean and rises."""

    rate: Rate
    amplitude: Share
    period: Seconds

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        positive("period", self.period)
        if not 0 <= self.amplitude <= 1:
            raise ValueError(f"amplitude must be 0% to 100%, not {self.amplitude:g}: no rate is below 0")

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        u = _unit_times(self.expected(span), rng)
        # L lies between rate * t and rate * (t + 2 swing): that encloses each arrival, and L rises.
        high = u / self.rate
        low = high - 2 * self._swing
        while True:
            middle = (low + high) / 2
            if not ((middle > low) & (middle < high) & (high - low > 1e-10)).any():
                return within(np.maximum(middle, 0.0), span)
            early = self.expected_by(middle, span) < u
            low, high = np.where(early, middle, low), np.where(early, high, middle)

    def expected_by(self, seconds: Reals, span: float) -> Reals:
        """Expected arrivals until each of ``seconds``."""
        turned = np.cos(2 * math.pi * seconds / self.period)
        result: Reals = self.rate * (seconds + self._swing * (1 - turned))
        return result

    def expected(self, span: float) -> float:
        return float(self.expected_by(np.array([span]), span)[0])

    @property
    def _swing(self) -> float:
        return self.amplitude * self.period / (2 * math.pi)


@dataclass(frozen=True, slots=True)
class Step:
    """A ``rate`` that holds for ``for``; a rate of 0 is a pause."""

    rate: Rate
    for_: Seconds

    def __post_init__(self) -> None:
        not_negative("rate", self.rate)
        positive("for", self.for_)


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson arrivals at one rate after the other. After the last step nothing arrives."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not any(step.rate > 0 for step in self.steps):
            raise ValueError("steps must have one with a rate above 0")

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        return within(_piecewise(*self._pieces(), span, rng), span)

    def expected_by(self, seconds: Reals, span: float) -> Reals:
        """Expected arrivals until each of ``seconds``."""
        edges, rates = self._pieces()
        return np.interp(seconds, edges, _expected_at(edges, rates))

    def expected(self, span: float) -> float:
        return float(self.expected_by(np.array([span]), span)[0])

    def _pieces(self) -> tuple[Reals, Reals]:
        edges = np.cumsum([0.0, *(step.for_ for step in self.steps)])
        return edges, np.array([step.rate for step in self.steps])


@dataclass(frozen=True, slots=True)
class OnOff:
    """Poisson arrivals at ``rate_on`` for ``on_for``, then at ``rate_off`` for ``off_for``, over and over.

    ``fixed`` durations begin with a full time on. ``exponential`` ones are drawn, with ``on_for`` and
    ``off_for`` as their means, as if they had begun long ago (an interrupted or two-state Poisson process).
    """

    rate_on: Rate
    on_for: Seconds
    off_for: Seconds
    rate_off: Rate = 0.0
    durations: Literal["fixed", "exponential"] = "fixed"

    def __post_init__(self) -> None:
        positive("on_for", self.on_for)
        positive("off_for", self.off_for)
        positive("rate_on", self.rate_on)
        not_negative("rate_off", self.rate_off)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        fixed = self.durations == "fixed"
        edges, rates = self._fixed(span) if fixed else self._drawn(span, rng)
        return within(_piecewise(edges, rates, span, rng), span)

    def expected(self, span: float) -> float:
        """Of the arrivals or of the durations: whichever are more must be held."""
        whole, rest = divmod(span, self._period)
        if self.durations == "exponential":
            whole, rest = span / self._period, 0.0
        in_period = self.on_for * self.rate_on + self.off_for * self.rate_off
        in_rest = min(rest, self.on_for) * self.rate_on + max(rest - self.on_for, 0.0) * self.rate_off
        return max(whole * in_period + in_rest, 2 * span / self._period)

    @property
    def _period(self) -> float:
        return self.on_for + self.off_for

    def _fixed(self, span: float) -> tuple[Reals, Reals]:
        periods = math.ceil(span / self._period)
        edges = np.cumsum([0.0, *([self.on_for, self.off_for] * periods)])
        return edges, np.array([self.rate_on, self.rate_off] * periods)

    def _drawn(self, span: float, rng: np.random.Generator) -> tuple[Reals, Reals]:
        """What is left of an exponential duration is one as well: only the state must be drawn first."""
        states = [(self.on_for, self.rate_on), (self.off_for, self.rate_off)]
        if rng.random() >= self.on_for / self._period:
            states.reverse()
        (mean, rate), (other_mean, other_rate) = states

        def pairs(n: int) -> Reals:
            return (rng.standard_exponential((n, 2)) * (mean, other_mean)).ravel()

        periods = span / self._period
        edges = cumulated(0.0, pairs, span, some_more_than(periods, 2 * math.sqrt(periods)))
        return edges, np.tile([rate, other_rate], len(edges) // 2)


def _expected_at(edges: Reals, rates: Reals) -> Reals:
    return np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates)])


def _piecewise(edges: Reals, rates: Reals, span: float, rng: np.random.Generator) -> Reals:
    """Poisson arrivals at ``rates[k]`` between ``edges[k]`` and the next; until about ``span``."""
    expected = _expected_at(edges, rates)
    u = _unit_times(float(np.interp(span, edges, expected)), rng)
    return np.interp(u, expected, edges)
