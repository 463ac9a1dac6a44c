"""Waiting requests, and in which order they are served (ENGINE E30): one row of ``ORDERS`` each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

NEVER = 1 << 62
"""A moment (ns) after all others: the deadline of a request that has none."""

Key = tuple[int, float, int, int]
"""(effective rank, what its tenant has had, place, id): the smallest is served first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue, as it was when it arrived. ``id`` grows with ``arrived`` (ns)."""

    id: int
    class_: str
    rank: int
    arrived: int
    deadline: int | None
    prompt: int
    uncached: int
    """u, by what the gateway knew of the caches."""
    output: float
    """E[out] of one choice."""
    tenant: str = "default"
    n: int = 1
    room: int = 0
    """KV tokens that it may come to hold: prompt and longest outputs."""
    aged: int = 0
    """``arrived`` + 4*u/R_prefill (ns): its place under ``shortest_uncached``."""

    @property
    def outputs(self) -> float:
        """Expected output tokens of all choices."""
        return self.n * self.output

    @property
    def tokens(self) -> int:
        """What it counts for in bounds by tokens (E32)."""
        return self.prompt + math.ceil(self.outputs)


@dataclass(slots=True)
class Tally:
    """Sums over waiting requests."""

    requests: int = 0
    tokens: int = 0
    uncached: int = 0
    output: float = 0.0

    def count(self, entry: Waiting, sign: int = 1) -> None:
        self.requests += sign
        self.tokens += sign * entry.tokens
        self.uncached += sign * entry.uncached
        self.output = self.output + sign * entry.outputs if self.requests else 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.uncached + other.uncached,
            self.output + other.output,
        )

    def __sub__(self, other: Tally) -> Tally:
        return Tally(
            self.requests - other.requests,
            self.tokens - other.tokens,
            self.uncached - other.uncached,
            self.output - other.output,
        )

    @property
    def whole(self) -> tuple[int, int, int]:
        """Its sums of whole numbers, which are exact."""
        return self.requests, self.tokens, self.uncached

    def part(self, share: float) -> Tally:
        """As if each request could be divided."""
        return Tally(
            round(share * self.requests),
            round(share * self.tokens),
            round(share * self.uncached),
            share * self.output,
        )

    def work(self, rates: tuple[float, float]) -> float:
        """Seconds of the pool's capacity: u/R_prefill + E[out]/R_decode (E40)."""
        return self.uncached / rates[0] + self.output / rates[1]


@dataclass(frozen=True, slots=True)
class Order:
    """``place`` is fixed at arrival. With ``by_rank`` the effective rank comes first, and then the place
    must grow with arrival: so of one tenant and rank the order never changes."""

    place: Callable[[Waiting], int]
    by_rank: bool = False
    by_service: bool = False
    """Before the place counts what the tenant has had for its weight (E29)."""
    drops_late: bool = False
    """Who can no longer end by its deadline is dropped at its turn, before any prefill."""


def _arrived(entry: Waiting) -> int:
    return entry.arrived


ORDERS: Mapping[str, Order] = {
    "fcfs": Order(_arrived),
    "priority": Order(_arrived, by_rank=True),
    "fair": Order(_arrived, by_rank=True, by_service=True),
    "edf": Order(lambda entry: NEVER if entry.deadline is None else entry.deadline, drops_late=True),
    "shortest_uncached": Order(lambda entry: entry.aged),
}


def effective_rank(entry: Waiting, now: int, aging: int) -> int:
    """E30: max(0, rank - floor(wait / aging)); ``aging`` in ns."""
    return max(0, entry.rank - max(0, now - entry.arrived) // aging)
