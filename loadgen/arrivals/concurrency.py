"""The closed loop: users who wait for their answer before they ask again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.times import Times, not_negative, positive, within
from loadgen.load import LEAST_REQUEST_S
from loadgen.shot import Seconds


@dataclass(frozen=True, slots=True)
class Concurrency:
    """``users`` at the same time, each in a closed loop: its next session begins ``think`` after the end of
    the one before, whether that one was answered or failed. They begin evenly spread over ``ramp_up``.

    Its rate is the target's: a slow target is asked less often, so latencies have the send clock only, and
    say nothing of users who do not wait (coordinated omission). Beside open loops it makes background load.

    A user begins no session after ``requests`` planned requests. Without it, as many are planned as fit
    into the time of load if each took only 50 ms beside the think times; the rest is ``not_sent``. A user
    who comes to the end of that stands idle, which makes the run inconclusive (results.idle).
    """

    users: int
    think: Seconds = 0.0
    ramp_up: Seconds = 0.0
    requests: int | None = None

    def __post_init__(self) -> None:
        positive("users", self.users)
        not_negative("think", self.think)
        not_negative("ramp_up", self.ramp_up)
        if self.requests is not None:
            positive("requests", self.requests)

    def due_times(self, span: float, rng: np.random.Generator) -> Times:
        """When each user begins; one whose start lies behind the span never does."""
        return within(np.arange(self.users, dtype=np.float64) * (self.ramp_up / self.users), span)

    def expected(self, span: float) -> float:
        """The most requests that are planned, for sessions of one turn."""
        fit = math.ceil(span / (LEAST_REQUEST_S + self.think))
        return self.users * (self.requests if self.requests is not None else fit)
