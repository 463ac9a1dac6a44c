"""Client health: may the client's numbers be believed? (MEASUREMENT 8)

``collect`` reads the signals off records, load process, plan and truth; ``health`` judges them. A signal
that was not measured is None and judges nothing; its row says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from results.judging import HealthLimits
from results.metrics import METRICS
from results.record import Outcome
from results.run import RunData
from results.stats.quantiles import Values, quantile
from results.view import View

State = Literal["valid", "degraded", "invalid"]
STATES: tuple[State, ...] = ("valid", "degraded", "invalid")
RULES = tuple(f"H{i}" for i in range(1, 13))

MEANING = {
    "H1": "client lag p99",
    "H2": "event loop lag p99",
    "H3": "pool wait p99",
    "H4": "longest GC pause",
    "H5": "busiest load process, CPU",
    "H6": "CPU steal",
    "H7": "offered / asked - 1",
    "H8": "requests lost to fds, ports, memory",
    "H9": "planned requests without a record",
    "H10": "gateway counters - records",
    "H11": "Little's law residual",
    "H12": "client TTFT - gateway TTFT, p99",
}

UNITS = {"H1": "s", "H2": "s", "H3": "s", "H4": "s", "H5": "%", "H6": "%", "H7": "%", "H11": "%", "H12": "s"}


@dataclass(frozen=True, slots=True)
class Signals:
    """One number per rule (times in s, shares as ratios); None = not measured, see ``missing``."""

    ttft_medians: tuple[float, ...] = ()
    """Of the classes with enough samples: the smallest sets the limit A."""
    kernel_stamps: bool = False
    values: dict[str, float | None] = field(default_factory=dict)
    """By rule id H1..H12."""
    missing: dict[str, str] = field(default_factory=dict)
    skew_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict on the client, and what it rests on."""

    verdict: State
    limit_a: float
    """A of MEASUREMENT 8, s."""
    rows: dict[str, dict[str, Any]]
    error_bound: float
    """s: H1 + H2 + clock skew. A degraded client decides no latency gate nearer to its bound."""

    @property
    def reasons(self) -> list[str]:
        """The rules that set the verdict."""
        return [r for r, row in self.rows.items() if row["state"] == self.verdict != "valid"]


def limit_a(medians: tuple[float, ...], limits: HealthLimits) -> float:
    """max(5 ms, 5 % of the smallest class median of ttft)."""
    return max(limits.latency_floor_s, limits.latency_share * min(medians, default=0.0))


def _grade(value: float, valid: float, degraded: float) -> State:
    return "valid" if value <= valid else "degraded" if value <= degraded else "invalid"


def _bounds(rule: str, a: float, limits: HealthLimits) -> tuple[float, float]:
    """(valid up to, degraded up to) of a rule."""
    any_value = float("inf")
    return {
        "H1": (a, 2 * a),
        "H2": (a, 2 * a),
        "H3": (limits.pool_wait_s, max(a, limits.pool_wait_s)),
        "H4": (a, any_value),
        "H5": (limits.cpu_ratio, any_value),
        "H6": (limits.steal_ratio, any_value),
        "H7": limits.rate,
        "H8": (0.0, 0.0),
        "H9": (0.0, 0.0),
        "H10": (0.0, 0.0),
        "H11": limits.little,
        "H12": (a, 2 * a),
    }[rule]


def health(signals: Signals, limits: HealthLimits) -> Health:
    """Judge the signals; the verdict is the worst row."""
    a = limit_a(signals.ttft_medians, limits)
    rows: dict[str, dict[str, Any]] = {}
    for rule in RULES:
        value = signals.values.get(rule)
        valid, degraded = _bounds(rule, a, limits)
        if value is None:
            reason = signals.missing.get(rule, "not measured")
            rows[rule] = {"value": None, "limit": valid, "state": None, "reason": reason}
            continue
        state = _grade(round(abs(value), 12), valid, degraded)
        if rule == "H2" and signals.kernel_stamps and state == "invalid":
            state = "degraded"  # the stamps are the kernel's: a late loop cannot move them
        rows[rule] = {"value": value, "limit": valid, "state": state}
    states: list[State] = [row["state"] for row in rows.values() if row["state"]]
    verdict: State = STATES[max((STATES.index(state) for state in states), default=0)]
    lag = sum(signals.values.get(rule) or 0.0 for rule in ("H1", "H2"))
    return Health(verdict, a, rows, lag + signals.skew_s)


def collect(data: RunData, view: View) -> Signals:
    """The signals of a run. ``data.signals`` comes from the load process: ``loop_lag_p99_ns``,
    ``gc_pause_max_ns``, ``cpu_ratio``, ``steal_ratio``, ``lost``, ``littles {integral, sum}``, ``stamp``."""
    values: dict[str, float | None] = {}
    missing: dict[str, str] = {}
    sent = view.window
    for rule, metric in (("H1", "client_lag"), ("H3", "pool_wait")):
        values[rule] = _p99(view.distribution(metric, view.in_window).samples.values)
        missing[rule] = "no request was sent" if rule == "H1" else "no connection was reused"
    _from_load_process(data, values, missing)
    values["H7"] = _rate_deviation(view)
    missing["H7"] = "no request was due"
    values["H9"] = _without_record(data)
    missing["H9"] = "the plan is not in the run directory"
    values["H10"], missing["H10"] = _counter_residual(data)
    values["H12"], missing["H12"] = _gateway_difference(data, view)
    skew = float(sent["skew_ns"].max()) * 1e-9 if len(sent) else 0.0
    kernel = len(sent) > 0 and bool((sent["stamp"] == "kernel").all())
    medians = _medians(view, data.judging.limits.min_class_n)
    return Signals(medians, kernel, values, missing, skew)


def _p99(values: Values) -> float | None:
    """p99, or the maximum where there are too few samples: a lag must not hide behind a small n."""
    if len(values) == 0:
        return None
    found = quantile(np.sort(values), 0.99)
    return float(values.max()) if found is None else found


def _from_load_process(data: RunData, values: dict[str, float | None], missing: dict[str, str]) -> None:
    keys = {
        "H2": "loop_lag_p99_ns",
        "H4": "gc_pause_max_ns",
        "H5": "cpu_ratio",
        "H6": "steal_ratio",
        "H8": "lost",
    }
    not_there = (
        "nothing to measure in virtual time" if data.judging.virtual else "the load process did not report it"
    )
    for rule, key in keys.items():
        given = data.signals.get(key)
        scale = 1e-9 if key.endswith("_ns") else 1.0
        values[rule] = None if given is None else float(given) * scale
        missing[rule] = not_there
    littles = data.signals.get("littles") or {}
    integral, total = littles.get("integral"), littles.get("sum")
    values["H11"], missing["H11"] = None, "the driver did not integrate its in-flight counter"
    if integral is not None and total is not None:
        largest = max(abs(integral), abs(total))
        values["H11"] = abs(integral - total) / largest if largest else 0.0


def _rate_deviation(view: View) -> float | None:
    asked = int(view.window["due"].notna().sum())
    offered = int((view.window["due"].notna() & view.window["start"].notna()).sum())
    return offered / asked - 1 if asked else None


def _without_record(data: RunData) -> float | None:
    """Planned ids without a record, records beyond one per id and attempt, and records that only say that
    the load process died before there was one."""
    if data.plan is None:
        return None
    ids = data.records[["id", "attempt"]]
    doubled = int(ids.duplicated().sum())
    unknown = int((data.records["outcome"] == Outcome.UNKNOWN).sum())
    return float(len(set(data.plan["id"]) - set(data.records["id"])) + doubled + unknown)


REQUESTS_TOTAL = "headrace_router_requests_total"
_CUT_BY_CLIENT = (Outcome.CANCELLED_BY_PLAN, Outcome.CENSORED_BY_RUN_END, Outcome.CLIENT_TIMEOUT)


def _counter_residual(data: RunData) -> tuple[float | None, str]:
    """Requests counted by the gateway during the run minus records of requests that reached it. Of those
    that the client cut off before any answer nobody can say whether they did: they excuse that many."""
    if not data.judging.own_engine:
        return None, "not our engine"
    counted = _counter_delta(data)
    if counted is None:
        return None, f"{REQUESTS_TOTAL} was not scraped before and after the load"
    records = data.records
    unknown = records["outcome"] == Outcome.UNKNOWN
    sent = records["sent"].notna() & (records["outcome"] != Outcome.CONNECT_ERROR)
    cut = sent & records["headers"].isna() & records["outcome"].isin(_CUT_BY_CLIENT)
    most = int((sent | unknown).sum())
    least = int((sent & ~cut & ~unknown).sum())
    return float(max(counted - most, 0) + min(counted - least, 0)), ""


def _counter_delta(data: RunData) -> float | None:
    """Increase over the scrapes, summed over labels; a fall is a restart and counts from 0."""
    given = data.signals.get("gateway_requests")
    if given is not None:
        return float(given)
    if data.scrapes is None:
        return None
    series = data.scrapes[data.scrapes["name"] == REQUESTS_TOTAL]
    if series["t"].nunique() < 2:
        return None
    total = 0.0
    for _, part in series.sort_values("t", kind="stable").groupby(["target", "labels"], sort=True):
        steps = np.diff(part["value"].to_numpy(dtype=np.float64))
        later = part["value"].to_numpy(dtype=np.float64)[1:]
        total += float(np.where(steps >= 0, steps, later).sum())
    return total


def _gateway_difference(data: RunData, view: View) -> tuple[float | None, str]:
    """p99 of client TTFT minus the gateway's (last body byte to first write)."""
    if not data.judging.own_engine:
        return None, "not our engine"
    joined = view.window
    if "received" not in joined or "first_write" not in joined:
        return None, "no truth of the engine"
    client = METRICS["ttft"].per_request
    assert client is not None
    server = (joined["first_write"] - joined["received"]).to_numpy(dtype=np.float64) * 1e-9
    difference = client(joined) - server
    return _p99(difference[~np.isnan(difference)]), "no request has both times"


def _medians(view: View, enough: int) -> tuple[float, ...]:
    found = []
    for name in view.by_class():
        ttft = view.distribution("ttft", view.in_window & view.of_class(name))
        if ttft.n >= enough:
            found.append(float(np.median(ttft.samples.values)))
    return tuple(found)
