"""What truly happened, from the reference server's own log (MEASUREMENT C42). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.tool import Quantiles, Reported
from loadgen.reference.answers import End
from loadgen.reference.log import Entry
from results.stats.quantiles import quantile

_SHORTEST_S = 0.5
"""A shorter span says nothing of a rate."""


@dataclass(frozen=True, slots=True)
class Truth:
    """``times`` are those that the server wrote at: first token - read of the request, and the mean gap of
    each stream."""

    times: Quantiles
    streams: int
    """Of the requests that the tool speaks of, those written to their end."""
    rate: float | None
    """Streams/s completed while the load was steady."""
    span: tuple[int, int] | None
    """Of that, ns on CLOCK_MONOTONIC."""
    late_p99: float | None
    """How far the server itself was behind its script, ms."""
    blocked: int
    """Streams that the server had to hold up because the client did not read."""


def measured(log: Sequence[Entry], reported: Reported | None, wall_minus_mono: int) -> list[Entry]:
    """The streams that a tool speaks of; all there are if it reported nothing. A log's times are on
    CLOCK_MONOTONIC, a tool's own span in wall time."""
    streams = [entry for entry in log if entry.status == 200 and len(entry.stamps)]
    if reported is None:
        return streams
    if reported.span is not None:
        begin, end = (wall - wall_minus_mono for wall in reported.span)
        streams = [entry for entry in streams if begin <= entry.read <= end]
    if reported.ids is not None:
        return [entry for entry in streams if entry.request_id in reported.ids]
    return [entry for entry in streams if entry.request_id.startswith(reported.prefix)]


def truth(streams: Sequence[Entry], stream_s: float) -> Truth:
    """Of measured streams that each last ``stream_s`` by the script."""
    whole = [entry for entry in streams if entry.end is End.WHOLE]
    ttft = np.array([entry.stamps[0] - entry.read for entry in whole], np.float64) / 1e6
    spans = [
        (entry.stamps[-1] - entry.stamps[0]) / (len(entry.stamps) - 1)
        for entry in whole
        if len(entry.stamps) > 1
    ]
    tpot = np.array(spans, np.float64) / 1e6
    free = [entry.late for entry in whole if not entry.blocked]
    late = np.concatenate(free).astype(np.float64) / 1e6 if free else np.empty(0)
    rate, span = completed_rate(streams, stream_s)
    return Truth(
        Quantiles(_at(ttft, 0.5), _at(ttft, 0.99), _at(tpot, 0.5), _at(tpot, 0.99)),
        len(whole),
        rate,
        span,
        _at(late, 0.99),
        sum(entry.blocked for entry in streams),
    )


def completed_rate(streams: Sequence[Entry], stream_s: float) -> tuple[float | None, tuple[int, int] | None]:
    """Completions/s from when the first measured streams have had time to end until the last one is sent:
    before, what ends is not yet measured; after, no more comes. None if that is no time at all."""
    if not streams:
        return None, None
    reads = [entry.read for entry in streams]
    begin, end = min(reads) + round(stream_s * 1e9), max(reads)
    if end - begin < _SHORTEST_S * 1e9:
        return None, None
    ends = [int(entry.stamps[-1]) for entry in streams if entry.end is End.WHOLE]
    return sum(begin <= at < end for at in ends) / ((end - begin) / 1e9), (begin, end)


def _at(values: NDArray[np.float64], q: float) -> float | None:
    return quantile(np.sort(values), q)
