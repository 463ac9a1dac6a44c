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

from results.stats.bootstrap import Index
from results.stats.quantiles import Values

NS = 1e-9


class Kind(StrEnum):
    """What a metric is, which decides its units, statistics and when a gate on it may be decided."""

    LATENCY = "latency"
    LAG = "lag"
    RATE = "rate"
    RATIO = "ratio"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Samples:
    """Values in s with the row (0..n-1 of the frame they came from) that each belongs to."""

    values: Values
    owners: Index

    @property
    def n(self) -> int:
        return len(self.values)


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
    """n_out - k_first per request; NaN where n_out is unknown. Reasoning that came in no event (the first
    token seen is visible) does not count: its time is not in the span either."""
    reasoning = np.nan_to_num(_column(data, "n_reasoning"))
    hidden = _column(data, "first_visible") == _column(data, "first_token")
    result: Values = _column(data, "n_out") - np.where(hidden, reasoning, 0) - _column(data, "k_first")
    return result


def event_times(events: object) -> Values:
    """s since the first token of one request's token-bearing events."""
    return np.asarray(events if events is not None else [], dtype=np.float64) * 1e-6


def event_gaps(events: object) -> Values:
    """s between them; subtracted in whole µs, so exact to the last digit."""
    return np.diff(np.asarray(events if events is not None else [], dtype=np.float64)) * 1e-6


def event_counts(given: Values | None, events: int, n_out: float) -> Values | None:
    """Tokens of each event of a request; None if unknown. If the whole has as many tokens as there are
    events then each carries one, for none is empty."""
    if given is not None and len(given) == events:
        return np.asarray(given, dtype=np.float64)
    return np.ones(events) if events and n_out == events else None


def _pool(values: list[Values], rows: list[int]) -> Samples:
    sizes = [len(v) for v in values]
    owners = np.repeat(np.asarray(rows, dtype=np.int64), sizes) if rows else np.empty(0, dtype=np.int64)
    return Samples(np.concatenate(values) if values else np.empty(0), owners)


def icl(data: pd.DataFrame) -> Samples:
    """Gaps between token-bearing events, pooled."""
    gaps = [event_gaps(e) for e in data["event_us"]]
    return _pool(gaps, list(range(len(gaps))))


def itl(data: pd.DataFrame) -> Samples:
    """Each gap shared evenly by the n_i tokens of the event that ends it: gap/n_i, n_i times."""
    return _per_token(data, lambda gaps, n: np.repeat(gaps / n, n.astype(np.int64)))


def itl_seen(data: pd.DataFrame) -> Samples:
    """The same tokens as they arrived: each gap, then n_i - 1 zeros."""

    def spread(gaps: Values, n: Values) -> Values:
        series = np.zeros(int(n.sum()))
        series[np.concatenate([[0], np.cumsum(n)[:-1]]).astype(np.int64)] = gaps
        return series

    return _per_token(data, spread)


def _per_token(data: pd.DataFrame, spread: Callable[[Values, Values], Values]) -> Samples:
    values: list[Values] = []
    rows: list[int] = []
    columns = zip(data["event_us"], data["event_tokens"], data["n_out"], strict=True)
    for row, (events, given, n_out) in enumerate(columns):
        counts = event_counts(given, len(events), n_out)
        if counts is None or len(events) < 2:
            continue
        gaps, ending = event_gaps(events), counts[1:]
        values.append(spread(gaps[ending > 0], ending[ending > 0]))
        rows.append(row)
    return _pool(values, rows)


def _mean_of(pooled: Callable[[pd.DataFrame], Samples]) -> Callable[[pd.DataFrame], Values]:
    def values(data: pd.DataFrame) -> Values:
        samples = pooled(data)
        count = np.bincount(samples.owners, minlength=len(data)).astype(np.float64)
        total = np.bincount(samples.owners, weights=samples.values, minlength=len(data))
        result: Values = np.divide(total, count, out=np.full(len(data), np.nan), where=count > 0)
        return result

    return values


def stall(data: pd.DataFrame) -> Values:
    """The largest gap between token-bearing events of each request."""
    gaps = [event_gaps(e) for e in data["event_us"]]
    return np.array([g.max() if len(g) else np.nan for g in gaps], dtype=np.float64)


def _waited_for(connection_new: bool) -> Callable[[pd.DataFrame], Values]:
    def values(data: pd.DataFrame) -> Values:
        wait = _span("conn", "start")(data)
        result: Values = np.where(data["conn_new"].to_numpy(dtype=bool) == connection_new, wait, np.nan)
        return result

    return values


def _queue_wait(data: pd.DataFrame) -> Values:
    """Received to first scheduled, from the engine's truth; undefined without it."""
    if "received" not in data or "first_scheduled" not in data:
        return np.full(len(data), np.nan)
    return _span("first_scheduled", "received")(data)


def defined(values: Values) -> Samples:
    """The defined ones among one value per request."""
    rows = np.flatnonzero(~np.isnan(values))
    return Samples(values[rows], rows.astype(np.int64))


def _request(
    name: str, meaning: str, of: Callable[[pd.DataFrame], Values], kind: Kind = Kind.LATENCY
) -> Metric:
    return Metric(name, kind, "s", meaning, lambda data: defined(of(data)), of)


def _pooled(name: str, meaning: str, of: Callable[[pd.DataFrame], Samples]) -> Metric:
    return Metric(name, Kind.LATENCY, "s", meaning, of, _mean_of(of), pooled=True)


def _number(name: str, kind: Kind, unit: str, meaning: str) -> Metric:
    return Metric(name, kind, unit, meaning)


_TABLE = (
    _request("ttft", "send to first token", _streamed(_span("first_token", "start"))),
    _request("ttft_sched", "due time to first token", _streamed(_span("first_token", "due"))),
    _request("ttfo", "send to first visible output", _streamed(_span("first_visible", "start"))),
    _request("ttfo_sched", "due time to first visible output", _streamed(_span("first_visible", "due"))),
    _request("e2e", "send to last token", _e2e("start")),
    _request("e2e_sched", "due time to last token", _e2e("due")),
    _request("stream_close", "last token to terminal event", _streamed(_span("terminal", "last_token"))),
    _request("tpot", "time per output token after the first event, mean of a request", _streamed(tpot)),
    _request("stall", "largest gap between token events of a request", _streamed(stall)),
    _pooled("icl", "gaps between token events", icl),
    _pooled("itl", "time per token after the first, each gap shared by its tokens", itl),
    _pooled("itl_seen", "time per token as seen: a gap, then zeros", itl_seen),
    _request("send_lag", "due time to send", _span("start", "due"), Kind.LAG),
    _request("client_lag", "send_lag without the wait for a declared cap", _span("start", "due"), Kind.LAG),
    _request("pool_wait", "wait for a reused connection", _waited_for(False), Kind.LAG),
    _request("connect", "opening a connection", _waited_for(True), Kind.LAG),
    _request("queue_wait", "received to first scheduled (truth of our engine)", _queue_wait),
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
    _number("hit_token_weighted", Kind.RATIO, "", "cached prompt tokens / prompt tokens"),
    _number("hit_request_mean", Kind.RATIO, "", "mean of the requests' cached shares"),
    _number("hit_request_count", Kind.RATIO, "", "share of requests that read anything"),
    _number("hit_theoretical", Kind.RATIO, "", "what an ideal cache would have served"),
    _number("cache_report_coverage", Kind.RATIO, "", "share of requests whose usage reports the cache"),
    _number("incorrect", Kind.COUNT, "", "completed requests that fail a check of their class"),
    _number("planned", Kind.COUNT, "", "requests planned for the window"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
