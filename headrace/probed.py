"""What a step of load was to be, and what its files say it was. Pure but for reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headrace.capacity import Step
from loadgen.arrivals import Poisson
from loadgen.certify import Certificate, Spread, certify, seen_of
from loadgen.health import merged
from loadgen.plan import Arrival, Load, Phases, Plan
from loadgen.reference.log import Entry
from loadgen.reference.script import Script
from loadgen.workload import Fixed
from results.record import Outcome
from results.recordfile import frame_of, read_stream

DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """A step of load: streams of ``tokens`` tokens at ``arrival``, warmed up before the window."""

    arrival: Arrival
    rate: float
    script: Script
    window: float = 2.0
    """s, as the next two."""
    warmup: float = 0.5
    cooldown: float = 0.3
    tokens: int = 50
    prompt: int = 16
    processes: int = 1
    cpus: tuple[int, ...] = ()
    """Where the load processes may run; one each if there are enough. Empty = anywhere."""
    clerk_cpus: tuple[int, ...] = ()
    """Where the processes beside them may run that think for them. Empty = where they do."""
    lead: float = 2.0
    """s from the word to start until time zero: bodies are made that long ahead."""
    block: tuple[float, float] | None = None
    """(for, every) in s: the event loops are blocked on purpose."""
    seed: int = 1

    @staticmethod
    def poisson(rate: float, script: Script, **more: Any) -> Order:
        return Order(Poisson(rate), rate, script, **more)

    @property
    def phases(self) -> Phases:
        return Phases(self.window, self.warmup, self.cooldown, DRAIN_S)

    @property
    def in_flight(self) -> float:
        """Streams at a time, by the script."""
        return self.rate * (self.script.ttft + self.tokens * self.script.itl)

    def plan(self) -> Plan:
        load = Load("probe", self.arrival, Fixed(self.prompt, self.tokens))
        return Plan.make([load], self.phases, self.seed, self.processes)


def records_of(order: Order, folder: Path) -> pd.DataFrame:
    tables = [read_stream(folder / f"records-{slice}.arrow")[0] for slice in range(order.processes)]
    return pd.concat([frame_of(table) for table in tables], ignore_index=True)


def measured(
    order: Order,
    plan: Plan,
    records: pd.DataFrame,
    entries: Sequence[Entry],
    t0: int,
    signals: Sequence[Mapping[str, Any]],
) -> tuple[Step, Certificate]:
    """The step from its files, but for what only a look at the running processes tells; ``signals`` are
    those of each load process. Errors and lateness are of what was due in the window. Without ``entries``
    there was no log, and no error is known."""
    inside = records[records["phase"] == "window"]
    ids = set(inside["request_id"])
    logged = [entry for entry in entries if entry.request_id in ids]
    early = certify(seen_of(records, t0), entries).early if entries else 0
    window = certify(seen_of(inside, t0) if entries else [], logged)
    a, b = order.phases.window_ns
    completed = records["outcome"] == Outcome.COMPLETED
    delivered = completed & (records["terminal"] >= a) & (records["terminal"] < b)
    missing = len(plan.shots) - int(completed.sum())
    events = records["event_us"][completed].map(len).to_numpy()
    lateness = (inside["start"] - inside["due"]).dropna().to_numpy() / 1e6
    late = [entry.late for entry in logged if not entry.blocked]
    worst = merged(signals)
    step = Step(
        rate=order.rate,
        tokens=order.tokens,
        delivered=float(delivered.sum()) / order.window,
        planned=len(plan.shots),
        lost=missing + int(np.abs(events - order.tokens).sum()),
        early=early,
        ttft_p50=_ms(window.ttft.p50),
        ttft_p99=_p99(window.ttft),
        token_p50=_ms(window.token.p50),
        token_p99=_p99(window.token),
        one_event_p99=_p99(window.one_event),
        one_event_share=window.one_event.n / window.token.n if window.token.n else None,
        lateness_p99=_high(lateness),
        lateness_least=float(lateness.min()) if len(lateness) else None,
        server_late_p99=_high(np.concatenate(late) / 1e6) if late else None,
        us_per_event=_us_per_event(order, records, signals),
        bodies_late=worst["bodies_late"] or 0,
        steal=worst["steal_ratio"],
        stamp=worst["stamp"],
    )
    return step, window


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _p99(spread: Spread) -> float | None:
    """In ms; the largest, where n is too small for a p99."""
    return _ms(spread.p99 if spread.p99 is not None else spread.most)


def _high(values: np.ndarray[Any, np.dtype[Any]]) -> float | None:
    return _p99(Spread.of([values * 1e6])) if len(values) else None


def _us_per_event(order: Order, records: pd.DataFrame, signals: Sequence[Mapping[str, Any]]) -> float | None:
    """CPU of the load processes over the token events that came to them in the window."""
    ratios = [ratio for one in signals if (ratio := one.get("cpu_ratio")) is not None]
    count = events_within(records, *order.phases.window_ns)
    if len(ratios) < len(signals) or not count:
        return None
    return float(sum(ratios)) * order.window * 1e6 / count


def events_within(records: pd.DataFrame, a: int, b: int) -> int:
    """Token events that came in [a, b), ns since t0."""
    counts = records["event_us"].map(len).to_numpy()
    first, last = records["first_token"].to_numpy(), records["last_token"].to_numpy()
    inside = (first >= a) & (last < b)
    crossing = ~inside & (first < b) & (last >= a)
    at_edges = 0
    for start, since in zip(first[crossing], records["event_us"][crossing], strict=True):
        at = start + np.asarray(since) * 1000.0
        at_edges += int(((at >= a) & (at < b)).sum())
    return int(counts[inside].sum()) + at_edges
