"""How long: think times and idle gaps, fixed or drawn.

```
think: 2s
think: {median: 10s, p99: 50m}          log-normal
think: {mean: 5s}                       exponential
think: {uniform: [1s, 3s]}
think: {pareto: 1.1, min: 5m, max: 4h}  long tail
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.plan import Opening, Seconds
from loadgen.workload.lengths import bounded_pareto, two_ends

_Z99 = 2.3263478740408408


@dataclass(frozen=True, slots=True)
class LognormalTime:
    """Half lie below ``median``, one in a hundred above ``p99``; never longer than ``max``."""

    median: Seconds
    p99: Seconds
    max: Seconds | None = None

    def __post_init__(self) -> None:
        if not 0 < self.median <= self.p99:
            raise ValueError(f"p99 must be at least the median {self.median:g} s, and that above 0s")
        if self.max is not None and self.max < self.median:
            raise ValueError(f"max must be at least the median {self.median:g} s, not {self.max:g} s")

    def draw(self, rng: np.random.Generator) -> float:
        sigma = math.log(self.p99 / self.median) / _Z99
        drawn = self.median * math.exp(sigma * rng.standard_normal())
        return drawn if self.max is None else min(drawn, self.max)


@dataclass(frozen=True, slots=True)
class ExponentialTime:
    """Without memory, ``mean`` long on average; never longer than ``max``."""

    mean: Seconds
    max: Seconds | None = None

    def __post_init__(self) -> None:
        if not self.mean > 0:
            raise ValueError(f"mean must be above 0s, not {self.mean:g} s")

    def draw(self, rng: np.random.Generator) -> float:
        drawn = float(rng.exponential(self.mean))
        return drawn if self.max is None else min(drawn, self.max)


@dataclass(frozen=True, slots=True)
class UniformTime:
    """Any time between the first and the second is as likely as the others."""

    uniform: tuple[Seconds, ...]

    def __post_init__(self) -> None:
        two_ends("uniform", self.uniform)

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.uniform[0], self.uniform[1]))


@dataclass(frozen=True, slots=True)
class ParetoTime:
    """A long tail between ``min`` and ``max``: the share above x falls as x to the power -``pareto``."""

    pareto: float
    min: Seconds
    max: Seconds

    def __post_init__(self) -> None:
        if not 0 < self.pareto < math.inf:
            raise ValueError(f"pareto must be above 0, not {self.pareto}")
        if not 0 < self.min <= self.max:
            raise ValueError(f"min {self.min:g} s and max {self.max:g} s must be above 0s, in this order")

    def draw(self, rng: np.random.Generator) -> float:
        return bounded_pareto(self.pareto, self.min, self.max, rng.random())


Wait = Seconds | LognormalTime | ExponentialTime | UniformTime | ParetoTime
"""A time in s, or how it is drawn."""


def wait_s(wait: Wait, at: Opening) -> float:
    """One time in s. A plain one takes nothing from the session's draws."""
    return wait if isinstance(wait, float | int) else wait.draw(at.rng)
