"""The knee, by the saturation test, and the point at which a target may be run (MEASUREMENT C33, C36)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from results.sweep.search import Found


@dataclass(frozen=True, slots=True)
class Knee:
    """``below``: the largest value not over-saturated, under every one that is; ``above``: the first
    that is. None: not tested there."""

    below: float | None
    above: float | None
    contradicted: tuple[float, ...] = ()
    """Values above the first over-saturated one that were not so."""


def knee(tested: Iterable[tuple[float, bool | None]]) -> Knee:
    """From (value, over-saturated) of every point; a value is over-saturated if any of its points is."""
    over: dict[float, bool] = {}
    for value, verdict in tested:
        if verdict is not None:
            over[value] = over.get(value, False) or verdict
    first = min((value for value, verdict in over.items() if verdict), default=None)
    calm = [value for value, verdict in over.items() if not verdict]
    below = [value for value in calm if first is None or value < first]
    return Knee(max(below, default=None), first, tuple(sorted(set(calm) - set(below))))


@dataclass(frozen=True, slots=True)
class Safe:
    """``value`` = (1 - headroom) x ``limit``, never above the passing end. None comes with a reason."""

    value: float | None
    limit: float | None = None
    binds: Literal["saturation", "objectives", "nothing"] | None = None
    """What stops the target first: the knee, an objective that fails below it, or neither was reached."""
    reason: str | None = None


def safe_point(found: Found, at: Knee, headroom: float, *, whole: bool = False) -> Safe:
    """Below the knee, or below the failing end where objectives fail before it."""
    if found.passes is None:
        return Safe(None, reason="no value was seen to hold every objective")
    if not found.passes_confirmed:
        return Safe(None, reason=f"{found.passes:g} passed once, and no second run confirms it")
    ends = [end for end in (at.below, found.fails) if end is not None]
    limit = min(ends, default=found.passes)
    value = min((1 - headroom) * limit, found.passes)
    if whole:
        value = float(math.floor(value + 1e-9))
        if value < 1:
            return Safe(None, limit, reason=f"{headroom:.0%} below {limit:g} there is no whole number left")
    return Safe(float(f"{value:.6g}"), limit, _binds(found, at))


def _binds(found: Found, at: Knee) -> Literal["saturation", "objectives", "nothing"]:
    if at.above is not None and (found.fails is None or at.above <= found.fails):
        return "saturation"
    return "nothing" if found.fails is None else "objectives"
