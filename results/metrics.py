"""Every metric of MEASUREMENT 3 as one small function over the frame of records.

A function of a *request metric* gives one value per request in s (NaN: undefined there). A *pooled*
metric gives many values per request. Rates and shares are in ``results.rates`` and ``results.goodput``;
they stand in this table too, so that gates, docs and dashboards know every name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from results.record import Outcome
from results.sessions import session_stretch
from results.stats.quantiles import Values
from results.token_events import Samples, icl, itl, itl_seen, stall

NS = 1e-9
HIDDEN_REASONING = "hidden_reasoning"
"""The warning of a record whose usage counts reasoning tokens that no event brought."""


class Kind(StrEnum):
    """What a metric is, which decides its units, statistics and when a gate on it may be decided."""

    LATENCY = "latency"
    LAG = "lag"
    RATE = "rate"
    RATIO = "ratio"
    FACTOR = "factor"
    COUNT = "count"
    AMOUNT = "amount"
    """A number in the unit that its line of the table says; a bound on it has none."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table. ``samples`` is None for numbers that are not distributions."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    samples: Callable[[pd.DataFrame], Samples] | None = None
    per_request: Callable[[pd.DataFrame], Values] | None = None
    """One value per row; what an SLO on this metric is compared with."""
    pooled: bool = False
    every: bool = False
    """Over all requests that have it, not only the completed ones."""
    of_window: bool = False
    """Of the whole window and all classes: it has no part for some of the requests."""


def _column(data: pd.DataFrame, name: str) -> Values:
    return data[name].to_numpy(dtype=np.float64)


def _e2e(begin: str) -> Callable[[pd.DataFrame], Values]:
    """To the last token; a whole (non-streamed) answer without one ends with its terminal stamp."""

    def values(data: pd.DataFrame) -> Values:
        last, whole = _column(data, "last_token"), ~data["streamed"].to_numpy(dtype=bool)
        end = np.where(whole & np.isnan(last), _column(data, "terminal"), last)
        result: Values = (end - _column(data, begin)) * NS
        return result

    return values


def _span(end: str, begin: str) -> Callable[[pd.DataFrame], Values]:
    def values(data: pd.DataFrame) -> Values:
        result: Values = (_column(data, end) - _column(data, begin)) * NS
        return result

    return values


def _streamed(of: Callable[[pd.DataFrame], Values]) -> Callable[[pd.DataFrame], Values]:
    """Non-streamed answers have e2e only: everything about tokens is undefined."""

    def values(data: pd.DataFrame) -> Values:
        result: Values = np.where(data["streamed"].to_numpy(dtype=bool), of(data), np.nan)
        return result

    return values


def tpot(data: pd.DataFrame) -> Values:
    """(last - first token)/(n_out - k_first); visible tokens only if reasoning was hidden (C7)."""
    span = _span("last_token", "first_token")(data)
    after_first = tokens_after_first(data)
    result: Values = np.divide(span, after_first, out=np.full(len(data), np.nan), where=after_first > 0)
    return result


def tokens_after_first(data: pd.DataFrame) -> Values:
    """n_out - k_first per request; NaN where n_out is unknown. Reasoning that is in usage and came in no
    event does not count: its time is not in the span either."""
    reasoning = np.nan_to_num(_column(data, "n_reasoning"))
    for row in np.flatnonzero(reasoning):
        if HIDDEN_REASONING not in data["warnings"].iloc[row]:
            reasoning[row] = 0
    result: Values = _column(data, "n_out") - reasoning - _column(data, "k_first")
    return result


def _mean_of(pooled: Callable[[pd.DataFrame], Samples]) -> Callable[[pd.DataFrame], Values]:
    def values(data: pd.DataFrame) -> Values:
        samples = pooled(data)
        count = np.bincount(samples.owners, minlength=len(data)).astype(np.float64)
        total = np.bincount(samples.owners, weights=samples.values, minlength=len(data))
        result: Values = np.divide(total, count, out=np.full(len(data), np.nan), where=count > 0)
        return result

    return values


def _waited_for(connection_new: bool) -> Callable[[pd.DataFrame], Values]:
    def values(data: pd.DataFrame) -> Values:
        wait = _span("conn", "start")(data)
        result: Values = np.where(data["conn_new"].to_numpy(dtype=bool) == connection_new, wait, np.nan)
        return result

    return values


def _send_lag(data: pd.DataFrame) -> Values:
    """From when this attempt was due: a retry is due when its backoff is over (C27)."""
    due = np.where(data["retry_due"].notna(), _column(data, "retry_due"), _column(data, "due"))
    result: Values = (_column(data, "start") - due) * NS
    return result


def _cap_wait(data: pd.DataFrame) -> Values:
    """What of the send lag a declared cap is to blame for."""
    sent = data["start"].notna().to_numpy(dtype=bool)
    result: Values = np.where(sent, _column(data, "cap_wait") * NS, np.nan)
    return result


def _client_lag(data: pd.DataFrame) -> Values:
    """What of the send lag nobody chose. In whole ns, so that a lag of 0 is 0."""
    due = np.where(data["retry_due"].notna(), _column(data, "retry_due"), _column(data, "due"))
    result: Values = (_column(data, "start") - due - _column(data, "cap_wait")) * NS
    return result


def _slowdown(data: pd.DataFrame) -> Values:
    """e2e over the time of the same request, hits kept, on the idle target."""
    if "alone" not in data:
        return np.full(len(data), np.nan)
    alone = _column(data, "alone")
    result: Values = np.divide(_e2e("start")(data), alone, out=np.full(len(data), np.nan), where=alone > 0)
    return result


def _queue_wait(data: pd.DataFrame) -> Values:
    """Received to first scheduled, from the engine's truth; undefined without it."""
    if "received" not in data or "first_scheduled" not in data:
        return np.full(len(data), np.nan)
    return _span("first_scheduled", "received")(data)


def _abort_latency(data: pd.DataFrame) -> Values:
    """Undefined where the engine was done before it heard of the hang-up."""
    if "freed" not in data:
        return np.full(len(data), np.nan)
    hung_up = (data["outcome"] == Outcome.CANCELLED_BY_PLAN.value) & data["cancel_flagged"].notna()
    result: Values = np.where(hung_up.to_numpy(dtype=bool), _span("freed", "closed")(data), np.nan)
    return result


def defined(values: Values) -> Samples:
    """The defined ones among one value per request."""
    rows = np.flatnonzero(~np.isnan(values))
    return Samples(values[rows], rows.astype(np.int32))


def _request(
    name: str,
    meaning: str,
    of: Callable[[pd.DataFrame], Values],
    kind: Kind = Kind.LATENCY,
    *,
    every: bool = False,
) -> Metric:
    unit = "" if kind is Kind.FACTOR else "s"
    return Metric(
        name, kind, unit, meaning, lambda data: defined(of(data)), of, every=every or kind is Kind.LAG
    )


def _pooled(name: str, meaning: str, of: Callable[[pd.DataFrame], Samples]) -> Metric:
    return Metric(name, Kind.LATENCY, "s", meaning, of, _mean_of(of), pooled=True)


def _number(name: str, kind: Kind, unit: str, meaning: str) -> Metric:
    return Metric(name, kind, unit, meaning)


_THINK_GAP = _span("first_visible", "last_reasoning")

_TABLE = (
    _request("ttft", "send to first token", _streamed(_span("first_token", "start"))),
    _request("ttft_sched", "due time to first token", _streamed(_span("first_token", "due"))),
    _request("ttfo", "send to first visible output", _streamed(_span("first_visible", "start"))),
    _request("ttfo_sched", "due time to first visible output", _streamed(_span("first_visible", "due"))),
    _request(
        "think_gap",
        "last reasoning to first visible output",
        _streamed(_span("first_visible", "last_reasoning")),
    ),
    _request("e2e", "send to last token", _e2e("start")),
    _request("e2e_sched", "due time to last token", _e2e("due")),
    _request("stream_close", "last token to terminal event", _streamed(_span("terminal", "last_token"))),
    _request("tpot", "time per output token after the first event, mean of a request", _streamed(tpot)),
    _request("stall", "largest gap between token events of a request", _streamed(stall)),
    _pooled("icl", "gaps between token events", icl),
    _pooled("itl", "time per token after the first, each gap shared by its tokens", itl),
    _pooled("itl_seen", "time per token as seen: a gap, then zeros", itl_seen),
    _request("send_lag", "due time to send", _send_lag, Kind.LAG),
    _request("cap_wait", "part of send_lag: wait for a declared cap", _cap_wait, Kind.LAG),
    _request("client_lag", "the rest of send_lag: the client was late", _client_lag, Kind.LAG),
    _request("pool_wait", "wait for a reused connection", _waited_for(False), Kind.LAG),
    _request("connect", "opening a connection", _waited_for(True), Kind.LAG),
    _request("queue_wait", "received to first scheduled (truth of our engine)", _queue_wait),
    _request(
        "abort_latency", "hang-up of a cancelled request to its blocks freed", _abort_latency, every=True
    ),
    _request("slowdown", "e2e over that of the same request on the idle target", _slowdown, Kind.FACTOR),
    Metric(
        "session_stretch",
        Kind.FACTOR,
        "",
        "first due to last terminal of a session, over the same on the idle target",
        session_stretch,
    ),
    _number("tpot_token_weighted", Kind.LATENCY, "s", "sum of the spans of tpot over sum of their tokens"),
    _number("asked_rate", Kind.RATE, "/s", "requests due in the window, per s"),
    _number("offered_rate", Kind.RATE, "/s", "requests due in the window that were sent, per s"),
    _number("completed_rate", Kind.RATE, "/s", "requests of any phase completed in the window, per s"),
    _number("goodput", Kind.RATE, "/s", "good requests of any phase completed in the window, per s"),
    _number("goodput_tokens", Kind.RATE, "/s", "output tokens of good requests, per s"),
    _number("out_tps", Kind.RATE, "/s", "output tokens of completed requests by event time, per s"),
    _number("peak_tps", Kind.RATE, "/s", "output tokens in the fullest second"),
    _number("attainment", Kind.RATIO, "", "good / (planned - cancelled by plan - excluded)"),
    _number("attainment_strict", Kind.RATIO, "", "good / (planned - cancelled by plan)"),
    _number("completed_share", Kind.RATIO, "", "completed / planned"),
    _number("conn_new", Kind.RATIO, "", "share of the requests sent that opened a connection"),
    _number("hit_token_weighted", Kind.RATIO, "", "cached prompt tokens / prompt tokens"),
    _number("hit_request_mean", Kind.RATIO, "", "mean of the requests' cached shares"),
    _number("hit_request_count", Kind.RATIO, "", "share of requests that read anything"),
    _number("hit_theoretical", Kind.RATIO, "", "share that endless caches of the workers would have served"),
    _number("cache_report_coverage", Kind.RATIO, "", "share of requests whose usage reports the cache"),
    _number(
        "service_gap",
        Kind.AMOUNT,
        "tokens",
        "largest difference of weighted service between two tenants that both waited",
    ),
    Metric("cost_per_good", Kind.AMOUNT, "", "price of the replicas over good requests", of_window=True),
    Metric("energy_per_good", Kind.AMOUNT, "J", "energy of all devices over good requests", of_window=True),
    _number("incorrect", Kind.COUNT, "", "completed requests that fail a check of their class"),
    _number("planned", Kind.COUNT, "", "requests planned for the window"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
