"""What a run tells of its client: one number per health rule (MEASUREMENT 8), and what they rest on.

Read off the records, the load processes' own signals, the plan and the engine's truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from results.clockfaults import clock_faults
from results.metrics import METRICS
from results.record import CAP, Outcome
from results.run import RunData
from results.stats.quantiles import Values, quantile
from results.stats.saturation import integral
from results.view import View

RULES = tuple(f"H{i}" for i in range(1, 13))

_FROM_PROCESS = {
    "H2": "loop_lag_p99_ns",
    "H4": "gc_pause_max_ns",
    "H5": "cpu_ratio",
    "H6": "steal_ratio",
    "H8": "lost",
}
"""Rule -> key in ``RunData.signals`` (loadgen.health.merged)."""


@dataclass(frozen=True, slots=True)
class Signals:
    """One number per rule (times in s, shares as ratios); None = not measured, see ``missing``."""

    ttft_medians: tuple[float, ...] = ()
    """Of the classes with enough samples: the smallest sets the limit A."""
    kernel_stamps: bool = False
    """Every read of the window has the kernel's receive stamp."""
    values: dict[str, float | None] = field(default_factory=dict)
    """By rule id H1..H12."""
    missing: dict[str, str] = field(default_factory=dict)
    skew_s: float = 0.0
    """Largest bound of a conversion from the kernel's clock."""
    virtual: bool = False
    """There is no event loop that could be late."""
    clock_faults: int = 0
    """Records with stamps in an order that cannot have happened."""
    clock_fault: str = ""
    worst: dict[str, int] = field(default_factory=dict)
    """Rule -> the load process that its value is of, where there are several."""
    kernel_share: float | None = None
    """Of the window's records with reads, those whose every read has a kernel stamp."""
    coalesced_share: float | None = None
    """Of the window's token events, those that were not the first of their read: upper bounds."""
    conn_new_share: float | None = None
    died: str = ""
    """Which load process ended before it could say what it lost, and why; "" = none did."""
    unread_s: float | None = None
    """p99 of how long requests lay unread at the gateway, which H12 leaves out."""
    hidden_retries: float | None = None
    """Requests that the server counted beyond the client's attempts (C27)."""


def collect(data: RunData, view: View) -> Signals:
    """The signals of a run. ``data.signals`` comes from the load processes: see ``loadgen.health.merged``."""
    values: dict[str, float | None] = {}
    missing: dict[str, str] = {}
    worst: dict[str, int] = {}
    _lags(data, view, values, missing, worst)
    _from_processes(data, values, missing, worst)
    values["H7"], missing["H7"] = _rate_deviation(view), "no request was due"
    values["H9"], missing["H9"] = without_record(data), "the plan is not in the run directory"
    values["H10"], missing["H10"] = counter_residual(data)
    values["H11"], why = _little(data, view)
    missing["H11"] = why or missing["H8"]
    unread = _unread(data, view)
    values["H12"], missing["H12"] = _gateway_difference(data, view, unread)
    faults, example = clock_faults(view.data)
    seen = view.window[view.window["headers"].notna()]
    kernel = (seen["stamp"] == "kernel").to_numpy(dtype=bool)
    return Signals(
        _medians(view, data.judging.limits.min_class_n),
        len(seen) > 0 and bool(kernel.all()),
        values,
        missing,
        float(seen["skew_ns"].max()) * 1e-9 if len(seen) else 0.0,
        data.judging.virtual,
        faults,
        example,
        worst,
        float(kernel.mean()) if len(seen) else None,
        coalesced_share(view.window),
        conn_new_share(view.window),
        _died(data),
        None if unread is None else p99(unread),
        _beyond_attempts(data),
    )


def p99(values: Values) -> float | None:
    """p99, or the maximum where there are too few samples: a lag must not hide behind a small n."""
    if len(values) == 0:
        return None
    found = quantile(np.sort(values), 0.99)
    return float(values.max()) if found is None else found


def _lags(
    data: RunData,
    view: View,
    values: dict[str, float | None],
    missing: dict[str, str],
    worst: dict[str, int],
) -> None:
    """H1 and H3 from the records, and whose are the worst where several load processes sent them."""
    slices = _slices(data, view)
    for rule, metric in (("H1", "client_lag"), ("H3", "pool_wait")):
        samples = view.distribution(metric, view.in_window).samples
        values[rule] = p99(samples.values)
        missing[rule] = "no request was sent" if rule == "H1" else "no connection was reused"
        if slices is not None and samples.n:
            of = slices[samples.owners]
            worst[rule] = max(np.unique(of).tolist(), key=lambda s: p99(samples.values[of == s]) or 0.0)


def _slices(data: RunData, view: View) -> Values | None:
    """The load process of each record, if there were several."""
    if data.plan is None or "slice" not in data.plan or data.plan["slice"].nunique() < 2:
        return None
    found = data.plan.set_index("id")["slice"].reindex(view.data["id"]).fillna(-1)
    return found.to_numpy(dtype=np.float64).astype(np.int64)


def _from_processes(
    data: RunData, values: dict[str, float | None], missing: dict[str, str], worst: dict[str, int]
) -> None:
    unsaid = _why_unsaid(data)
    for rule, key in _FROM_PROCESS.items():
        given = data.signals.get(key)
        scale = 1e-9 if key.endswith("_ns") else 1.0
        values[rule] = None if given is None else float(given) * scale
        missing[rule] = unsaid
        if key in (data.signals.get("worst") or {}):
            worst[rule] = int(data.signals["worst"][key])


def _why_unsaid(data: RunData) -> str:
    """Why a load process's own signal may be missing."""
    if data.judging.virtual:
        return "nothing to measure in virtual time"
    return _died(data) or "the load process did not report it"


def _died(data: RunData) -> str:
    dead = [one for one in data.signals.get("processes") or () if "reason" in one]
    if not dead:
        return ""
    which, why = f"load process {dead[0]['process']}", str(dead[0]["reason"])
    return why if why.startswith(which) else f"{which}: {why}"


def _little(data: RunData, view: View) -> tuple[float | None, str]:
    """The drivers' in-flight counters, integrated at each change, against the lives of all attempts."""
    counted = (data.signals.get("littles") or {}).get("integral")
    if counted is None:
        return None, ""
    lived = integral(view.lives, *data.judging.window) * 1e-9
    largest = max(abs(counted), lived)
    return (abs(counted - lived) / largest if largest else 0.0), ""


def _rate_deviation(view: View) -> float | None:
    """Of what the driver was to send: what a declared cap held back for good is the scenario's will (C16)."""
    due = view.window[view.window["due"].notna()]
    held = (due["outcome"] == Outcome.DROPPED) | (due["start"].isna() & (due["error"] == CAP))
    meant = due[~held]
    asked, offered = len(meant), int(meant["start"].notna().sum())
    return offered / asked - 1 if asked else None


def without_record(data: RunData) -> float | None:
    """Planned ids without a record, records of nothing that was planned or of the same request twice, and
    records that only say that the load process died before there was one."""
    if data.plan is None:
        return None
    without = np.setxor1d(data.plan["id"].to_numpy(), data.records["id"].to_numpy())
    doubled = int(data.records["id"].duplicated().sum())
    unknown = int((data.records["outcome"] == Outcome.UNKNOWN).sum())
    return float(len(without) + doubled + unknown)


REQUESTS_TOTAL = "headrace_router_requests_total"
_CUT_BY_CLIENT = (Outcome.CANCELLED_BY_PLAN, Outcome.CENSORED_BY_RUN_END, Outcome.CLIENT_TIMEOUT)


def counter_residual(data: RunData) -> tuple[float | None, str]:
    """Requests counted by the gateway during the run minus the client's attempts that reached it. Of those
    that the client cut off before any answer nobody can say whether they did: they excuse that many."""
    if not data.judging.own_engine:
        return None, "not our engine"
    counted = _counter_delta(data)
    if counted is None:
        return None, f"{REQUESTS_TOTAL} was not scraped before and after the load"
    least, most = _reached(data.records)
    if data.attempts is not None:
        earlier = _reached(data.attempts)
        least, most = least + earlier[0], most + earlier[1]
    return float(max(counted - most, 0) + min(counted - least, 0)), ""


def _reached(records: pd.DataFrame) -> tuple[int, int]:
    """(at least, at most) so many of them reached the server."""
    unknown = records["outcome"] == Outcome.UNKNOWN
    sent = records["sent"].notna() & (records["outcome"] != Outcome.CONNECT_ERROR)
    cut = sent & records["headers"].isna() & records["outcome"].isin(_CUT_BY_CLIENT)
    return int((sent & ~cut & ~unknown).sum()), int((sent | unknown).sum())


def _beyond_attempts(data: RunData) -> float | None:
    residual, _ = counter_residual(data)
    return None if residual is None else max(residual, 0.0)


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


def _gateway_difference(data: RunData, view: View, unread: Values | None) -> tuple[float | None, str]:
    """p99 of client TTFT minus the gateway's (last body byte to first write)."""
    if not data.judging.own_engine:
        return None, "not our engine"
    joined = view.window
    if unread is None or "first_write" not in joined:
        return None, "no truth of the engine"
    client = METRICS["ttft"].per_request
    assert client is not None
    server = (joined["first_write"] - joined["received"]).to_numpy(dtype=np.float64) * 1e-9
    difference = client(joined) - server - unread
    return p99(difference[~np.isnan(difference)]), "no request has both times"


def _unread(data: RunData, view: View) -> Values | None:
    """How long the requests of the window lay at the gateway, sent and not yet read, in s. That is a busy
    gateway's doing, not the client's; 0 where the two may not stamp the same clock. None: no truth."""
    if "received" not in view.window:
        return None
    joined, one_machine = view.window, data.manifest.get("co_located") and not data.manifest.get("placement")
    if view.t0_ns is None or not one_machine:
        return np.zeros(len(joined))
    waited = (joined["received"] - view.t0_ns - joined["sent"]).to_numpy(dtype=np.float64) * 1e-9
    return np.nan_to_num(np.maximum(waited, 0.0))


def coalesced_share(data: pd.DataFrame) -> float | None:
    events = sum(len(e) for e in data["event_us"])
    return float(data["coalesced"].sum()) / events if events else None


def conn_new_share(data: pd.DataFrame) -> float | None:
    connected = data[data["conn"].notna()]
    return float(connected["conn_new"].mean()) if len(connected) else None


def _medians(view: View, enough: int) -> tuple[float, ...]:
    found = []
    for name in view.names:
        ttft = view.distribution("ttft", view.in_window & view.of_class(name))
        if ttft.n >= enough:
            found.append(float(np.median(ttft.samples.values)))
    return tuple(found)
