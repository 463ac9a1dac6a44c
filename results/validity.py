"""Client health: may the client's numbers be believed? (MEASUREMENT 8)

``results.signals`` reads the signals off a run, ``health`` judges them. A signal that was not measured is
None and judges nothing; its row says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from results.judging import HealthLimits
from results.signals import RULES, Signals

State = Literal["valid", "degraded", "invalid"]
STATES: tuple[State, ...] = ("valid", "degraded", "invalid")

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
class Health:
    """The verdict on the client, and what it rests on."""

    verdict: State
    limit_a: float
    """A of MEASUREMENT 8, s."""
    rows: dict[str, dict[str, Any]]
    error_bound: float | None
    """s: H1 + H2 + clock skew of this run; None = a part of it was not measured."""
    signals: Signals

    @property
    def reasons(self) -> list[str]:
        """The rules that set the verdict."""
        return [r for r, row in self.rows.items() if row["state"] == self.verdict != "valid"]

    @property
    def doubt(self) -> float:
        """s: how near to its bound a latency gate may not be decided."""
        if self.verdict != "degraded":
            return 0.0
        return math.inf if self.error_bound is None else self.error_bound


def limit_a(medians: tuple[float, ...], limits: HealthLimits) -> float:
    """max(5 ms, 5 % of the smallest class median of ttft)."""
    return max(limits.latency_floor, limits.latency_share * min(medians, default=0.0))


def health(signals: Signals, limits: HealthLimits) -> Health:
    """Judge the signals; the verdict is the worst row."""
    a = limit_a(signals.ttft_medians, limits)
    rows = {rule: _row(rule, signals, *_bounds(rule, a, limits)) for rule in RULES}
    states: list[State] = [row["state"] for row in rows.values() if row["state"]]
    verdict: State = STATES[max((STATES.index(state) for state in states), default=0)]
    return Health(verdict, a, rows, _error_bound(signals), signals)


def _bounds(rule: str, a: float, limits: HealthLimits) -> tuple[float, float]:
    """(valid up to, degraded up to) of a rule."""
    return {
        "H1": (a, 2 * a),
        "H2": (a, 2 * a),
        "H3": (limits.pool_wait, max(a, limits.pool_wait)),
        "H4": (a, math.inf),
        "H5": (limits.cpu, math.inf),
        "H6": (limits.steal, math.inf),
        "H7": (limits.offered, limits.offered_degraded),
        "H8": (0.0, 0.0),
        "H9": (0.0, 0.0),
        "H10": (0.0, 0.0),
        "H11": (limits.little, limits.little_degraded),
        "H12": (a, 2 * a),
    }[rule]


def _row(rule: str, signals: Signals, valid: float, degraded: float) -> dict[str, Any]:
    """A line of H1..H12. ``degraded_limit`` is absent where nothing makes the client invalid."""
    row: dict[str, Any] = {"value": None, "limit": valid, "state": None}
    if math.isfinite(degraded):
        row["degraded_limit"] = degraded
    if rule in signals.worst:
        row["process"] = signals.worst[rule]
    value = signals.values.get(rule)
    if rule == "H1" and signals.clock_faults:
        return row | {"value": value, "state": "invalid", "reason": signals.clock_fault}
    if rule == "H8" and signals.died:
        return row | {"value": value, "state": "invalid", "reason": signals.died}
    if value is None:
        return row | {"reason": signals.missing.get(rule, "not measured")}
    if not math.isfinite(value):
        return row | {"state": "invalid", "reason": f"{value} is no measurement"}
    return row | {"value": value, "state": _state(rule, value, valid, degraded, signals)}


def _state(rule: str, value: float, valid: float, degraded: float, signals: Signals) -> State:
    size = round(abs(value), 12)
    state: State = "valid" if size <= valid else "degraded" if size <= degraded else "invalid"
    if rule == "H2" and signals.kernel_stamps and state == "invalid":
        return "degraded"  # the stamps are the kernel's: a late loop cannot move them
    return state


def _error_bound(signals: Signals) -> float | None:
    parts = [signals.values.get("H1"), 0.0 if signals.virtual else signals.values.get("H2"), signals.skew_s]
    known = [part for part in parts if part is not None and math.isfinite(part)]
    return sum(known) if len(known) == len(parts) and not signals.clock_faults else None
