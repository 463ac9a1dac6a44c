"""What a sweep records of a run, by class and in all (MEASUREMENT C46).

Every column is a number, or None with its reason. Engine-side numbers come from the truth and the
scrapes of the run, so a target that has neither gets reasons instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from results import cachehits
from results.economy import PER_GOOD
from results.outcomes import Mask, group_counts
from results.rates import per_second, rate
from results.run import RunData
from results.stats.saturation import saturation
from results.sweep import engine
from results.view import TIERS, View

RATES = ("asked", "offered", "completed", "good")
GROUPS = ("rejected", "expired", "cancelled")
SHARES = ("attainment_strict", "completed_share")
TOKENS = ("good_tokens", "out_tps", "peak_tps")
FACTORS = ("slowdown", "session_stretch")
HITS = (*cachehits.HITS, "hit_theoretical", "cache_report_coverage")
LATENCIES = ("queue_wait", "ttft_sched", "ttft", "itl", "tpot", "e2e_sched", "e2e")
"""Those from the due time say nothing of a closed loop: it has those from the send."""
QUANTILES = ("p50", "p90", "p99")
ALL = "all"

COLUMNS: tuple[str, ...] = (
    "planned",
    *(f"{name}_rate" for name in RATES),
    "attainment",
    *SHARES,
    *GROUPS,
    *(f"{metric}_{q}" for metric in (*LATENCIES, *FACTORS) for q in QUANTILES),
    *TOKENS,
    *HITS,
    *(f"cached_tokens_{tier}" for tier in TIERS),
    "cached_tokens_reported",
    "kv_mean",
    "kv_max",
    "prefill_tokens_s",
    "decode_tokens_s",
    "allocation_failures",
    "preemptions",
    "service_gap",
    *PER_GOOD,
    "over_saturated",
)
"""Rates in 1/s, latencies in s, tokens plain, shares 0 to 1."""


@dataclass(slots=True)
class Row:
    """One class, or all of them: a value or a reason for every column."""

    values: dict[str, float | int | bool | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: float | int | bool | None, reason: str | None = None) -> None:
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason or "not known"

    def as_dict(self) -> dict[str, Any]:
        return {**self.values, "reasons": self.reasons}


def columns(data: RunData, summary: Mapping[str, Any]) -> dict[str, Row]:
    """A row for each class and ``all``. ``summary`` is that of the run."""
    view = View.of(data)
    blocks: Iterator[tuple[str | None, Mapping[str, Any]]] = iter(
        [*summary["classes"].items(), (None, summary["all"])]
    )
    rows: dict[str, Row] = {}
    for name, block in blocks:
        row = Row()
        _client_side(row, block, own=data.judging.own_engine)
        _engine_side(row, data, view, name)
        _hits(row, view, name)
        for metric in PER_GOOD:
            row.put(metric, *_per_good(summary["economy"], metric, name))
        assert set(row.values) == set(COLUMNS), "each column is filled"
        row.values = {column: row.values[column] for column in COLUMNS}
        rows[name or ALL] = row
    return rows


def _client_side(row: Row, block: Mapping[str, Any], *, own: bool) -> None:
    row.put("planned", block["planned"])
    for name in RATES:
        row.put(f"{name}_rate", block["rates"][name], block["rates"].get("reason"))
    row.put("attainment", block["attainment_for_gates"], "no request to count")
    row.put("attainment_strict", block["attainment_strict"], "no request to count")
    row.put("completed_share", block["completed_share"], block.get("completed_share_reason"))
    for name in GROUPS:
        row.put(name, block["groups"][name])
    for name in TOKENS:
        row.put(name, block["rates"][name], block["rates"].get("reason"))
    row.put("service_gap", block["service_gap"], block.get("service_gap_reason"))
    for metric in (*LATENCIES, *FACTORS):
        table = block["metrics"][metric]
        for q in QUANTILES:
            reason = table.get(f"{q}_reason")
            if metric == "queue_wait" and not own:
                reason = "the target does not tell when it scheduled a request"
            row.put(f"{metric}_{q}", table[q], reason)


def _engine_side(row: Row, data: RunData, view: View, name: str | None) -> None:
    rows = view.of_class(name)
    spans = view.window_spans
    _cached(row, view, rows & view.in_window)
    usage = engine.pool_share(data) if name is None else engine.SHARED
    for end in ("mean", "max"):
        row.put(f"kv_{end}", *usage.part(end))
    row.put("prefill_tokens_s", *engine.prefill_rate(data, view, rows))
    tokens = per_second(view.data[rows], spans).sum()
    row.put("decode_tokens_s", rate(tokens, spans), "the window has no length")
    if name is None:
        row.put("allocation_failures", *engine.increase(data.scrapes, engine.ALLOCATION_FAILURES))
    else:
        row.put("allocation_failures", None, "counted for a worker, not for a class")
    preempted = _total(view.data[rows & view.in_window], "preemptions")
    if preempted[0] is None and name is None:
        preempted = engine.increase(data.scrapes, engine.PREEMPTIONS)
    row.put("preemptions", *preempted)
    row.put("over_saturated", *_over(view, rows))


def _hits(row: Row, view: View, name: str | None) -> None:
    data = view.data[view.of_class(name) & view.in_window]
    for hit in HITS:
        found = cachehits.hit(data, hit)
        row.put(hit, found.value, found.reason)


def _per_good(block: Mapping[str, Any], metric: str, name: str | None) -> tuple[float | None, str | None]:
    if name is not None:
        return None, "the classes share the replicas"
    return block[metric], block.get(f"{metric}_reason")


def _cached(row: Row, view: View, window: Mask) -> None:
    """Prompt tokens read from cache by requests of the window, by tier, and as answers report them."""
    data = view.data[window]
    for tier in TIERS:
        row.put(f"cached_tokens_{tier}", *_total(data, f"hit_{tier}"))
    told = data["cache_read"].dropna()
    found = int(told.sum()) if len(told) else None
    row.put("cached_tokens_reported", found, "no answer tells how much it read from cache")


def _total(data: pd.DataFrame, column: str) -> engine.Known:
    """Over the requests that the engine's truth knows."""
    known = data[column].dropna() if column in data else pd.Series(dtype=float)
    if len(known):
        return int(known.sum()), ""
    return None, "no truth of the engine" if column not in data else "the engine knows none of these requests"


def _over(view: View, rows: Mask) -> tuple[bool | None, str]:
    data = view.data[rows]
    window = view.data[rows & view.in_window]
    groups = group_counts(window)
    shed = (groups["rejected"] + groups["expired"]) / len(window) if len(window) else 0.0
    found = saturation(data, view.judging.window, shed)
    return found.over, found.reason or ""
