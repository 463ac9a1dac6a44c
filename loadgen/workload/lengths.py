"""How many: numbers of tokens, turns or calls, fixed or drawn.

```
input: 600                                  always 600
input: {median: 300, p99: 4000}             log-normal
input: {uniform: [100, 500]}                evenly, both ends included
input: {pareto: 1.2, min: 50, max: 30000}   long tail: P(X > x) falls as x^-1.2
input: {choices: {"128": 50%, "8192": 20%, "1024": 30%}}
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from loadgen.plan import Opening, Share
from loadgen.streams import stream

MOST_TOKENS = 100_000_000
"""Columns of the plan and the records are u32."""
_Z99 = 2.3263478740408408
"""Standard normal quantile of 99 %."""
_Z_MOST = 3.719016485455709
"""Of 99.99 %."""


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Half lie below ``median``, one in a hundred above ``p99``. What would lie outside ``min`` to ``max``
    is moved to the nearer of the two; without ``max`` that is the number that one in 10,000 exceeds."""

    median: int
    p99: int
    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        if self.p99 < self.median:
            raise ValueError(f"p99 must be at least the median {self.median}, not {self.p99}")
        if self.median < 1 or not 0 <= self.min <= self.median:
            raise ValueError(f"median must be at least 1, and min (now {self.min}) 0 to the median")
        if self.max is not None and self.max < self.median:
            raise ValueError(f"max must be at least the median {self.median}, not {self.max}")

    @property
    def most(self) -> int:
        if self.max is not None:
            return self.max
        spread = float(self.p99 / self.median)
        return round(self.median * math.pow(spread, _Z_MOST / _Z99))

    @property
    def least(self) -> int:
        return self.min

    def draw(self, rng: np.random.Generator) -> int:
        sigma = math.log(self.p99 / self.median) / _Z99
        tokens = self.median * math.exp(sigma * rng.standard_normal())
        return max(self.least, round(min(tokens, self.most)))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from the first to the second is as likely as the others."""

    uniform: tuple[int, ...]

    def __post_init__(self) -> None:
        two_ends("uniform", self.uniform)

    @property
    def most(self) -> int:
        return self.uniform[1]

    @property
    def least(self) -> int:
        return self.uniform[0]

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.least, self.most, endpoint=True))


@dataclass(frozen=True, slots=True)
class Pareto:
    """A long tail between ``min`` and ``max``: the share above x falls as x to the power -``pareto`` (a
    bounded Pareto law; 1 to 2 is usual, and less is a longer tail)."""

    pareto: float
    min: int
    max: int

    def __post_init__(self) -> None:
        if not 0 < self.pareto < math.inf:
            raise ValueError(f"pareto must be above 0, not {self.pareto}")
        if not 1 <= self.min <= self.max:
            raise ValueError(f"min {self.min} and max {self.max} must be 1 or more, in this order")

    @property
    def most(self) -> int:
        return self.max

    @property
    def least(self) -> int:
        return self.min

    def draw(self, rng: np.random.Generator) -> int:
        return min(self.max, round(bounded_pareto(self.pareto, self.min, self.max, rng.random())))


@dataclass(frozen=True, slots=True)
class Choices:
    """One of several numbers, each with its share; the shares sum to 100 %."""

    choices: Mapping[str, Share]

    def __post_init__(self) -> None:
        for text in self.choices:
            if not text.isdecimal():
                raise ValueError(f"choices: {text!r} is not a whole number")
        if not math.isclose(total := sum(self.choices.values()), 1.0, abs_tol=1e-6):
            raise ValueError(f"choices: the shares sum to {total:.4g} and not to 100%")

    @property
    def most(self) -> int:
        return max(int(text) for text, share in self.choices.items() if share)

    @property
    def least(self) -> int:
        return min(int(text) for text, share in self.choices.items() if share)

    def draw(self, rng: np.random.Generator) -> int:
        return int(pick(self.choices, rng))


Amount = int | Lognormal | Uniform | Pareto | Choices
"""A whole number, or how it is drawn."""


def bounded_pareto(alpha: float, low: float, high: float, u: float) -> float:
    """The quantile ``u`` in [0, 1) of a Pareto law cut to [low, high]."""
    return float(low * (1.0 - u * -math.expm1(alpha * math.log(low / high))) ** (-1.0 / alpha))


def pick(shares: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the names, each with its share of the draws; the shares sum to 1."""
    left, chosen = rng.random(), ""
    for name, share in shares.items():
        if share and left >= 0:
            left, chosen = left - share, name
    return chosen


def drawn(amount: Amount, at: Opening) -> int:
    """One number. A plain one takes nothing from the session's draws."""
    return amount if isinstance(amount, int) else amount.draw(at.rng)


def once(amount: Amount, *name: str | int) -> int:
    """The number that goes by this name: equal names give equal numbers, whoever asks first."""
    return amount if isinstance(amount, int) else amount.draw(stream(0, *name))


def most(amount: Amount) -> int:
    """The largest that can be drawn."""
    return amount if isinstance(amount, int) else amount.most


def least(amount: Amount) -> int:
    """The smallest that can be drawn."""
    return amount if isinstance(amount, int) else amount.least


def lengths(at_least: int = 1, **tokens: Amount) -> None:
    """Raises ValueError for a length that no request can have, by its key."""
    amounts(at_least, MOST_TOKENS, " tokens", **tokens)


def amounts(at_least: int, at_most: int, unit: str = "", /, **given: Amount) -> None:
    """Raises ValueError for a number outside ``at_least`` to ``at_most`` that could be drawn, by its key."""
    for key, amount in given.items():
        for n in (least(amount), most(amount)):
            if not at_least <= n <= at_most:
                found = f"not {n}" if isinstance(amount, int) else f"and {n} could be drawn"
                raise ValueError(f"{key} must be {at_least} to {at_most:,}{unit}, {found}")


def two_ends(key: str, ends: tuple[float, ...]) -> None:
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
        raise ValueError(f"{key} takes the smallest and the largest, such as [100, 500], not {list(ends)}")


@dataclass(frozen=True, slots=True)
class Longest:
    """The largest that a workload can ask for in one request, in tokens: of its prompt, of its answer, and
    of both together."""

    input: int
    output: int
    total: int

    @staticmethod
    def of(input: int, output: int) -> Longest:
        """Of a workload in which the longest prompt and the longest answer can meet."""
        return Longest(input, output, input + output)

    def or_more(self, other: Longest) -> Longest:
        """Of a workload that sends requests of both kinds."""
        return Longest(
            max(self.input, other.input), max(self.output, other.output), max(self.total, other.total)
        )


@runtime_checkable
class Measured(Protocol):
    """A workload that knows how large its requests can become."""

    def longest(self) -> Longest: ...
