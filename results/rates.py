"""Rates over a span, all divided by the same length (MEASUREMENT 3); None for a span of length zero."""

from __future__ import annotations

import numpy as np
import pandas as pd

from results.goodput import Marks
from results.metrics import NS
from results.outcomes import Mask
from results.stats.quantiles import Values
from results.token_events import event_counts, event_times

Spans = tuple[tuple[int, int], ...]
"""Disjoint [from, to) in ns since t0."""


def length_s(spans: Spans) -> float:
    return sum(b - a for a, b in spans) * NS


def inside(values: Values, spans: Spans) -> Mask:
    """Which times lie in one of the spans (NaN: none)."""
    mask = np.zeros(len(values), dtype=bool)
    for a, b in spans:
        mask |= (values >= a) & (values < b)
    return mask


def rate(count: float, spans: Spans) -> float | None:
    seconds = length_s(spans)
    return float(count) / seconds if seconds > 0 else None


def rate_masks(data: pd.DataFrame, marks: Marks, spans: Spans) -> dict[str, Mask]:
    """Which rows each rate counts. Asked and offered by due time; the others by terminal time, any phase."""
    due = inside(data["due"].to_numpy(dtype=np.float64), spans)
    ended = inside(data["terminal"].to_numpy(dtype=np.float64), spans)
    return {
        "asked": due,
        "offered": due & data["start"].notna().to_numpy(dtype=bool),
        "completed": ended & marks.completed,
        "good": ended & marks.good,
    }


def rates(data: pd.DataFrame, marks: Marks, spans: Spans) -> dict[str, float | None]:
    """asked, offered, completed, good in requests/s; good_tokens, out_tps, peak_tps in tokens/s."""
    masks = rate_masks(data, marks, spans)
    result = {name: rate(int(mask.sum()), spans) for name, mask in masks.items()}
    good_tokens = data["n_out"].to_numpy(dtype=np.float64)[masks["good"]]
    result["good_tokens"] = rate(np.nansum(good_tokens), spans)
    times, tokens = token_times(data[marks.completed])
    within = inside(times, spans)
    result["out_tps"] = rate(tokens[within].sum(), spans)
    result["peak_tps"] = _peak(times[within], tokens[within], spans)
    return result


def token_times(data: pd.DataFrame) -> tuple[Values, Values]:
    """(ns since t0, tokens) of every token-bearing event. Where the events' counts are unknown, the
    request's tokens are spread evenly over its events; a whole (non-streamed) answer is one event."""
    whole = data[~data["streamed"].to_numpy(dtype=bool) & (data["n_out"] > 0) & data["terminal"].notna()]
    times: list[Values] = [whole["terminal"].to_numpy(dtype=np.float64)]
    tokens: list[Values] = [whole["n_out"].to_numpy(dtype=np.float64)]
    columns = zip(data["first_token"], data["event_us"], data["event_tokens"], data["n_out"], strict=True)
    for first, events, given, n_out in columns:
        if not len(events) or np.isnan(first):
            continue
        counts = event_counts(given, len(events), n_out)
        if counts is None:
            counts = np.full(len(events), (len(events) if np.isnan(n_out) else n_out) / len(events))
        times.append(first + event_times(events) / NS)
        tokens.append(counts)
    return np.concatenate(times), np.concatenate(tokens)


def _peak(times: Values, tokens: Values, spans: Spans) -> float | None:
    """Tokens in the fullest 1 s bin, bins counted from the start of the first span."""
    if not spans or length_s(spans) <= 0:
        return None
    if not len(times):
        return 0.0
    bins = ((times - spans[0][0]) * NS).astype(np.int64)
    return float(np.bincount(bins - bins.min(), weights=tokens).max())
