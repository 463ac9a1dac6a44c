"""Rates over a span, all divided by the same length (MEASUREMENT 3); None for a span of length zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from results.goodput import Marks
from results.metrics import NS
from results.outcomes import Mask
from results.stats.quantiles import Values
from results.token_events import events_of

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
    seconds = per_second(data[marks.completed], spans)
    result["out_tps"] = rate(seconds.sum(), spans)
    result["peak_tps"] = float(seconds.max(initial=0.0)) if length_s(spans) > 0 else None
    return result


def token_times(data: pd.DataFrame) -> tuple[Values, Values]:
    """(ns since t0, tokens) of every token-bearing event, see ``token_parts``."""
    parts = list(token_parts(data))
    return np.concatenate([times for times, _ in parts]), np.concatenate([tokens for _, tokens in parts])


def token_parts(data: pd.DataFrame) -> Iterator[tuple[Values, Values]]:
    """The same, some requests at a time. Where the events' counts are unknown, the request's tokens are
    spread evenly over its events; a whole (non-streamed) answer is one event."""
    whole = data[~data["streamed"].to_numpy(dtype=bool) & (data["n_out"] > 0) & data["terminal"].notna()]
    yield whole["terminal"].to_numpy(dtype=np.float64), whole["n_out"].to_numpy(dtype=np.float64)
    first, n_out = (data[name].to_numpy(dtype=np.float64) for name in ("first_token", "n_out"))
    for events in events_of(data):
        rows = events.rows
        each = np.where(np.isnan(n_out[rows]), 1.0, n_out[rows] / events.sizes[rows - events.first])
        tokens = np.where(events.known[rows - events.first], events.tokens, each)
        begun = ~np.isnan(first[rows])
        yield (first[rows] + events.us * 1e-6 / NS)[begun], tokens[begun]


def per_second(data: pd.DataFrame, spans: Spans) -> Values:
    """Tokens of each second from the first span's begin on, those within ``spans`` only."""
    seconds = np.zeros(1)
    for times, tokens in token_parts(data):
        within = inside(times, spans)
        if not within.any():
            continue
        found = np.bincount(((times[within] - spans[0][0]) * NS).astype(np.int64), weights=tokens[within])
        if len(found) > len(seconds):
            seconds = np.concatenate([seconds, np.zeros(len(found) - len(seconds))])
        seconds[: len(found)] += found
    return seconds
