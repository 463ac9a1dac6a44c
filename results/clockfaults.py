"""Stamps in an order that cannot have happened: a broken clock, or a broken client (MEASUREMENT C16, C42)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from results.metrics import METRICS, NS
from results.stats.quantiles import Values

_OWN_CLOCK = (("start", "conn"), ("start", "sent"), ("start", "closed"))
"""(earlier, later), both read from the client's own clock: exact."""
_RECEIVED = (("start", "headers"), ("start", "first_token"), ("first_token", "last_token"))
"""The later one may be the kernel's stamp: off by at most ``skew_ns``. Where the kernel stamped only some
of the reads, the others are late by an unknown time, and nothing can be said."""


def clock_faults(data: pd.DataFrame) -> tuple[int, str]:
    """How many records are impossible, and the worst of one kind in words; (0, "") if all is well."""
    bad = np.zeros(len(data), dtype=bool)
    words, worst = "", 0.0
    for name, spans, bound in _spans(data):
        below = spans < -bound - 1e-12
        bad |= below
        if below.any() and float(spans[below].min()) < worst:
            worst = float(spans[below].min())
            words = f"{int(below.sum())} requests with {name} before its time, by up to {-worst * 1e3:.4g} ms"
    return int(bad.sum()), words


def _spans(data: pd.DataFrame) -> list[tuple[str, Values, Values]]:
    """(what came too early, time after what it must follow in s, how much of it the clocks may be off)."""
    exact = np.zeros(len(data))
    of = METRICS["client_lag"].per_request
    assert of is not None
    skew = data["skew_ns"].to_numpy(dtype=np.float64) * NS
    unsure = np.where((data["stamp"] == "mixed").to_numpy(dtype=bool), np.inf, skew)
    found = [("the send", of(data), exact)]
    found += [(later, _span(data, earlier, later), exact) for earlier, later in _OWN_CLOCK]
    found += [(later, _span(data, earlier, later), unsure) for earlier, later in _RECEIVED]
    return found


def _span(data: pd.DataFrame, earlier: str, later: str) -> Values:
    result: Values = ((data[later] - data[earlier]) * NS).to_numpy(dtype=np.float64)
    return result
