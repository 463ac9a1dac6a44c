"""How far a trace without times is played: how many sessions its ``arrival`` can start."""

from __future__ import annotations

import math

from loadgen.arrivals import Burst, Constant, OnOff, Poisson, PoissonConditioned, Ramp, Sine, Steps
from loadgen.plan import Arrival, ClosedLoop


def most_sessions(arrival: Arrival, span: float) -> int | None:
    """More than any seed starts in ``span`` s; None where the law sets no such bound, as gaps in clumps.

    A Poisson count of mean m passes m + 6 sqrt(m) + 10 in less than one of 10^8 runs.
    """
    expected = arrival.expected(span)
    if isinstance(arrival, (Constant, Burst, PoissonConditioned, ClosedLoop)):
        return math.ceil(expected) + 1
    fixed = isinstance(arrival, OnOff) and arrival.durations == "fixed"
    if fixed or isinstance(arrival, (Poisson, Ramp, Sine, Steps)):
        return math.ceil(expected + 6 * math.sqrt(expected)) + 10
    return None
