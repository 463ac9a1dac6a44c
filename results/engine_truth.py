"""What our own engine says about itself: the ``engine`` block of the summary (truth and scrapes)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd

from results.stats.quantiles import quantile
from results.view import TIERS, View

KV_BLOCKS = "headrace_engine_kv_blocks"
KV_STATES = ("used", "cached", "empty", "fenced")


def kv_series(scrapes: pd.DataFrame | None) -> pd.DataFrame:
    """Blocks over time: columns ``t`` (ns), ``worker`` (text), and one per state of the pool."""
    columns = ["t", "worker", *KV_STATES]
    if scrapes is None or not len(scrapes):
        return pd.DataFrame(columns=columns)
    rows = scrapes[scrapes["name"] == KV_BLOCKS]
    if not len(rows):
        return pd.DataFrame(columns=columns)
    tags = [json.loads(text) for text in rows["labels"]]
    flat = pd.DataFrame(
        {
            "t": rows["t"].to_numpy(),
            "worker": [
                str(tag.get("worker", target)) for tag, target in zip(tags, rows["target"], strict=True)
            ],
            "state": [str(tag.get("state", "")) for tag in tags],
            "value": rows["value"].to_numpy(dtype=np.float64),
        }
    )
    wide = flat.pivot_table(index=["t", "worker"], columns="state", values="value", aggfunc="sum")
    return wide.reset_index().reindex(columns=columns, fill_value=0.0).fillna(0.0)


def kv_usage(scrapes: pd.DataFrame | None, window: tuple[int, int]) -> dict[str, Any]:
    """Referenced share of the pool within the window, by worker and ``all``: mean and max of the samples."""
    series = kv_series(scrapes)
    series = series[(series["t"] >= window[0]) & (series["t"] < window[1])]
    usage: dict[str, Any] = {}
    if not len(series):
        return usage
    total = series[list(KV_STATES)].sum(axis=1)
    share = (series["used"] / total.where(total > 0)).fillna(0.0)
    for worker in sorted(series["worker"].unique()):
        part = share[series["worker"] == worker]
        usage[worker] = {"mean": float(part.mean()), "max": float(part.max()), "n": len(part)}
    usage["all"] = {"mean": float(share.mean()), "max": float(share.max()), "n": len(share)}
    return usage


def engine_block(
    view: View, scrapes: pd.DataFrame | None, truth: pd.DataFrame | None
) -> dict[str, Any] | None:
    """The block of JOINTS 6, over the requests of the window; None without truth."""
    if truth is None or not len(truth):
        return None
    window = view.window
    joined = window[window["tier"] != ""] if "tier" in window else window.iloc[0:0]
    block: dict[str, Any] = {
        "requests": len(joined),
        "unjoined": int(len(window[window["start"].notna()]) - len(joined)),
    }
    block |= _tokens(joined)
    block["queue_wait"] = {name: _waits(joined, name) for name in sorted(joined["class"].unique())}
    block["workers"] = _by_worker(joined)
    block["kv"] = kv_usage(scrapes, view.judging.window)
    if not block["kv"]:
        block["kv_reason"] = f"{KV_BLOCKS} was not scraped in the window"
    return block


def _total(data: pd.DataFrame, name: str) -> int | None:
    return int(data[name].fillna(0).sum()) if name in data else None


def _tokens(joined: pd.DataFrame) -> dict[str, Any]:
    return {
        "prompt_tokens": _total(joined, "prompt"),
        "computed_tokens": _total(joined, "computed"),
        "recomputed_tokens": _total(joined, "recomputed"),
        "generated_tokens": _total(joined, "generated"),
        "preemptions": _total(joined, "preemptions"),
        "hit_tokens": {tier: n for tier in TIERS if (n := _total(joined, f"hit_{tier}")) is not None},
    }


def _hits(rows: pd.DataFrame) -> int | None:
    """Over all tiers."""
    known = [n for tier in TIERS if (n := _total(rows, f"hit_{tier}")) is not None]
    return sum(known) if known else None


def _waits(joined: pd.DataFrame, name: str) -> dict[str, Any]:
    if "first_scheduled" not in joined or "received" not in joined:
        return {"n": 0, "p50": None, "p90": None, "max": None, "reason": "not in the truth"}
    rows = joined[joined["class"] == name]
    wait = ((rows["first_scheduled"] - rows["received"]) * 1e-9).dropna()
    ordered = np.sort(wait.to_numpy(dtype=np.float64))
    result: dict[str, Any] = {"n": len(ordered), "p50": quantile(ordered, 0.5), "p90": quantile(ordered, 0.9)}
    result["max"] = float(ordered[-1]) if len(ordered) else None
    if result["p90"] is None:
        result["reason"] = "too few requests were scheduled"
    return result


def _by_worker(joined: pd.DataFrame) -> dict[str, dict[str, Any]]:
    if "worker" not in joined:
        return {}
    known = joined[joined["worker"].notna()]
    groups = known.groupby(known["worker"].astype(int), sort=True)
    return {
        str(worker): {
            "requests": len(rows),
            "prompt_tokens": _total(rows, "prompt"),
            "hit_tokens": _hits(rows),
            "generated_tokens": _total(rows, "generated"),
        }
        for worker, rows in groups
    }
