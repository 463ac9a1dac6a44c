"""The columns of a sweep as people read them, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.metrics import Kind
from results.report.prices import small
from results.report.words import NOTHING, duration, percent, quantity, rate, tokens
from results.sweep.columns import FACTORS, GROUPS, HITS, LATENCIES, QUANTILES, SHARES
from results.sweep.phrases import name_of
from results.sweep.points import Decision
from results.sweep.spec import PointRun
from results.view import TIERS

TONES = {
    Decision.PASS: "good",
    Decision.FAIL: "bad",
    Decision.UNDECIDED: "warn",
    Decision.LONGER: "warn",
    Decision.CLIENT: "warn",
}

HEADS: dict[str, tuple[str, str]] = {
    "planned": ("requests", "planned"),
    "asked_rate": ("requests /s", "asked"),
    "offered_rate": ("requests /s", "offered"),
    "completed_rate": ("requests /s", "completed"),
    "good_rate": ("requests /s", "good"),
    "attainment": ("", "attained"),
    "attainment_strict": ("", "attained, strict"),
    "completed_share": ("", "completed"),
    **{group: ("requests", group) for group in GROUPS},
    **{f"{metric}_{q}": (metric, q) for metric in (*LATENCIES, *FACTORS) for q in QUANTILES},
    "good_tokens": ("tokens /s", "of good ones"),
    "out_tps": ("tokens /s", "of completed ones"),
    "peak_tps": ("tokens /s", "fullest second"),
    "hit_token_weighted": ("prompts read from cache", "of tokens"),
    "hit_request_mean": ("prompts read from cache", "mean"),
    "hit_request_count": ("prompts read from cache", "requests that read"),
    "hit_theoretical": ("prompts read from cache", "at best"),
    "cache_report_coverage": ("prompts read from cache", "requests that tell"),
    **{f"cached_tokens_{tier}": ("prompt tokens read from cache", tier) for tier in TIERS},
    "cached_tokens_reported": ("prompt tokens read from cache", "reported"),
    "kv_mean": ("KV in use", "mean"),
    "kv_max": ("KV in use", "max"),
    "prefill_tokens_s": ("tokens /s", "prefill"),
    "decode_tokens_s": ("tokens /s", "decode"),
    "allocation_failures": ("memory", "allocation failures"),
    "preemptions": ("memory", "preemptions"),
    "service_gap": ("tenants", "service gap"),
    "cost_per_good": ("a good request", "costs"),
    "energy_per_good": ("a good request", "J"),
    "over_saturated": ("", "over-saturated"),
}
"""(what several columns have in common, head) of every column, in the order of the table."""

_LATENCY = {f"{metric}_{q}" for metric in LATENCIES for q in QUANTILES}
_FACTOR = {f"{metric}_{q}" for metric in FACTORS for q in QUANTILES}
_SHARES = {"attainment", "kv_mean", "kv_max", *SHARES, *HITS}
_TOKENS = {column for column in HEADS if "tokens" in column} | {"out_tps", "peak_tps", "service_gap"}
_SMALL = {"cost_per_good", "energy_per_good"}
_RATES = {"asked_rate", "offered_rate", "completed_rate", "good_rate"}


def cell(row: Mapping[str, Any], column: str) -> str:
    """One number with its unit; a dash where it is not known."""
    value = row[column]
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column in _LATENCY:
        return duration(value)
    if column in _FACTOR:
        return quantity(value, Kind.FACTOR)
    if column in _SMALL:
        return small(value)
    if column in _SHARES:
        return percent(value)
    if column in _RATES:
        return rate(value)
    return tokens(value) if column in _TOKENS else f"{value:,.0f}"


def reason(row: Mapping[str, Any], column: str) -> str:
    """Why a number is not there."""
    return str(row["reasons"].get(column, ""))


def decision(run: PointRun) -> str:
    """What the run says, in a word or two."""
    return {Decision.LONGER: "ran longer", Decision.UNDECIDED: "undecided"}.get(
        run.decision, run.decision.value
    )


def at(run: PointRun) -> str:
    return name_of(run.at)
