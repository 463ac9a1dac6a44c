"""The engine-side columns of a sweep, from the truth and the scrapes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.outcomes import Mask
from results.rates import length_s
from results.run import RunData
from results.view import View

ALLOCATION_FAILURES = "headrace_engine_allocation_failures_total"
Known = tuple[float | None, str]
"""A value, or None and the reason."""


@dataclass(frozen=True, slots=True)
class PoolShare:
    """Share of the KV pool in use; ``reason`` where it is not known."""

    mean: float | None = None
    max: float | None = None
    reason: str = ""

    def part(self, end: str) -> Known:
        value: float | None = getattr(self, end)
        return value, self.reason


SHARED = PoolShare(reason="the classes share one pool")


def pool_share(summary: Mapping[str, Any]) -> PoolShare:
    """Over the workers' samples in the window."""
    block = summary.get("engine")
    if block is None:
        return PoolShare(reason="no truth of the engine")
    usage = block["kv"].get("all")
    if usage is None:
        return PoolShare(reason=block.get("kv_reason", "the pool was not scraped in the window"))
    return PoolShare(usage["mean"], usage["max"])


def increase(scrapes: pd.DataFrame | None, name: str) -> Known:
    """How much a counter grew over the run, summed over its labels; a fall is a restart from 0 (C40)."""
    if scrapes is None or not len(scrapes):
        return None, "the target was not scraped"
    series = scrapes[scrapes["name"] == name].sort_values("t", kind="stable")
    if series["t"].nunique() < 2:
        return None, f"{name} was not scraped before and after the load"
    begin, total = series["t"].min(), 0.0
    for _, part in series.groupby(["target", "labels"], sort=True):
        values = part["value"].to_numpy(dtype=np.float64)
        if part["t"].iloc[0] > begin:  # a worker that came later counts from 0
            values = np.concatenate([[0.0], values])
        steps = np.diff(values)
        total += float(np.where(steps >= 0, steps, values[1:]).sum())
    return total, ""


def prefill_rate(data: RunData, view: View, rows: Mask) -> Known:
    """Prompt tokens computed in the window, per s. A request's tokens are spread evenly from when it was
    first scheduled until its prompt was computed."""
    wanted = {"computed", "recomputed", "first_scheduled", "prefill_done"}
    t0 = data.manifest.get("t0_ns")
    if not wanted <= set(view.data) or t0 is None:
        return None, "no truth of the engine"
    known = view.data[rows & view.data["prefill_done"].notna().to_numpy(dtype=bool)]
    begin = known["first_scheduled"].to_numpy(dtype=np.float64) - t0
    end = known["prefill_done"].to_numpy(dtype=np.float64) - t0
    tokens = (known["computed"].fillna(0) + known["recomputed"].fillna(0)).to_numpy(dtype=np.float64)
    a, b = view.judging.window
    within = np.clip(np.minimum(end, b) - np.maximum(begin, a), 0, None)
    share = np.divide(within, end - begin, out=((end >= a) & (end < b)).astype(np.float64), where=end > begin)
    seconds = length_s(view.window_spans)
    return (
        (float((tokens * share).sum()) / seconds, "") if seconds > 0 else (None, "the window has no length")
    )
