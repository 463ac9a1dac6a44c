"""When sessions start. The name states the law (MEASUREMENT C18); nothing is clipped or rescaled.

An arrival process is pure: ``due_times(span, rng)`` gives ns since the start of the span, sorted, each
in [0, span). Times are absolute, so a late send never moves the next one. Keys of the table are the
``type`` of a scenario's arrival block.
"""

from __future__ import annotations

from loadgen.arrivals.changing import OnOff, Ramp, Sine, Step, Steps
from loadgen.arrivals.concurrency import Concurrency
from loadgen.arrivals.even import Burst, Constant
from loadgen.arrivals.steady import Gamma, Poisson, PoissonConditioned
from loadgen.load import Arrival

ARRIVALS: dict[str, type[Arrival]] = {
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "poisson_conditioned": PoissonConditioned,
    "on_off": OnOff,
    "ramp": Ramp,
    "sine": Sine,
    "steps": Steps,
    "burst": Burst,
    "concurrency": Concurrency,
}

__all__ = [
    "ARRIVALS",
    "Burst",
    "Concurrency",
    "Constant",
    "Gamma",
    "OnOff",
    "Poisson",
    "PoissonConditioned",
    "Ramp",
    "Sine",
    "Step",
    "Steps",
]
