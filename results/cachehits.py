"""Hit names and the cache contract (MEASUREMENT C22, C41)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from results.outcomes import Mask
from results.sharing import as_played, shareable
from results.stats.bootstrap import ratio_interval
from results.stats.distribution import Estimate
from results.stats.quantiles import Values
from results.view import View

HITS = ("hit_token_weighted", "hit_request_mean", "hit_request_count")


def reporting(data: pd.DataFrame) -> tuple[Values, Values]:
    """(tokens read, prompt tokens) of the requests whose usage reported both."""
    rows = data[data["cache_read"].notna() & (data["prompt_total"] > 0)]
    return rows["cache_read"].to_numpy(dtype=np.float64), rows["prompt_total"].to_numpy(dtype=np.float64)


def hit(data: pd.DataFrame, name: str) -> Estimate:
    """One of the hit names over records in due order."""
    if name == "hit_theoretical":
        return _theoretical(data)
    if name == "cache_report_coverage":
        completed = data[data["outcome"] == "completed"]
        share = float(completed["cache_read"].notna().mean()) if len(completed) else None
        return Estimate(share, reason="no request completed", n=len(completed))
    read, total = reporting(data)
    if not len(read):
        return Estimate(None, reason="no request reported its cached tokens", n=0)
    one = np.ones(len(read))
    over, under = {
        "hit_token_weighted": (read, total),
        "hit_request_mean": (read / total, one),
        "hit_request_count": ((read > 0).astype(np.float64), one),
    }[name]
    return Estimate(float(over.sum() / under.sum()), ratio_interval(over, under), n=len(read))


def _theoretical(data: pd.DataFrame) -> Estimate:
    """Over the requests that ``hit_token_weighted`` is over, so that the two can be compared."""
    if "ideal" not in data or "prompt" not in data:
        return Estimate(None, reason="which worker holds which blocks is not known of this target")
    rows = data[data["ideal"].notna() & data["cache_read"].notna() & (data["prompt"] > 0)]
    if not len(rows):
        return Estimate(None, reason="no request reported its cached tokens", n=0)
    read = rows["ideal"].to_numpy(dtype=np.float64)
    total = rows["prompt"].to_numpy(dtype=np.float64)
    return Estimate(float(read.sum() / total.sum()), ratio_interval(read, total), n=len(rows))


def contract(view: View) -> dict[str, Any]:
    """Whether the cache was as declared, seen from the hits: ``held``, ``violated`` or ``unverified``.

    Cold: no request read more than what it shares with others of this run and phase, and none that came
    before all others read anything (see ``_first``). Warm: some request of the window read something.
    """
    declared = view.judging.cache
    data = view.data[view.data["cache_read"].notna()]
    if declared == "as_is":
        state, reason = "unverified", "as_is declares nothing"
    elif not len(data):
        state, reason = "unverified", "no request reported its cached tokens"
    elif declared == "cold":
        state, reason = _cold(view, data)
    else:
        read = int(view.window["cache_read"].fillna(0).sum())
        state = "held" if read else "violated"
        reason = f"requests of the window read {read} cached tokens"
    return {"declared": declared, "state": state, "reason": reason}


def _cold(view: View, data: pd.DataFrame) -> tuple[str, str]:
    """``data``: the requests that reported their cached tokens."""
    if not data["cache_read"].any():
        return "held", f"{len(data)} requests read no cached tokens"
    early = data[_first(view.data)[data.index]]
    if read := int(early["cache_read"].sum()):
        return "violated", f"{len(early)} requests that came before all others read {read} cached tokens"
    spare = _unshared(view, data)
    if len(foreign := spare[spare < 0]):
        return (
            "violated",
            f"{len(foreign)} of {len(data)} requests read {int(-foreign.sum())} cached tokens more than they "
            "share with others of this run and phase",
        )
    if tight := int((spare > 0).sum()):
        return "held", f"{tight} requests could have read what others have not brought in, and none did"
    if not len(early):
        return "unverified", "every request that reported its cached tokens may have read another one's"
    return "held", f"{len(early)} requests that came before all others read 0 cached tokens"


def _unshared(view: View, data: pd.DataFrame) -> pd.Series[float]:
    """Of each request whose prompt is known from the plan: the prompt tokens that no other request of its
    phase can have brought in (0 if all), negative by as many tokens as it read of those.

    What the chat template adds is the same in all prompts, so it is taken to be shared; what the engine
    did twice (a retry, a preemption) finds its own first try, and is left out.
    """
    plan = None if view.plan is None or "phase" not in view.plan else as_played(view.plan, view.data)
    shares = shareable(plan)
    if shares is None:
        return pd.Series(dtype=np.float64)
    total = data["prompt_total"].fillna(data["n_in"])
    allowed = data["id"].map(shares) + (total - data["n_in_asked"]).clip(lower=0)
    once = (data["attempt"] == 1) & allowed.notna()
    for column, most in (("preemptions", 0), ("engine_attempt", 1)):
        if column in data:
            once &= ~(data[column] > most)
    over = (data["cache_read"] - allowed).clip(lower=0)
    own = (total - allowed).clip(lower=0)
    found: pd.Series[float] = own.where(over == 0, -over)[once].astype(np.float64)
    return found


def _first(data: pd.DataFrame) -> Mask:
    """Requests that can have found nothing of this run, whatever they read.

    With truth: the first to be scheduled on each worker. Else one that had its answer (its first token,
    or all of it) before any other was sent. To be *sent* before the first answer is not enough: a request
    that waits finds what was computed in the meantime.
    """
    if {"first_scheduled", "received", "worker"} <= set(data) and data["first_scheduled"].notna().any():
        return _first_scheduled(data)
    sent = np.sort(data["start"].dropna().to_numpy(dtype=np.float64))
    answered = data["first_token"].fillna(data["terminal"]).to_numpy(dtype=np.float64)
    alone = len(sent) == 1 or (len(sent) > 1) & (answered <= (sent[1] if len(sent) > 1 else 0))
    first: Mask = (data["start"].to_numpy(dtype=np.float64) == (sent[0] if len(sent) else np.nan)) & alone
    return first


def _first_scheduled(data: pd.DataFrame) -> Mask:
    """The first on each worker's life. A request of which is not known where and when it ran may have run
    there as soon as it was received: whoever was scheduled after that is the first of nothing."""
    lives = [c for c in ("worker", "incarnation") if c in data]
    known = data["first_scheduled"].notna()
    if "engine_attempt" in data:
        known &= ~(data["engine_attempt"] > 1)
    earliest = data[known].groupby(lives, dropna=False)["first_scheduled"].transform("min")
    first = known & (data["first_scheduled"] == earliest.reindex(data.index))
    doubtful = data["received"][~known].min()
    if not np.isnan(doubtful):
        first &= data["first_scheduled"] <= doubtful
    mask: Mask = first.to_numpy(dtype=bool)
    return mask


def cache_block(view: View, rollup: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``cache`` block of JOINTS 6."""
    block: dict[str, Any] = {"contract": contract(view), "hits": {}}
    for name in (*HITS, "hit_theoretical"):
        found = hit(view.window, name)
        block["hits"][name] = found.value
        if found.value is None:
            block["hits"][f"{name}_reason"] = found.reason
    coverage = hit(view.window, "cache_report_coverage")
    block["coverage"] = coverage.value
    if coverage.value is None:
        block["coverage_reason"] = coverage.reason
    ledger = (rollup or {}).get("ledger")
    block["ledger"] = ledger
    if ledger is None:
        block["ledger_reason"] = "prompt tokens were not attributed"
    return block
