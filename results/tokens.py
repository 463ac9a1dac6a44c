"""Tokens of a class: where they went, and the time that each took."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from results.metrics import METRICS, NS, tokens_after_first
from results.outcomes import Mask, is_group
from results.stats.bootstrap import ratio_interval
from results.stats.distribution import Estimate
from results.view import View


def tokens_block(view: View, name: str | None, rows: Mask) -> dict[str, Any]:
    """Tokens in and out of the window's ``rows``, of class ``name`` (None: all). What an attempt brought
    that did not complete, or that another one followed, is no throughput (C24, C27)."""
    data, marks = view.part(rows), view.marks.at(rows)
    lost = is_group(data, "failed") | is_group(data, "expired") | is_group(data, "unknown")
    out = data["n_out"].fillna(0).to_numpy(dtype=np.float64)
    weighted = weighted_tpot(view, rows)
    result: dict[str, Any] = {
        "in": int(data["n_in"].fillna(0).sum()),
        "out": int(out[marks.completed].sum()),
        "failed": int(out[lost].sum()),
        "cancelled": int(out[marks.cancelled].sum()),
        "wasted": int(_earlier(view, name)["n_out"].fillna(0).sum()),
        "tpot_token_weighted": weighted.value,
    }
    if weighted.value is None:
        result["tpot_token_weighted_reason"] = weighted.reason
    return result


def earlier_attempts(view: View, name: str | None) -> int:
    """Attempts of the window's requests that another one followed."""
    return len(_earlier(view, name))


def _earlier(view: View, name: str | None) -> pd.DataFrame:
    if view.attempts is None:
        return view.data.iloc[:0]
    own = view.attempts["class"] == name if name is not None else True
    return view.attempts[(view.attempts["phase"] == "window") & own]


def weighted_tpot(view: View, rows: Mask) -> Estimate:
    """Sum of the spans over sum of the tokens after the first events; a span of 0 counts like any other."""
    data = view.part(rows & view.marks.completed)
    per_request = METRICS["tpot"].per_request
    assert per_request is not None
    known = ~np.isnan(per_request(data))
    if not known.any():
        return Estimate(None, reason="no completed request has token times", n=0)
    spans = ((data["last_token"] - data["first_token"]) * NS).to_numpy(dtype=np.float64)[known]
    tokens = tokens_after_first(data)[known]
    value = float(spans.sum() / tokens.sum())
    return Estimate(value, ratio_interval(spans, tokens), n=int(known.sum()))
