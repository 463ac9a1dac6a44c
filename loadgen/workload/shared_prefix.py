"""Groups of prompts with a common beginning, as from a few applications with long instructions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import Opening, Part, Turn
from loadgen.workload.lengths import Amount, Longest, drawn, lengths, most, once

_MOST_GROUPS = 1_000_000


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """One request a session: a system prompt of ``prefix`` tokens that its group shares, then ``input``
    tokens of its own. Groups are equally popular, or by Zipf's law: the k-th group is asked for in
    proportion to ``1 / k^zipf``. A drawn ``prefix`` is drawn once a group."""

    groups: int
    prefix: Amount
    input: Amount
    output: Amount
    zipf: float | None = None

    def __post_init__(self) -> None:
        lengths(prefix=self.prefix, input=self.input, output=self.output)
        if not 1 <= self.groups <= _MOST_GROUPS:
            raise ValueError(f"groups must be at least 1 and at most {_MOST_GROUPS:,}, not {self.groups}")
        if self.zipf is not None and not 0 <= self.zipf <= 100:
            raise ValueError(f"zipf must be 0 (all alike) to 100, not {self.zipf}")

    def longest(self) -> Longest:
        return Longest.of(most(self.prefix) + most(self.input), most(self.output))

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        group = self._group(opening)
        prefix = once(self.prefix, "prefix", opening.key, group)
        prompt = (
            Part("system", prefix, f"{opening.key}/g{group}"),
            Part("user", drawn(self.input, opening), f"{opening.key}/u{opening.index}"),
        )
        return (Turn(prompt, drawn(self.output, opening)),)

    def _group(self, opening: Opening) -> int:
        if self.zipf is None:
            return int(opening.rng.integers(self.groups))
        return int(np.searchsorted(popularity(self.groups, self.zipf), opening.rng.random(), side="right"))


@lru_cache(maxsize=16)
def popularity(groups: int, zipf: float) -> NDArray[np.float64]:
    """Share of the requests that ask for group 0..k, by k; the last is 1."""
    weights = np.arange(1, groups + 1, dtype=np.float64) ** -zipf
    shares: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    shares[-1] = 1.0
    return shares
