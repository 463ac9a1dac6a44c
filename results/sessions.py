"""Sessions as a whole: how much longer they took than on an idle target (MEASUREMENT 3, C20).

```
due of the first turn                                        last terminal
|── turn 0 ──|  think  |──────── turn 1 ────────|  think  |── turn 2 ──|     actual
|─ turn 0 ─|  think  |─ turn 1 ─|  think  |─ turn 2 ─|                       ideal: alone + think
```
A slow server makes the later turns of a session come later, so it sheds its own load; `session_stretch`
and the turns that came due show by how much. Of a session with branches or sub-agents the ideal is that
of the path that takes longest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from results.outcomes import Mask
from results.stats.bootstrap import Index
from results.stats.quantiles import Values
from results.token_events import Samples

_S = 1e-9


def ideal_times(data: pd.DataFrame) -> tuple[Values, Values, Index]:
    """(due, done, root) of every row, if every request took only as long as ``alone``: s from the due time
    of the row ``root`` on, with which it all began. NaN behind a request of which ``alone`` is not known."""
    begin, end = np.full(len(data), np.nan), np.full(len(data), np.nan)
    root = np.arange(len(data))
    row_of = {int(id): row for row, id in enumerate(data["id"])}
    alone, parent = _floats(data, "alone"), _floats(data, "parent")
    due, terminal, after = _floats(data, "due"), _floats(data, "terminal"), _floats(data, "after_ns")
    first = (data["turn"] == 0).to_numpy(dtype=bool)
    for row in np.argsort(data["id"].to_numpy(), kind="stable"):
        before = None if np.isnan(parent[row]) else row_of.get(int(parent[row]))
        if before is not None and not np.isnan(end[before]):
            seen = due[row] - terminal[before]
            begin[row] = end[before] + (after[row] if np.isnan(seen) else seen) * _S
            root[row] = root[before]
        elif first[row]:
            begin[row] = 0.0
        end[row] = begin[row] + alone[row]
    return begin, end, root


def _floats(data: pd.DataFrame, name: str) -> Values:
    if name not in data:
        return np.full(len(data), np.nan)
    return data[name].to_numpy(dtype=np.float64)


def _frame(data: pd.DataFrame) -> pd.DataFrame:
    """What is needed of each request, and of the first one of its session: ``opens`` (row), ``opened``
    (due, ns) and ``base`` (its ideal due time, s)."""
    begin, end, root = ideal_times(data)
    due = _floats(data, "due")
    frame = pd.DataFrame(
        {
            "row": np.arange(len(data)),
            "session": data["session"].to_numpy(),
            "turn": data["turn"].to_numpy(),
            "came": data["due"].notna().to_numpy(dtype=bool),
            "completed": (data["outcome"] == "completed").to_numpy(dtype=bool),
            "cancelled": (data["outcome"] == "cancelled_by_plan").to_numpy(dtype=bool),
            "due": due,
            "due_alone": due[root] + begin / _S,
            "terminal": _floats(data, "terminal"),
            "begin": begin,
            "end": end,
        }
    )
    opens = frame[frame["turn"] == 0].drop_duplicates("session")[["session", "row", "due", "begin"]]
    opens = opens.rename(columns={"row": "opens", "due": "opened", "begin": "base"})
    return frame.merge(opens, on="session", how="left")


def session_rows(data: pd.DataFrame) -> pd.DataFrame:
    """One row for each session of several requests. ``data`` has ``alone`` (s) where it is known.

    ``first``: row in ``data`` of its first request; ``opened``: when that was due, ns; ``requests``
    planned, ``due`` so many came due, ``completed`` so many of them; ``actual`` and ``ideal`` in s;
    ``stretch`` = actual/ideal, NaN unless all that came due completed and the ideal is known. What did not
    come due was cut off by the end of the load.
    """
    frame = _frame(data)
    frame["done"] = frame["terminal"].where(frame["completed"])
    frame["ideal"] = (frame["end"] - frame["base"]).where(frame["completed"])
    frame["unknown"] = frame["completed"] & frame["ideal"].isna()
    found = frame.groupby("session", sort=True).agg(
        first=("opens", "first"),
        opened=("opened", "first"),
        requests=("row", "size"),
        due=("came", "sum"),
        completed=("completed", "sum"),
        done=("done", "max"),
        ideal=("ideal", "max"),
        unknown=("unknown", "any"),
    )
    found = found[(found["requests"] > 1) & found["first"].notna()].astype({"first": np.int64})
    found["actual"] = (found["done"] - found["opened"]) * _S
    told = (found["completed"] == found["due"]) & ~found["unknown"] & (found["ideal"] > 0)
    found["stretch"] = (found["actual"] / found["ideal"]).where(told)
    return found.drop(columns=["done", "unknown"])


def session_stretch(data: pd.DataFrame) -> Samples:
    """One value a session, which belongs to its first request."""
    if data["session"].is_unique:
        return Samples(np.empty(0), np.empty(0, dtype=np.int32))
    found = session_rows(data)
    found = found[found["stretch"].notna()].sort_values("first")
    return Samples(found["stretch"].to_numpy(dtype=np.float64), found["first"].to_numpy(dtype=np.int32))


def sessions_block(data: pd.DataFrame, rows: Mask, window: tuple[int, int]) -> dict[str, Any] | None:
    """For summary.json: the sessions among ``rows`` that begin in the window, and the later turns that come
    due in it. None if no session has several requests."""
    if data["session"].is_unique:
        return None
    found = session_rows(data)
    found = found[rows[found["first"].to_numpy(dtype=np.int64)]]
    if not len(found):
        return None
    found = found[found["opened"].between(*window, inclusive="left")]
    whole = found["completed"] == found["due"]
    return {
        "planned": len(found),
        "whole": int(whole.sum()),
        "broken": int((~whole).sum()),
        "cut_off": int((whole & (found["due"] < found["requests"])).sum()),
        "later_turns": _later_turns(_frame(data)[rows], window),
    }


def _later_turns(frame: pd.DataFrame, window: tuple[int, int]) -> dict[str, Any]:
    """Later turns that came due in the window, and those that would have if each request had taken as long
    as alone: what a slow server has kept away from itself (C20). Sessions that the plan ends are left out."""
    ended = frame.loc[frame["cancelled"], "session"]
    later = frame[(frame["turn"] > 0) & ~frame["session"].isin(ended)]
    came = int(later["due"].between(*window, inclusive="left").sum())
    ideal = later["due_alone"]
    block: dict[str, Any] = {"due": came, "due_at_alone": None, "share": None}
    if missing := int(ideal.isna().sum()):
        return block | {"reason": f"nobody knows when {missing} of {len(later)} turns would be due"}
    would = int(ideal.between(*window, inclusive="left").sum())
    if not would:
        return block | {"due_at_alone": 0, "reason": "no later turn would have been due in the window"}
    return block | {"due_at_alone": would, "share": came / would}
