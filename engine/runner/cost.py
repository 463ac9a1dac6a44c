"""How long a step takes and how long a request stays: the cost model of ENGINE E40. Pure; seconds."""

from __future__ import annotations

from collections import Counter

from engine.config import CostModel, TiersConfig
from engine.runner.base import Move, StepPlan, Transfer


def step_terms(cost: CostModel, plan: StepPlan) -> tuple[float, float, float]:
    """Seconds of a step that are (fixed, due to prefill rows, due to decode rows); their sum is t_step.

    ``a`` · ``b*sum(chunk) + e*sum(chunk*(start + chunk/2))`` · ``c*rows + d*sum(contexts)`` (ENGINE E40).
    """
    prefill = decode = 0.0
    for row in plan.rows:
        chunk = len(row.tokens)
        if row.is_decode:
            decode += cost.c + cost.d * (row.start + 1)
        else:
            prefill += cost.b * chunk + cost.e * chunk * (row.start + chunk / 2)
    return cost.a, prefill, decode


def prefill_seconds(cost: CostModel, start: int, tokens: int) -> float:
    """Seconds that ``tokens`` prompt tokens behind ``start`` others add to their steps."""
    return cost.b * tokens + cost.e * tokens * (start + tokens / 2)


def moving_seconds(tiers: TiersConfig, block_bytes: int, host: int, disk: int = 0) -> float:
    """Seconds to move ``host`` blocks between device and host and ``disk`` ones between host and disk."""
    seconds = 0.0
    if host:
        seconds += tiers.host_latency + host * block_bytes / tiers.host_bandwidth
    if disk and tiers.disk is not None:
        seconds += tiers.disk.latency + disk * block_bytes / tiers.disk.bandwidth
    return seconds


def step_moving(tiers: TiersConfig, block_bytes: int, transfers: tuple[Transfer, ...]) -> tuple[float, float]:
    """Seconds of a step in which blocks move (between device and host, between host and disk), one way after
    the other."""
    moves = Counter(transfer.move for transfer in transfers)
    host = [moving_seconds(tiers, block_bytes, moves[move]) for move in (Move.LOAD, Move.SAVE)]
    disk = [moving_seconds(tiers, block_bytes, 0, moves[move]) for move in (Move.FETCH, Move.SPILL)]
    return sum(host), sum(disk)


def prefill_share(cost: CostModel, plan: StepPlan, prefill: int, decode: int) -> float:
    """The share of a step's time that its ``prefill`` tokens took: by the model's terms, ``a`` by tokens."""
    if not prefill or not decode:
        return float(prefill > 0)
    fixed, prefills, decodes = step_terms(cost, plan)
    share = prefill / (prefill + decode)
    whole = fixed + prefills + decodes
    return (prefills + fixed * share) / whole if whole > 0 else share


def stay(
    cost: CostModel, chunk: int, rows: int, contexts: int, prompt: int, uncached: int, output: float
) -> float:
    """``life(r) = u/R(rows) + out*t_step(rows)``: from the dispatch of a request to its end, while ``rows``
    others decode ``contexts`` tokens in all. ``chunk`` is the most prompt tokens of one step."""
    others = cost.a + cost.c * rows + cost.d * contexts
    attention = cost.e * uncached * (prompt - uncached / 2)
    prefill = uncached * (others / chunk + cost.b) + attention
    return prefill + output * (others + cost.c)
