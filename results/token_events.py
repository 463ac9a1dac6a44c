"""The token-bearing events of requests, and the gaps between them (MEASUREMENT C5, C11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.stats.bootstrap import Index
from results.stats.quantiles import Values


@dataclass(frozen=True, slots=True)
class Samples:
    """Values in s with the row (0..n-1 of the frame they came from) that each belongs to."""

    values: Values
    owners: Index

    @property
    def n(self) -> int:
        return len(self.values)


def event_times(events: object) -> Values:
    """s since the first token of one request's token-bearing events."""
    return np.asarray(events if events is not None else [], dtype=np.float64) * 1e-6


def event_counts(given: Values | None, events: int, n_out: float) -> Values | None:
    """Tokens of each event of a request; None if unknown. If the whole has as many tokens as there are
    events then each carries one, for none is empty."""
    if given is not None and len(given) == events:
        return np.asarray(given, dtype=np.float64)
    return np.ones(events) if events and n_out == events else None


def _gaps(data: pd.DataFrame, rows: Index | None = None) -> Samples:
    """Gaps between token-bearing events, request after request, of all ``rows``."""
    events = data["event_us"] if rows is None else data["event_us"].iloc[rows]
    sizes = np.array([len(e) for e in events], dtype=np.int64)
    if not sizes.sum():
        return Samples(np.empty(0), np.empty(0, dtype=np.int64))
    owners = np.repeat(np.arange(len(sizes)) if rows is None else rows, sizes)
    # Subtracted in whole µs, so exact to the last digit.
    gaps = np.diff(np.concatenate([np.asarray(e, dtype=np.float64) for e in events])) * 1e-6
    own = owners[1:] == owners[:-1]
    return Samples(gaps[own], owners[1:][own])


def icl(data: pd.DataFrame) -> Samples:
    """Gaps between token-bearing events, pooled."""
    return _gaps(data)


def itl(data: pd.DataFrame) -> Samples:
    """Each gap shared evenly by the n_i tokens of the event that ends it: gap/n_i, n_i times."""
    gaps, n = _counted_gaps(data)
    return Samples(np.repeat(gaps.values / n, n), np.repeat(gaps.owners, n))


def itl_seen(data: pd.DataFrame) -> Samples:
    """The same tokens as they arrived: each gap, then n_i - 1 zeros."""
    gaps, n = _counted_gaps(data)
    series = np.zeros(int(n.sum()))
    series[np.cumsum(n) - n] = gaps.values
    return Samples(series, np.repeat(gaps.owners, n))


def _counted_gaps(data: pd.DataFrame) -> tuple[Samples, Index]:
    """Gaps, and the tokens of the event that ends each, of the requests whose counts are known. An event
    that brought no token ends no gap of one."""
    known: list[int] = []
    counts: list[Values] = []
    columns = zip(data["event_us"], data["event_tokens"], data["n_out"], strict=True)
    for row, (events, given, n_out) in enumerate(columns):
        of_each = event_counts(given, len(events), n_out) if len(events) > 1 else None
        if of_each is not None:
            known.append(row)
            counts.append(of_each[1:])
    gaps = _gaps(data, np.array(known, dtype=np.int64))
    ending = np.concatenate(counts).astype(np.int64) if counts else np.empty(0, dtype=np.int64)
    some = ending > 0
    return Samples(gaps.values[some], gaps.owners[some]), ending[some]


def stall(data: pd.DataFrame) -> Values:
    """The largest gap between token-bearing events of each request."""
    largest = np.full(len(data), np.nan)
    gaps = _gaps(data)
    np.fmax.at(largest, gaps.owners, gaps.values)
    return largest
