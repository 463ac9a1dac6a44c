"""How the load came: the law of the sends and the skew of bursts, as measured (MEASUREMENT C18, C19)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from results.metrics import NS
from results.outcomes import Mask
from results.stats.arrival_law import arrival_facts
from results.stats.quantiles import Values
from results.view import View


def offered_block(view: View, rows: Mask) -> dict[str, Any]:
    """The law of the sends of ``rows`` (the window's), and their bursts; null with ``<key>_reason``."""
    data = view.part(rows)
    start = np.sort(data["start"].dropna().to_numpy(dtype=np.float64)).astype(np.int64)
    facts = asdict(arrival_facts(start, *view.judging.window))
    reasons = facts.pop("reasons")
    due, sent = (data[name].to_numpy(dtype=np.float64) for name in ("due", "start"))
    return facts | {f"{name}_reason": why for name, why in reasons.items()} | burst_skew(due, sent)


def issued(view: View, plan: pd.DataFrame | None, fault: str) -> dict[str, Any]:
    """``first_to_last_s``: from the first to the last send of the requests that a burst added to the plan."""
    if plan is None or "fault" not in plan:
        return {"first_to_last_s": None, "first_to_last_s_reason": "the plan is not in the run directory"}
    own = view.data["id"].isin(plan["id"][plan["fault"] == fault])
    start = view.data["start"][own].dropna()
    if len(start) < 2:
        return {"first_to_last_s": None, "first_to_last_s_reason": "n<2"}
    return {"first_to_last_s": float((start.max() - start.min()) * NS)}


def burst_skew(due: Values, start: Values) -> dict[str, Any]:
    """Requests due at the very same time, and how far apart they were sent: s from the first to the last
    send of the group that was furthest apart."""
    sent = ~np.isnan(due) & ~np.isnan(start)
    spread = _spreads(due[sent], start[sent])
    if not len(spread):
        why = "no two requests were due together"
        return {"bursts": 0, "burst_skew_s": None, "burst_skew_s_reason": why}
    return {"bursts": len(spread), "burst_skew_s": float(spread.max())}


def _spreads(due: Values, start: Values) -> Values:
    """s between the first and the last send of each group of two or more equal due times."""
    _, group, sizes = np.unique(due, return_inverse=True, return_counts=True)
    first, last = np.full(len(sizes), np.inf), np.full(len(sizes), -np.inf)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, start)
    spread: Values = (last - first)[sizes > 1] * NS
    return spread
