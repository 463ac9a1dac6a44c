"""*alone*: how long each request takes on the idle target, its cache hits kept (MEASUREMENT, terms).

For our engine that is known from its cost model. For another target it can only be guessed from the
requests that had the least company.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.slices import length_bucket

LEAST_LOADED = 0.2
"""Share of the completed requests, those with the fewest others in flight when they began."""
ENOUGH = 5
"""So many of them a class and lengths must have, for a median to be taken."""


@dataclass(frozen=True, slots=True)
class IdleCost:
    """The step times of ENGINE E40 in s, and the most prompt tokens that one step computes for a request."""

    a: float
    b: float
    c: float
    d: float
    e: float
    g0: float
    g1: float
    chunk: int

    def seconds(self, prompt: int, cached: int, out: int) -> float:
        """Receipt to last token of a request that has the engine for itself. ``out`` tokens come from
        the last prefill step and ``out - 1`` decode steps; contexts grow by one a step."""
        computed = prompt - min(cached, prompt - 1)
        done = prompt - computed
        prefill = math.ceil(computed / self.chunk) * self.a + self.b * computed
        # sum of chunk * (start + chunk/2) over chunks that follow each other
        prefill += self.e * (prompt * prompt - done * done) / 2
        decodes = max(0, out - 1)
        contexts = decodes * (prompt + 1) + decodes * (decodes - 1) / 2
        return self.g0 + self.g1 * prompt + prefill + decodes * (self.a + self.c) + self.d * contexts


def by_cost(records: pd.DataFrame, cost: IdleCost) -> dict[int, float]:
    """s by request id, for every request, also one that was not sent or did not end well: that counts as
    it was asked for. What is not known of its hits is taken from its parent: all of that one's prompt and
    answer, if the prompt has grown from it."""
    asked: dict[int, int] = {}
    found = {}
    for row in _rows(records):
        prompt = row.n_in if row.n_in is not None else row.n_in_asked
        out = row.n_out if row.completed and row.n_out is not None else row.n_out_asked
        cached = row.cached
        if cached is None:
            before = asked.get(row.parent, 0) if row.parent is not None else 0
            cached = before if before < prompt else 0
        asked[row.id] = prompt + out
        found[row.id] = cost.seconds(max(1, prompt), cached, out)
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    parent: int | None
    n_in_asked: int
    n_out_asked: int
    n_in: int | None
    n_out: int | None
    cached: int | None
    completed: bool


def _rows(records: pd.DataFrame) -> Iterator[_Row]:
    """In order of id, so that a parent comes before its children."""
    data = records.sort_values("id", kind="stable")
    names = ("id", "parent", "n_in_asked", "n_out_asked", "n_in", "n_out", "cache_read")
    columns = [data[name].tolist() for name in names]
    for *values, outcome in zip(*columns, data["outcome"].tolist(), strict=True):
        id, parent, n_in_asked, n_out_asked, n_in, n_out, cached = (
            None if pd.isna(value) else int(value) for value in values
        )
        assert id is not None, "every record has an id"
        yield _Row(id, parent, n_in_asked or 0, n_out_asked or 0, n_in, n_out, cached, outcome == "completed")


def by_company(records: pd.DataFrame) -> dict[int, float]:
    """s by request id: the median e2e of the completed requests of the same class and length buckets that
    had the fewest others in flight. An upper bound, for even those were not alone. Requests whose class
    and lengths have too few of them are left out."""
    data = records[(records["outcome"] == "completed").to_numpy(dtype=bool) & records["last_token"].notna()]
    if not len(data):
        return {}
    started = np.sort(records["start"].dropna().to_numpy(dtype=np.float64))
    ended = np.sort(records["closed"].dropna().to_numpy(dtype=np.float64))
    starts = data["start"].to_numpy(dtype=np.float64)
    company = np.searchsorted(started, starts, side="right") - np.searchsorted(ended, starts, side="right")
    quiet = company <= np.quantile(company, LEAST_LOADED)
    frame = pd.DataFrame(
        {
            "id": data["id"].to_numpy(dtype=np.int64),
            "e2e": (data["last_token"].to_numpy(dtype=np.float64) - starts) * 1e-9,
            "kind": [
                f"{name}|{length_bucket(n_in)}|{length_bucket(n_out)}"
                for name, n_in, n_out in zip(data["class"], data["n_in"], data["n_out"], strict=True)
            ],
        }
    )
    groups = frame[quiet].groupby("kind")["e2e"]
    medians = groups.median()[groups.count() >= ENOUGH]
    known = frame["kind"].map(medians).to_numpy(dtype=np.float64)
    return {int(id): float(s) for id, s in zip(frame["id"], known, strict=True) if not np.isnan(s)}
