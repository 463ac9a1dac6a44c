"""Our own load process and its clerk, both on the one core that the others get too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.peers.tool import PROMPT_TOKENS, Ask, Quantiles, Reported, ToolFailed
from headrace.machine import machine
from headrace.probe import ProbeFailed, prevented, probe
from headrace.probed import Order, records_of
from loadgen.arrivals import Constant, Poisson
from loadgen.reference.group import ReferenceServer
from results.metrics import METRICS
from results.record import Outcome
from results.stats.quantiles import quantile

_LEAD_S = 4.0


@dataclass(frozen=True, slots=True)
class Ours:
    version: str
    name: str = "headrace"

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        arrival = Poisson(ask.rate) if ask.arrival == "poisson" else Constant(ask.rate)
        order = Order(
            arrival,
            ask.rate,
            ask.script,
            window=ask.seconds,
            warmup=ask.warmup,
            cooldown=ask.cooldown,
            tokens=ask.tokens,
            prompt=PROMPT_TOKENS,
            cpus=(ask.core,),
            lead=_LEAD_S,
        )
        if (step := prevented(order, machine())) is not None:
            raise ToolFailed(str(step.why))
        try:
            asyncio.run(probe(order, server, server.tail(), folder))
        except ProbeFailed as error:
            raise ToolFailed(str(error)) from error
        return reported(records_of(order, folder), ask.seconds)


def reported(records: pd.DataFrame, seconds: float) -> Reported:
    """What a report of ours says: requests due in the window that completed."""
    window = records[records["phase"] == "window"]
    done = window[window["outcome"] == Outcome.COMPLETED]
    times = {
        f"{name}_p{percent}": _quantile_ms(done, name, percent)
        for name in ("ttft", "tpot")
        for percent in (50, 99)
    }
    ids = frozenset(window["request_id"])
    return Reported(Quantiles(**times), len(done), len(window) - len(done), len(done) / seconds, ids=ids)


def _quantile_ms(done: pd.DataFrame, name: str, percent: int) -> float | None:
    per_request = METRICS[name].per_request
    assert per_request is not None
    values = per_request(done)
    found = quantile(np.sort(values[~np.isnan(values)]), percent / 100)
    return None if found is None else found * 1000
