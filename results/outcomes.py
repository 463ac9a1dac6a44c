"""Outcome classes, their groups, and which requests a number is about (MEASUREMENT C21, C23, C24)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from results.judging import Judging
from results.record import Outcome

Mask = NDArray[np.bool_]

GROUPS = ("ok", "rejected", "expired", "failed", "cancelled", "excluded", "unknown")

_GROUP_OF = {
    Outcome.COMPLETED: "ok",
    Outcome.EXPIRED: "expired",
    Outcome.CANCELLED_BY_PLAN: "cancelled",
    Outcome.CENSORED_BY_RUN_END: "excluded",
    Outcome.NOT_SENT: "excluded",
    Outcome.UNKNOWN: "unknown",
}
"""All others are failures, but a 429 or 503 is a rejection."""


def group_of(outcome: str, status: float | None) -> str:
    """The group of an outcome class; ``status`` is the HTTP status, None or NaN without one."""
    if outcome == Outcome.HTTP_ERROR and status in (429, 503):
        return "rejected"
    return _GROUP_OF.get(Outcome(outcome), "failed")


def prepared(data: pd.DataFrame, judging: Judging) -> pd.DataFrame:
    """Records in order of their due times, with ``phase`` cut by the due time and their ``group``.

    A record without a due time (a turn that never came due) keeps the phase that the driver gave it.
    """
    a, b = judging.window
    known = data["due"].notna()
    by_due = np.select([data["due"] < a, data["due"] < b], ["warmup", "window"], "cooldown")
    groups = [group_of(o, s) for o, s in zip(data["outcome"], data["http_status"], strict=True)]
    phase = np.where(known, by_due, data["phase"].to_numpy(dtype=object))
    result = data.assign(phase=phase, group=pd.Series(groups, index=data.index, dtype=object))
    return result.sort_values(["due", "id"], kind="stable", na_position="last").reset_index(drop=True)


def is_outcome(data: pd.DataFrame, outcome: Outcome) -> Mask:
    mask: Mask = (data["outcome"] == outcome.value).to_numpy(dtype=bool)
    return mask


def is_group(data: pd.DataFrame, group: str) -> Mask:
    mask: Mask = (data["group"] == group).to_numpy(dtype=bool)
    return mask


def counts(data: pd.DataFrame) -> dict[str, int]:
    """Number of records by outcome class, those that occur."""
    found = data["outcome"].value_counts()
    return {o.value: int(found[o.value]) for o in Outcome if o.value in found.index}


def group_counts(data: pd.DataFrame) -> dict[str, int]:
    """Number of records by group, all groups."""
    found = data["group"].value_counts()
    return {g: int(found.get(g, 0)) for g in GROUPS}


def after_failed_turn(data: pd.DataFrame) -> Mask:
    """Turns not sent because an earlier turn of their session failed (not: was cancelled or censored).

    Follows ``parent``; where it is missing, the driver's word in ``error`` decides. Sessions of a closed loop
    that would have opened after the load (``load_ended``) miss nothing, however the one before ended.
    """
    mask = np.zeros(len(data), dtype=bool)
    unsent = np.flatnonzero(is_outcome(data, Outcome.NOT_SENT))
    if not len(unsent):
        return mask
    by_id: dict[int, tuple[Any, str, float]] = {
        int(i): (o, g, p)
        for i, o, g, p in zip(data["id"], data["outcome"], data["group"], data["parent"], strict=True)
    }
    errors = data["error"].fillna("").to_numpy(dtype=object)
    for row in unsent:
        ended_by = _ender(by_id, data["parent"].iloc[row])
        failed = errors[row] == "failed_turn" if ended_by is None else ended_by in _BREAKING
        mask[row] = failed and errors[row] != "load_ended"
    return mask


_BREAKING = ("rejected", "expired", "failed", "unknown")


def _ender(by_id: dict[int, tuple[Any, str, float]], parent: float) -> str | None:
    """Group of the nearest ancestor that was sent."""
    while not np.isnan(parent) and int(parent) in by_id:
        outcome, group, parent = by_id[int(parent)]
        if outcome != Outcome.NOT_SENT.value:
            return group
    return None
