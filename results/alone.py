"""*alone*: how long each request takes on the idle target, its cache hits kept (MEASUREMENT, terms).

For our engine that is known from its cost model. For another target it can only be guessed from the
requests that had the least company.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from results.record import Outcome, Record
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


def by_cost(records: Iterable[Record], cost: IdleCost) -> dict[int, float]:
    """s by request id, for every request, also one that was not sent or did not end well: that counts as
    it was asked for. What is not known of its hits is taken from its parent: all of that one's prompt and
    answer, if the prompt has grown from it."""
    sizes: dict[int, int] = {}
    found = {}
    for one in sorted(records, key=lambda one: one.id):
        served = one.outcome is Outcome.COMPLETED and one.n_out is not None
        out = one.n_out if served and one.n_out is not None else one.n_out_asked
        prompt = max(1, one.n_in_asked if one.n_in is None else one.n_in)
        before = 0 if one.parent is None else sizes.get(one.parent, 0)
        cached = one.cache_read if one.cache_read is not None else before if before < prompt else 0
        sizes[one.id] = prompt + out
        found[one.id] = cost.seconds(prompt, cached, out)
    return found


def by_company(records: Sequence[Record]) -> dict[int, float]:
    """s by request id: the median e2e of the completed requests of the same class and length buckets that
    had the fewest others in flight. An upper bound, for even those were not alone. Requests whose class
    and lengths have too few of them are left out."""
    lives = [(one.start, one.closed) for one in records if one.start is not None and one.closed is not None]
    ended = [one for one in records if one.outcome is Outcome.COMPLETED and one.last_token is not None]
    if not ended:
        return {}
    starts = np.array([one.start for one in ended], dtype=np.float64)
    began, closed = (np.sort(np.array(times, dtype=np.float64)) for times in zip(*lives, strict=True))
    company = np.searchsorted(began, starts, side="right") - np.searchsorted(closed, starts, side="right")
    least = float(np.quantile(company, LEAST_LOADED))
    quiet: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one, others in zip(ended, company, strict=True):
        if others <= least:
            quiet[_kind(one)].append(_e2e(one))
    medians = {kind: float(np.median(seen)) for kind, seen in quiet.items() if len(seen) >= ENOUGH}
    return {one.id: medians[kind] for one in ended if (kind := _kind(one)) in medians}


def _kind(one: Record) -> tuple[str, str, str]:
    return one.class_, length_bucket(one.n_in), length_bucket(one.n_out)


def _e2e(one: Record) -> float:
    assert one.last_token is not None, "only those that ended with one are asked"
    assert one.start is not None, "what ended was sent"
    return (one.last_token - one.start) * 1e-9
