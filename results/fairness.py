"""`service_gap`: how far apart two tenants that both waited were served (MEASUREMENT 3, ENGINE E29).

A tenant is backlogged while a request of it waits at the gateway. What it has had is counted as the fair
order counts it: the computed prompt tokens of a request when it goes to a worker, its output tokens as they
come, each times its weight, over the weight of the tenant. The gap is the largest difference between two
tenants over any span of time through which both were backlogged; tenants are compared within a rank.

```
backlog of i   ├──────────────┤     ├─────────┤
backlog of j        ├──────────────────┤
both                ├─────────┤     ├──┤           max - min of W_i/w_i - W_j/w_j inside each
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from results.outcomes import Mask
from results.rates import Spans, token_times
from results.stats.distribution import Estimate
from results.stats.quantiles import Values
from results.view import View

MOST_TENANTS = 200
"""More pairs than theirs would take minutes."""
NEEDED = ("queued", "dispatched", "computed")


@dataclass(frozen=True, slots=True)
class _Tenant:
    """Where it was backlogged, and what it was served: ns since t0, weighted tokens over its weight."""

    backlog: Spans
    times: Values
    amounts: Values


def service_gap(view: View, rows: Mask, spans: Spans) -> Estimate:
    """Weighted tokens; over requests of ``rows`` and within ``spans``."""
    if not set(NEEDED) <= set(view.data) or view.t0_ns is None:
        return Estimate(None, reason="no truth of the engine: who waits at the target is not known")
    if view.judging.service is None:
        return Estimate(None, reason="the weights of the tenants are not known")
    data = view.data[rows & view.data["queued"].notna().to_numpy(dtype=bool)]
    if data["tenant"].nunique() < 2:
        return Estimate(None, reason="fewer than two tenants had requests here")
    if (tenants := data["tenant"].nunique()) > MOST_TENANTS:
        return Estimate(None, reason=f"{tenants} tenants; at most {MOST_TENANTS} are compared")
    gaps = [gap for _, same in data.groupby("rank", sort=True) for gap in _gaps(view, same, spans)]
    if not gaps:
        return Estimate(None, reason="no two tenants of a rank waited at the same time", n=0)
    return Estimate(max(gaps), n=len(gaps))


def _gaps(view: View, data: pd.DataFrame, spans: Spans) -> Iterator[float]:
    """One for each span through which two tenants were both backlogged."""
    tenants = [_tenant(view, name, part, spans) for name, part in data.groupby("tenant", sort=True)]
    for one, other in combinations(tenants, 2):
        if both := _shared(one.backlog, other.backlog):
            yield from _of_pair(one, other, both)


def _tenant(view: View, name: object, data: pd.DataFrame, spans: Spans) -> _Tenant:
    service, t0 = view.judging.service, view.t0_ns
    assert service is not None
    assert t0 is not None
    came, went = data["queued"].to_numpy(dtype=np.float64), data["dispatched"].to_numpy(dtype=np.float64)
    left = np.where(np.isnan(went), data["finished"].to_numpy(dtype=np.float64), went)
    sent = ~np.isnan(went)
    prompts = np.nan_to_num(data["computed"].to_numpy(dtype=np.float64))[sent] * service.input
    times, tokens = token_times(data)
    return _Tenant(
        _within(_union(came - t0, left - t0, _once(data)), spans),
        np.concatenate([went[sent] - t0, times]),
        np.concatenate([prompts, tokens * service.output]) / service.weight(str(name)),
    )


def _once(data: pd.DataFrame) -> Mask:
    """Of a request that the gateway sent out again is not known when it waited in between."""
    known = data["engine_attempt"] if "engine_attempt" in data else pd.Series(1, index=data.index)
    mask: Mask = ~(known > 1).to_numpy(dtype=bool)
    return mask


def _union(begins: Values, ends: Values, kept: Mask) -> Spans:
    kept = kept & (ends > begins)
    merged: list[tuple[int, int]] = []
    for a, b in sorted(zip(begins[kept].astype(int).tolist(), ends[kept].astype(int).tolist(), strict=True)):
        if merged and a <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return tuple(merged)


def _within(spans: Spans, limits: Spans) -> Spans:
    return _shared(spans, tuple(sorted(limits)))


def _shared(one: Spans, other: Spans) -> Spans:
    """What lies in both of two sorted rows of disjoint spans."""
    found, i, k = [], 0, 0
    while i < len(one) and k < len(other):
        a, b = max(one[i][0], other[k][0]), min(one[i][1], other[k][1])
        if a < b:
            found.append((a, b))
        if one[i][1] < other[k][1]:
            i += 1
        else:
            k += 1
    return tuple(found)


def _of_pair(one: _Tenant, other: _Tenant, both: Spans) -> Iterator[float]:
    """Only what was served strictly inside a span counts: at its ends somebody came or went, and the order
    of what happened at that very moment is not known. What was served at one moment counts as one."""
    times = np.concatenate([one.times, other.times])
    signed = np.concatenate([one.amounts, -other.amounts])
    moments, at = np.unique(times, return_inverse=True)
    ahead = np.cumsum(np.bincount(at, weights=signed, minlength=len(moments)))
    for a, b in both:
        low, high = np.searchsorted(moments, a, side="right"), np.searchsorted(moments, b, side="left")
        before = ahead[low - 1] if low else 0.0
        inside = ahead[low:high] - before
        yield float(max(inside.max(initial=0.0), 0.0) - min(inside.min(initial=0.0), 0.0))
