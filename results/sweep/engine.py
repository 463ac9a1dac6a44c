"""The engine-side columns of a sweep, from the truth and the scrapes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.engine_truth import kv_usage
from results.outcomes import Mask
from results.rates import length_s
from results.run import RunData
from results.view import View

ALLOCATION_FAILURES = ("headrace_engine_allocation_failures",)
PREEMPTIONS = ("headrace_engine_preemptions", "vllm_num_preemptions")
POOL_SHARES = ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc", "sglang_token_usage")
"""Gauges of other engines that say which share of the KV pool is in use, 0 to 1; the first that is there."""

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


def pool_share(data: RunData) -> PoolShare:
    """Over the samples of all workers in the window."""
    if data.scrapes is None or not len(data.scrapes):
        return PoolShare(reason="the target was not scraped")
    usage = kv_usage(data.scrapes, data.judging.window).get("all")
    if usage is not None:
        return PoolShare(usage["mean"], usage["max"])
    a, b = data.judging.window
    inside = data.scrapes[(data.scrapes["t"] >= a) & (data.scrapes["t"] < b)]
    values = _first_known(inside, POOL_SHARES)["value"]
    if not len(values):
        return PoolShare(reason="the target showed no usage of its KV pool in the window")
    return PoolShare(float(values.mean()), float(values.max()))


def _first_known(scrapes: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The samples of the first of ``names`` that is there, written as ``vllm:x``, ``vllm_x`` or
    ``x_total`` (OBSERVABILITY O9)."""
    plain = scrapes["name"].map(lambda name: str(name).replace(":", "_").removesuffix("_total"))
    for name in names:
        if (found := plain == name).any():
            return scrapes[found]
    return scrapes.iloc[0:0]


def increase(scrapes: pd.DataFrame | None, names: Sequence[str]) -> Known:
    """How much a counter grew over the run, summed over its labels; a fall is a restart from 0 (C40)."""
    if scrapes is None or not len(scrapes):
        return None, "the target was not scraped"
    series = _first_known(scrapes, names).sort_values("t", kind="stable")
    if series["t"].nunique() < 2:
        return None, f"{' or '.join(names)} was not scraped before and after the load"
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
