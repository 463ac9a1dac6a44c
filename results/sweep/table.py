"""The one table of a sweep: a row for each run and class, every column of C46."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from results.sweep.columns import COLUMNS
from results.sweep.spec import PointRun, SweepSpec

_ABOUT = ("run", "repeat", "seed", "window_s", "decision", "client", "class")


def frame(spec: SweepSpec, runs: Sequence[PointRun]) -> pd.DataFrame:
    """Null where a number is not known; the reasons are in sweep.json. Times in s, rates in 1/s."""
    keys = [axis.key for axis in spec.axes]
    rows = [_row(run, name, keys) for run in runs for name in run.rows]
    table = pd.DataFrame(rows, columns=[*keys, *_ABOUT, *COLUMNS])
    numbers = [name for name in COLUMNS if name != "over_saturated"]
    table[numbers] = table[numbers].astype("Float64")
    table["over_saturated"] = table["over_saturated"].astype("boolean")
    return table


def _row(run: PointRun, name: str, keys: list[str]) -> dict[str, Any]:
    about: dict[str, Any] = {
        "run": run.run,
        "repeat": run.repeat,
        "seed": run.seed,
        "window_s": run.window,
        "decision": run.decision.value,
        "client": run.client,
        "class": name,
    }
    values = {column: run.rows[name][column] for column in COLUMNS}
    return {key: run.at[key] for key in keys} | about | values
