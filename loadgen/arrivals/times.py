"""Due times in ns from times in s, and what the numbers of an arrival block may be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Reals = NDArray[np.float64]

NS = 1_000_000_000

_LEAST = 1e-15
"""Of rates and times: products of smaller numbers may be 0."""


def within(seconds: Reals, span: float) -> Times:
    """Sorted ns of the times that lie in [0, span). What lies far beyond may not fit into an int of ns."""
    ns = np.rint(np.sort(seconds[seconds < span]) * NS).astype(np.int64)
    inside: Times = ns[ns < round(span * NS)]
    return inside


def cumulated(first: float, gaps: Callable[[int], Reals], end: float, chunk: int) -> Reals:
    """``first``, then one gap after the other until ``end`` is passed; gaps are drawn ``chunk`` at once."""
    found = [np.array([first])]
    while found[-1][-1] < end:
        found.append(found[-1][-1] + np.cumsum(gaps(chunk)))
    return np.concatenate(found)


def some_more_than(mean: float, sd: float) -> int:
    """A number of draws that mostly exceeds a count of this mean and standard deviation."""
    return math.ceil(mean + 4 * sd) + 8


def positive(name: str, value: float) -> None:
    """Raises ValueError unless ``value`` is a number above 0 that can be reckoned with."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be above 0, not {value}")
    if value < _LEAST:
        raise ValueError(f"{name} is too small: at least {_LEAST:g}, not {value:g}")


def not_negative(name: str, value: float) -> None:
    """Raises ValueError unless ``value`` is 0 or a number above it."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be 0 or more, not {value}")
