"""When a fault was there, and whose life it touched (MEASUREMENT C47, JOINTS 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from results.judging import Judging

MARKING = ("cancel",)
"""Faults that touch nothing but the requests that they mark: beside them a run is steady."""


def fault_span(fault: Mapping[str, Any], judging: Judging) -> tuple[int, int] | None:
    """Injected to recovered; where the recovery was not seen, healed + T_rec. None: never injected."""
    injected, healed, recovered = (fault.get(k) for k in ("injected", "healed", "recovered"))
    if not isinstance(injected, int | float):
        return None
    if isinstance(recovered, int | float):
        return int(injected), int(recovered)
    if isinstance(healed, int | float):
        return int(injected), int(healed) + judging.t_rec
    return int(injected), int(injected) + judging.t_rec_unhealed


def meets(records: pd.DataFrame, span: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows whose life [start, closed) meets the span; what was never sent has none."""
    a, b = span
    mask: np.ndarray[Any, np.dtype[np.bool_]] = ((records["start"] < b) & (records["closed"] > a)).to_numpy(
        dtype=bool
    )
    return mask


def touched(records: pd.DataFrame, faults: Iterable[Mapping[str, Any]], judging: Judging) -> list[list[str]]:
    """For each record the faults that its life touches: those that marked it in the plan, then those
    whose span it meets, in the order of the faults."""
    lists = [list(given) for given in records["faults"]]
    for fault in faults:
        span = fault_span(fault, judging)
        if span is None or fault.get("type") in MARKING:
            continue
        for row in np.flatnonzero(meets(records, span)):
            if fault["id"] not in lists[row]:
                lists[row].append(str(fault["id"]))
    return lists
