"""What a plan asks of its target, by class, before anything is sent (MEASUREMENT C44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.plan import Part, Plan, Shot

Alone = Callable[[Shot], float]
"""Seconds that a request takes on the idle target."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Mean demand of a class over the time of load; tokens/s, and KV tokens held (a lower bound)."""

    requests_s: float
    prefill_tokens_s: float
    uncached_tokens_s: float
    decode_tokens_s: float
    kv_tokens_mean: float | None
    """None where no estimate of the service time is known."""


def demand(plan: Plan, alone: Alone | None = None) -> dict[str, Demand]:
    """Demand by class. A later turn counts as asked, whether or not it will be reached in time."""
    span = plan.phases.load_ns / 1e9
    hits = theoretical_hits(plan.shots)
    by_class: dict[str, list[Shot]] = defaultdict(list)
    for shot in plan.shots:
        by_class[shot.class_].append(shot)
    return {name: _demand(shots, span, hits, alone) for name, shots in sorted(by_class.items())}


def _demand(shots: list[Shot], span: float, hits: dict[int, int], alone: Alone | None) -> Demand:
    asked = sum(shot.n_in_asked for shot in shots)
    held = None if alone is None else sum(alone(s) * (s.n_in_asked + s.n_out_asked / 2) for s in shots) / span
    return Demand(
        requests_s=len(shots) / span,
        prefill_tokens_s=asked / span,
        uncached_tokens_s=(asked - sum(hits[shot.id] for shot in shots)) / span,
        decode_tokens_s=sum(shot.n_out_asked for shot in shots) / span,
        kv_tokens_mean=held,
    )


def theoretical_hits(shots: Sequence[Shot]) -> dict[int, int]:
    """Prompt tokens by shot id that an endless cache of everything sent before would hold."""
    seen: set[tuple[Part, ...]] = set()
    hits: dict[int, int] = {}
    for shot in shots:
        shared = 0
        while shared < len(shot.prompt) and shot.prompt[: shared + 1] in seen:
            shared += 1
        # The answers in a history were computed when they were given.
        while shared and shared < len(shot.prompt) and shot.prompt[shared].answer_of is not None:
            shared += 1
        hits[shot.id] = min(sum(part.tokens for part in shot.prompt[:shared]), shot.n_in_asked - 1)
        seen.update(shot.prompt[: k + 1] for k in range(len(shot.prompt)))
    return hits
