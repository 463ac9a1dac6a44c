"""From a gate to a verdict: PASS, FAIL or INCONCLUSIVE, with the reason (MEASUREMENT 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from results import cachehits
from results.fairness import service_gap
from results.gates import STEADY, Gate
from results.goodput import attainment
from results.metrics import METRICS, Kind
from results.outcomes import Mask
from results.rates import Spans, length_s, rate_masks, rates
from results.slices import select
from results.stats.bootstrap import mean_interval
from results.stats.distribution import Estimate
from results.stats.quantiles import Interval
from results.tokens import weighted_tpot
from results.validity import Health
from results.view import View

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"

_RATE_OF = {
    "asked_rate": "asked",
    "offered_rate": "offered",
    "completed_rate": "completed",
    "goodput": "good",
    "goodput_tokens": "good_tokens",
    "out_tps": "out_tps",
    "peak_tps": "peak_tps",
}


@dataclass(frozen=True)
class Evidence:
    """All that gates are decided from."""

    view: View
    health: Health
    counters: dict[str, dict[str, Estimate]]
    faults: list[dict[str, Any]]
    contract: str
    """held, violated or unverified"""
    strict: bool = False
    economy: Mapping[str, Estimate] = field(default_factory=dict)
    """By metric, those that are of the whole window."""
    cut_short: str | None = None
    """Why the window is not whole, if it is not: shares and rates over it, which count what was never
    sent, then decide nothing."""

    def fault(self, name: str) -> dict[str, Any] | None:
        return next((f for f in self.faults if f.get("id") == name), None)


def decide(gate: Gate, evidence: Evidence) -> dict[str, Any]:
    """The line of summary.json: text, verdict, value, interval, margin, reason (and ``marginal``).

    ``margin`` is the room to the bound in the metric's unit, negative when it is broken.
    """
    doubt = _why_undecidable(gate, evidence)
    unseen = gate.during not in (None, STEADY) and gate.during not in evidence.view.faults
    found = Estimate(None, reason=doubt) if unseen else measure(gate, evidence)
    line: dict[str, Any] = {
        "text": gate.text,
        "value": found.value,
        "interval": None if found.interval is None else [found.interval.low, found.interval.high],
        "margin": None if found.value is None else _margin(gate, found.value),
        "n": found.n,
    }
    verdict, reason, marginal = _verdict(gate, found, evidence)
    if doubt is not None:
        verdict, reason, marginal = INCONCLUSIVE, doubt, False
    elif marginal and evidence.strict and verdict == PASS:
        verdict, reason = INCONCLUSIVE, "marginal, and --strict is given"
    return line | {"verdict": verdict, "reason": reason, "marginal": marginal}


def _margin(gate: Gate, value: float) -> float:
    return value - gate.bound if gate.op in (">", ">=") else gate.bound - value


def _why_undecidable(gate: Gate, evidence: Evidence) -> str | None:
    """A reason of section 8, C22, C26 or C48 not to decide, whatever the value."""
    if gate.regression:
        return "no baseline runs to compare with"
    if gate.needs_client:
        if evidence.cut_short is not None and gate.kind is not Kind.LATENCY:
            return evidence.cut_short
        if evidence.health.verdict == "invalid":
            return f"the client was invalid ({', '.join(evidence.health.reasons)})"
        if evidence.strict and evidence.health.verdict == "degraded":
            return f"the client was degraded ({', '.join(evidence.health.reasons)}), and --strict is given"
        if evidence.contract == "violated":
            return "the cache was not as declared"
    if gate.during not in (None, STEADY):
        return _why_fault_unseen(str(gate.during), evidence)
    if gate.metric in ("attainment", "attainment_strict", "goodput", "goodput_tokens") and gate.group is None:
        view = evidence.view
        for name in view.names if gate.scope is None else [gate.scope]:
            if attainment(view.marks.at(view.in_window & view.of_class(name))).undecidable:
                return f"over 1 % of the answers of class {name} leave an SLO metric undefined"
    return None


def _why_fault_unseen(name: str, evidence: Evidence) -> str | None:
    fault = evidence.fault(name)
    if fault is None or fault.get("injected") is None:
        return f"the fault {name!r} was not injected"
    if fault.get("proven") is None:
        return f"the fault {name!r} was not seen to take effect"
    return None


def _verdict(gate: Gate, found: Estimate, evidence: Evidence) -> tuple[str, str | None, bool]:
    """(verdict, reason, marginal) from the value alone and the client's error bound."""
    if found.value is None:
        return INCONCLUSIVE, found.reason or "no value", False
    timed = gate.kind is Kind.LATENCY and gate.group is None
    if timed and abs(found.value - gate.bound) < evidence.health.doubt:
        return INCONCLUSIVE, "nearer to its bound than a degraded client can tell", False
    if gate.meets(found.value):
        return PASS, None, not _wholly(gate, found, meets=True)
    if _wholly(gate, found, meets=False):
        return FAIL, None, False
    return INCONCLUSIVE, "the point violates the bound, its 95 % interval reaches it", False


def _wholly(gate: Gate, found: Estimate, *, meets: bool) -> bool:
    """Whether every value of the interval meets (or violates) the bound. An exact value is its interval;
    a missing side is unbounded."""
    if found.interval is None or gate.op in ("==", "!="):
        return True
    low = -np.inf if found.interval.low is None else found.interval.low
    high = np.inf if found.interval.high is None else found.interval.high
    return gate.meets(low) == meets and gate.meets(high) == meets


def measure(gate: Gate, evidence: Evidence) -> Estimate:
    """The value that the gate is about."""
    view = evidence.view
    if gate.group == "recovery":
        return _recovery(gate, evidence)
    if gate.group is not None:
        return evidence.counters[gate.group][gate.metric]
    if METRICS.get(gate.metric) is not None and METRICS[gate.metric].of_window:
        return evidence.economy[gate.metric]
    rows = view.of_class(gate.scope) & select(view.data, dict(gate.where))
    if gate.kind is Kind.RATE:
        return _rate(view, gate.metric, rows, _spans(view, gate.during))
    if gate.metric == "service_gap":
        return service_gap(view, rows, _spans(view, gate.during))
    rows &= view.in_window
    if gate.during == STEADY:
        rows &= view.steady()
    elif gate.during is not None:
        rows &= view.meets(gate.during)
    if gate.during is not None and not rows.any():
        return Estimate(None, reason=f"no request of the window was {_there(gate.during)}", n=0)
    return _of_rows(view, gate, rows)


def _there(during: str) -> str:
    return "steady" if during == STEADY else f"alive during {during!r}"


def _of_rows(view: View, gate: Gate, rows: Mask) -> Estimate:
    if gate.is_outcome:
        return _outcome(view, gate, rows)
    if gate.metric.startswith(("hit_", "cache_report")):
        return cachehits.hit(view.data[rows], gate.metric)
    if gate.metric == "tpot_token_weighted":
        return weighted_tpot(view, rows)
    if METRICS[gate.metric].samples is None:
        return _share(view, gate.metric, rows)
    assert gate.stat is not None, "the parser asks for a statistic"
    return view.distribution(gate.metric, rows).estimate(gate.stat)


def share_interval(mask: Mask) -> Interval:
    """Of the mean of a mark over requests in due order."""
    return mean_interval(mask.astype(np.float64), np.arange(len(mask)), len(mask))


def _share(view: View, metric: str, rows: Mask) -> Estimate:
    """attainment (as gates take it), attainment_strict, completed_share, conn_new; the counts planned,
    incorrect."""
    marks = view.marks.at(rows)
    found = attainment(marks)
    if metric == "planned":
        return Estimate(float(found.planned))
    if metric == "incorrect":
        return Estimate(float(found.incorrect))
    if metric == "completed_share":
        base, of = np.ones(len(marks.good), dtype=bool), marks.completed
    elif metric == "conn_new":
        data = view.data[rows]
        base, of = data["conn"].notna().to_numpy(dtype=bool), data["conn_new"].to_numpy(dtype=bool)
    else:
        strict = metric == "attainment_strict" or found.uses_strict
        base, of = ~marks.cancelled & (strict | ~marks.excluded), marks.good
    if not base.any():
        return Estimate(None, reason="no request to count", n=0)
    return Estimate(float(of[base].mean()), share_interval(of[base]), n=int(base.sum()))


def _outcome(view: View, gate: Gate, rows: Mask) -> Estimate:
    data = view.data[rows]
    mask = ((data["outcome"] == gate.metric) | (data["group"] == gate.metric)).to_numpy(dtype=bool)
    if not len(mask):
        return Estimate(None, reason="no request to count", n=0)
    if gate.stat == "count":
        return Estimate(float(mask.sum()), n=len(mask))
    return Estimate(float(mask.mean()), share_interval(mask), n=len(mask))


def _spans(view: View, during: str | None) -> Spans:
    """The window, its steady part or a fault's part of it."""
    if during is None:
        return view.window_spans
    return view.steady_spans() if during == STEADY else view.fault_spans(during)


def _rate(view: View, metric: str, rows: Mask, spans: Spans) -> Estimate:
    """A rate over ``spans``; the plan's own rates are exact."""
    data, marks, name = view.data[rows], view.marks.at(rows), _RATE_OF[metric]
    value = rates(data, marks, spans)[name]
    if value is None:
        return Estimate(None, reason="the window has no such part")
    if name not in ("completed", "good") or not len(data):
        return Estimate(value)
    share = share_interval(rate_masks(data, marks, spans)[name])
    scale = len(data) / length_s(spans)
    bounds = [None if s is None else s * scale for s in (share.low, share.high)]
    return Estimate(value, Interval(bounds[0], bounds[1]), n=len(data))


def _recovery(gate: Gate, evidence: Evidence) -> Estimate:
    """Injection to recovery (``seconds``) or proof (``detect_seconds``); without ``during`` the longest."""
    chosen = [f for f in evidence.faults if gate.during in (None, f.get("id"))]
    ends = ("recovered", "healed") if gate.metric == "seconds" else ("proven",)
    spans = []
    for fault in chosen:
        if fault.get("proven") is None:
            return Estimate(None, reason=f"the fault {fault.get('id')!r} was not seen to take effect")
        end = next((fault[k] for k in ends if fault.get(k) is not None), None)
        if fault.get("injected") is None or end is None:
            return Estimate(None, reason=f"the fault {fault.get('id')!r} was not seen to {ends[-1]}")
        spans.append((end - fault["injected"]) * 1e-9)
    if not spans:
        return Estimate(None, reason="no fault was played")
    return Estimate(max(spans), n=len(spans))
