"""What a plan asks of its target, by class, before anything is sent (MEASUREMENT C18, C44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.plan import Plan, Shot
from loadgen.prefixes import Prefixes
from results.stats import arrival_law
from results.stats.arrival_law import ArrivalFacts

Alone = Callable[[Shot, int], float]
"""Seconds that a request takes on the idle target, with so many prompt tokens in its cache."""

CLOSED_LOOP = "closed loop: how often its users ask depends on the answers"


@dataclass(frozen=True, slots=True)
class Demand:
    """Mean demand of a class over the time of load; tokens/s, and KV tokens held (a lower bound)."""

    requests_s: float | None
    prefill_tokens_s: float | None
    uncached_tokens_s: float | None
    decode_tokens_s: float | None
    kv_tokens_mean: float | None
    """None, without a reason of its own, where no estimate of the service time is known."""
    reason: str | None = None
    """Why all the others are None."""


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    asked: int = 0
    held: int = 0
    decoded: int = 0
    kv_token_s: float = 0.0
    closed: bool = False


def demand(plan: Plan, alone: Alone | None = None) -> dict[str, Demand]:
    """Demand by class. A later turn counts as asked, whether or not it will be reached in time; a class
    with a user in a closed loop has no demand of its own, and None."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for shot, hit in zip(plan.shots, _hits(plan.shots), strict=True):
        total = sums[shot.class_]
        total.requests += 1
        total.asked += shot.n_in_asked
        total.held += hit
        total.decoded += shot.n_out_asked
        total.closed |= shot.fresh
        if alone is not None:
            total.kv_token_s += alone(shot, hit) * (shot.n_in_asked + shot.n_out_asked / 2)
    span = plan.phases.load_ns / 1e9
    return {name: _demand(total, span, alone is not None) for name, total in sorted(sums.items())}


def _demand(total: _Sum, span: float, known: bool) -> Demand:
    if total.closed:
        return Demand(None, None, None, None, None, CLOSED_LOOP)
    return Demand(
        requests_s=total.requests / span,
        prefill_tokens_s=total.asked / span,
        uncached_tokens_s=(total.asked - total.held) / span,
        decode_tokens_s=total.decoded / span,
        kv_tokens_mean=total.kv_token_s / span if known else None,
    )


def theoretical_hits(shots: Sequence[Shot]) -> dict[int, int]:
    """Prompt tokens by shot id that an endless cache of everything sent before, in order of id, would
    hold. Tenants and adapters share nothing; the last token of a prompt is always computed."""
    return {shot.id: hit for shot, hit in zip(shots, _hits(shots), strict=True)}


def _hits(shots: Sequence[Shot]) -> Iterable[int]:
    seen = Prefixes()
    for shot in shots:
        yield min(seen.add((shot.tenant, shot.adapter), shot.prompt), shot.n_in_asked - 1)


def planned_arrivals(plan: Plan) -> dict[str, ArrivalFacts]:
    """How sessions of each class are due in the window: counts, rate, gaps, dispersion, peak. Later turns
    and later sessions of a closed loop have no due time yet and are not among them."""
    due: dict[str, list[int]] = {shot.class_: [] for shot in plan.shots}
    for shot in plan.shots:
        if shot.due_ns is not None:
            due[shot.class_].append(shot.due_ns)
    a, b = plan.phases.window_ns
    return {
        name: arrival_law.arrival_facts(np.sort(np.array(times, dtype=np.int64)), a, b)
        for name, times in sorted(due.items())
    }
