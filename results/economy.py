"""What a good request costs, in money and in energy (MEASUREMENT C43).

Both are of the whole window and of all classes: they share the replicas. Replicas count while they load,
idle and drain too; only one whose process is gone counts for nothing. Power is that of all devices that could
be read, whoever made them work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.deciding import share_interval
from results.outcomes import Mask
from results.rates import rate_masks
from results.run import RunData
from results.stats.distribution import Estimate
from results.stats.quantiles import Interval, Values
from results.view import View

REPLICAS = "headrace_fleet_replicas"
ENERGY = "headrace_host_energy_joules_total"
"""J that a device has used since some time before the run; label ``device``."""
POWER = "headrace_engine_device_power_watts"
"""W of a device that the target tells of itself."""
SLACK_NS = 2_500_000_000
"""So much of the window's begin and end may lie outside of the readings: they come once a second."""
NO_GOOD = "no good request"
PER_GOOD = ("cost_per_good", "energy_per_good")


@dataclass(frozen=True, slots=True)
class Economy:
    """``replica_s`` in s; ``energy`` in J; ``devices`` are those that were read."""

    price: float | None
    replica_s: float
    energy: Estimate
    devices: tuple[str, ...]
    cost_per_good: Estimate
    energy_per_good: Estimate

    def block(self) -> dict[str, Any]:
        """For summary.json."""
        found: dict[str, Any] = {
            "price": self.price,
            "replica_seconds": self.replica_s,
            "devices": list(self.devices),
        }
        if self.price is None:
            found["price_reason"] = NO_PRICE
        for name, one in (
            ("cost_per_good", self.cost_per_good),
            ("energy_j", self.energy),
            ("energy_per_good", self.energy_per_good),
        ):
            found[name] = one.value
            if one.value is None:
                found[f"{name}_reason"] = one.reason
            elif one.interval is not None:
                found[f"{name}_ci95"] = [one.interval.low, one.interval.high]
        return found

    def of(self, metric: str) -> Estimate:
        """``cost_per_good`` or ``energy_per_good``."""
        found: Estimate = getattr(self, metric)
        return found


NO_PRICE = "the scenario has no target.price"


def economy(data: RunData, view: View) -> Economy:
    """Over the window of a run."""
    price, replicas = data.judging.price, replica_seconds(data)
    energy, devices = energy_used(data)
    cost = Estimate(None, reason=NO_PRICE) if price is None else Estimate(price * replicas)
    good = rate_masks(view.data, view.marks, view.window_spans)["good"]
    return Economy(price, replicas, energy, devices, _per(cost, good), _per(energy, good))


def _per(total: Estimate, good: Mask) -> Estimate:
    """A total, which is exact, over a number of good requests, which is not."""
    if total.value is None:
        return total
    if not (n := int(good.sum())):
        return Estimate(None, reason=NO_GOOD, n=0)
    share = share_interval(good)
    low, high = (total.value / (end * len(good)) if end else None for end in (share.high, share.low))
    return Estimate(total.value / n, Interval(low, high), n=n)


def replica_seconds(data: RunData) -> float:
    """Each number of replicas holds from its scrape to the next; a target that does not tell has as many
    all along as the scenario says."""
    a, b = data.judging.window
    rows = _series(data, REPLICAS)
    if not len(rows):
        return data.judging.replicas * max(0, b - a) * 1e-9
    there = rows[[json.loads(text).get("state") != "gone" for text in rows["labels"]]]
    counts = there.groupby("t")["value"].sum().sort_index()
    times = counts.index.to_numpy(dtype=np.float64)
    begins, ends = np.append(a, times[1:]) if len(times) else times, np.append(times[1:], b)
    held = np.clip(np.minimum(ends, b) - np.maximum(begins, a), 0, None)
    return float((held * counts.to_numpy(dtype=np.float64)).sum()) * 1e-9


def energy_used(data: RunData) -> tuple[Estimate, tuple[str, ...]]:
    """J of all devices over the window, and which they are."""
    window = data.judging.window
    for name, integral in ((ENERGY, _of_counter), (POWER, _of_gauge)):
        rows = _series(data, name)
        if not len(rows):
            continue
        total, devices = 0.0, []
        for (target, labels), part in rows.groupby(["target", "labels"], sort=True):
            used = integral(part, window)
            if used is None:
                return Estimate(None, reason="power was not read through the whole window"), ()
            devices.append(str(json.loads(str(labels)).get("device", target)))
            total += used
        return Estimate(total), tuple(devices)
    return Estimate(None, reason=_why_unread(data)), ()


def _why_unread(data: RunData) -> str:
    if data.judging.virtual:
        return "virtual time has no devices"
    told: Mapping[str, Any] = data.manifest.get("power") or {}
    return str(told.get("reason") or "nothing told how much power the target draws")


def _series(data: RunData, name: str) -> pd.DataFrame:
    if data.scrapes is None:
        return pd.DataFrame(columns=["t", "target", "name", "labels", "value"])
    return data.scrapes[data.scrapes["name"] == name].sort_values("t", kind="stable")


def _readings(part: pd.DataFrame, window: tuple[int, int]) -> tuple[Values, Values] | None:
    """(ns, value) if they reach over the window."""
    times, values = part["t"].to_numpy(dtype=np.float64), part["value"].to_numpy(dtype=np.float64)
    a, b = window
    if len(times) < 2 or times[0] > a + SLACK_NS or times[-1] < b - SLACK_NS:
        return None
    return times, values


def _of_counter(part: pd.DataFrame, window: tuple[int, int]) -> float | None:
    found = _readings(part, window)
    if found is None:
        return None
    times, values = found
    steps = np.diff(values)
    grown = np.concatenate([[0.0], np.cumsum(np.where(steps >= 0, steps, values[1:]))])
    begin, end = np.interp(window, times, grown)
    return float(end - begin)


def _of_gauge(part: pd.DataFrame, window: tuple[int, int]) -> float | None:
    found = _readings(part, window)
    if found is None:
        return None
    times, watts = found
    inner = times[(times > window[0]) & (times < window[1])]
    moments = np.concatenate([[window[0]], inner, [window[1]]])
    return float(np.trapezoid(np.interp(moments, times, watts), moments)) * 1e-9
