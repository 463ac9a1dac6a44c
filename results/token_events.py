"""The token-bearing events of requests, and the gaps between them (MEASUREMENT C5, C11).

A run may have 50 million of them, so they are looked at some requests at a time, in whole µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from results.stats.quantiles import Values

Owners = NDArray[np.int32]
Counts = NDArray[np.int64]
COLUMNS = ["event_us", "event_tokens", "n_out"]
"""All that gaps are made of."""
CHUNK = 50_000
"""Requests at a time."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Values in s with the row (0..n-1 of the frame they came from) that each belongs to, in order of the
    rows."""

    values: Values
    owners: Owners

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of some rows, one row after the other: µs since the first token, and tokens of each. Of a
    row whose events have no known counts ``tokens`` are 0."""

    first: int
    """The first of the rows."""
    sizes: Counts
    """Events of each row."""
    us: Counts
    tokens: Counts
    known: NDArray[np.bool_]
    """Rows whose tokens of each event are known: the server told, or each event carried one, for none is
    empty."""

    @property
    def rows(self) -> Owners:
        """The row of each event."""
        numbers = np.arange(self.first, self.first + len(self.sizes), dtype=np.int32)
        return np.repeat(numbers, self.sizes)


def events_of(data: pd.DataFrame) -> Iterator[Events]:
    """All events of a frame, ``CHUNK`` rows at a time."""
    us, given = data["event_us"].to_numpy(), data["event_tokens"].to_numpy()
    n_out = data["n_out"].to_numpy(dtype=np.float64)
    for first in range(0, len(data), CHUNK):
        part = slice(first, first + CHUNK)
        sizes = _sizes(us[part])
        told = (sizes > 0) & (_sizes(given[part]) == sizes)
        tokens = np.repeat((~told & (n_out[part] == sizes)).astype(np.int64), sizes)
        tokens[np.repeat(told, sizes)] = _joined(given[part][told])
        yield Events(first, sizes, _joined(us[part]), tokens, told | (n_out[part] == sizes) & (sizes > 0))


def _sizes(lists: NDArray[Any]) -> Counts:
    """-1 for what is not there."""
    return np.fromiter((-1 if e is None else len(e) for e in lists), np.int64, len(lists))


def _joined(lists: Iterable[Any]) -> Counts:
    arrays = list(lists)
    return np.concatenate(arrays).astype(np.int64) if arrays else np.empty(0, dtype=np.int64)


def _gaps(events: Events) -> tuple[Values, Owners, NDArray[np.bool_]]:
    """Between events of one row: s, the row, and which events end one."""
    rows = events.rows
    ends = np.zeros(len(rows), dtype=bool)
    ends[1:] = rows[1:] == rows[:-1]
    # Subtracted in whole µs, so exact to the last digit.
    return np.diff(events.us, prepend=0)[ends] * 1e-6, rows[ends], ends


def icl(data: pd.DataFrame) -> Samples:
    """Gaps between token-bearing events, pooled."""
    return _pooled((gaps, owners) for gaps, owners, _ in map(_gaps, events_of(data)))


def itl(data: pd.DataFrame) -> Samples:
    """Each gap shared evenly by the n_i tokens of the event that ends it: gap/n_i, n_i times."""
    return _pooled((np.repeat(gaps / n, n), np.repeat(owners, n)) for gaps, owners, n in _counted(data))


def itl_seen(data: pd.DataFrame) -> Samples:
    """The same tokens as they arrived: each gap, then n_i - 1 zeros."""
    return _pooled((_then_zeros(gaps, n), np.repeat(owners, n)) for gaps, owners, n in _counted(data))


def _then_zeros(gaps: Values, n: Counts) -> Values:
    series = np.zeros(int(n.sum()))
    series[np.cumsum(n) - n] = gaps
    return series


def _counted(data: pd.DataFrame) -> Iterator[tuple[Values, Owners, Counts]]:
    """Gaps, and the tokens of the event that ends each, of the requests whose counts are known. An event
    that brought no token ends no gap of one."""
    for events in events_of(data):
        gaps, owners, ends = _gaps(events)
        n = events.tokens[ends]
        some = (n > 0) & events.known[owners - events.first]
        yield gaps[some], owners[some], n[some]


def _pooled(parts: Iterable[tuple[Values, Owners]]) -> Samples:
    values, owners = [np.empty(0)], [np.empty(0, dtype=np.int32)]
    for some, whose in parts:
        values.append(some)
        owners.append(whose)
    joined = np.concatenate(values)
    values.clear()  # before the owners are joined: half the memory
    return Samples(joined, np.concatenate(owners))


def stall(data: pd.DataFrame) -> Values:
    """The largest gap between token-bearing events of each request."""
    largest = np.full(len(data), np.nan)
    for events in events_of(data):
        gaps, owners, _ = _gaps(events)
        if len(gaps):
            begins = np.flatnonzero(np.diff(owners, prepend=-1))
            largest[owners[begins]] = np.maximum.reduceat(gaps, begins)
    return largest
