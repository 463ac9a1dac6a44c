"""The gateway's queue: who waits, in which order, and when the door is shut (ENGINE E28-E32).

A request keeps its place for its whole life: its id is its arrival, so whoever comes back from a worker
is inserted where it stood before.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from engine.config import QueueConfig

AGING_NS = 10_000_000_000
"""E30: a request rises by one rank per 10 s of waiting."""
MAX_RETRY_AFTER_S = 60
UNKNOWN_RETRY_AFTER_S = 2
"""Retry-After while nothing is known of the pool's speed."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. ``id`` grows with arrival; ``uncached`` is u, ``output`` E[out]."""

    id: int
    class_: str
    rank: int
    arrived: int
    deadline: int | None
    prompt: int
    uncached: int
    output: float
    tenant: str = "default"

    @property
    def tokens(self) -> int:
        """What it counts for in the bound by tokens (E32)."""
        return self.prompt + math.ceil(self.output)

    def work(self, rates: tuple[float, float]) -> float:
        """Seconds of the pool's capacity that it uses: u/R_prefill + E[out]/R_decode (E40)."""
        return self.uncached / rates[0] + self.output / rates[1]


@dataclass(frozen=True, slots=True)
class Order:
    """Smallest ``key`` first. Inside one ``lane`` the key must grow with the id, whatever the time,
    so that a lane is never sorted again."""

    lane: Callable[[Waiting], int]
    key: Callable[[Waiting, int], tuple[int, ...]]


def effective_rank(entry: Waiting, now: int) -> int:
    """E30: max(0, rank - floor(wait / aging))."""
    return max(0, entry.rank - (now - entry.arrived) // AGING_NS)


ORDERS: Mapping[str, Order] = {
    "fcfs": Order(lane=lambda entry: 0, key=lambda entry, now: (entry.id,)),
    "priority": Order(
        lane=lambda entry: entry.rank, key=lambda entry, now: (effective_rank(entry, now), entry.id)
    ),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not join: ``queue_full`` or ``deadline_unreachable``, both 429."""

    code: str
    message: str
    retry_after: int


class Queue:
    """Bounded by requests and by tokens; both counted in the same call that adds (E24)."""

    def __init__(self, config: QueueConfig, rng: random.Random) -> None:
        if config.order not in ORDERS:
            raise ValueError(f"queue.order {config.order!r} is none of {', '.join(ORDERS)}")
        self.config = config
        self.tokens = 0
        self._order = ORDERS[config.order]
        self._rng = rng
        self._lanes: dict[int, list[Waiting]] = {}
        self._entries: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries.values())

    def configure(self, config: QueueConfig) -> None:
        """New bounds or another order, also while requests wait; none is thrown out. Raises ValueError."""
        new = Queue(config, self._rng)
        for entry in self._entries.values():
            new.add(entry)
        self.config, self._order, self._lanes = config, new._order, new._lanes

    def refusal(self, entry: Waiting, rates: tuple[float, float] | None, now: int) -> Refusal | None:
        """Why ``entry`` may not join now, None if it may (E31, E32)."""
        if (full := self.full(rates)) is not None:
            return full
        if self.tokens + entry.tokens > self.config.max_tokens:
            limit = self.config.max_tokens
            what = f"{self.tokens} tokens wait, {entry.tokens} more pass the limit of {limit}"
        elif self._unreachable(entry, rates, now):
            what = "the work ahead takes longer than the deadline allows"
            return Refusal("deadline_unreachable", what, self.retry_after(rates))
        else:
            return None
        return Refusal("queue_full", what, self.retry_after(rates))

    def full(self, rates: tuple[float, float] | None) -> Refusal | None:
        """The part of ``refusal`` that needs no prompt: the bound by count, checked before tokenizing."""
        if len(self) < self.config.max_requests:
            return None
        what = f"{len(self)} requests wait, the limit is {self.config.max_requests}"
        return Refusal("queue_full", what, self.retry_after(rates))

    def retry_after(self, rates: tuple[float, float] | None) -> int:
        """Seconds until what waits now will have been served, with jitter so that clients spread."""
        if rates is None:
            return UNKNOWN_RETRY_AFTER_S
        work = sum(entry.work(rates) for entry in self)
        return min(max(math.ceil(work * (1 + self._rng.uniform(0.0, 0.25))), 1), MAX_RETRY_AFTER_S)

    def add(self, entry: Waiting) -> None:
        """Let it in, or back to its old place. The caller asked ``refusal`` before if it is new."""
        insort(self._lanes.setdefault(self._order.lane(entry), []), entry, key=lambda e: e.id)
        self._entries[entry.id] = entry
        self.tokens += entry.tokens

    def remove(self, id: int) -> Waiting | None:
        """Take it out, None if it does not wait here."""
        entry = self._entries.pop(id, None)
        if entry is not None:
            lane = self._lanes[self._order.lane(entry)]
            del lane[bisect_left(lane, id, key=lambda e: e.id)]
            self.tokens -= entry.tokens
        return entry

    def in_order(self, now: int) -> Iterator[Waiting]:
        """Who is next. Lazy: take what you need into a list before you remove anything."""
        return heapq.merge(*self._lanes.values(), key=lambda entry: self._order.key(entry, now))

    def oldest(self) -> Waiting | None:
        return self._entries[min(self._entries)] if self._entries else None

    def _unreachable(self, entry: Waiting, rates: tuple[float, float] | None, now: int) -> bool:
        if rates is None or entry.deadline is None:
            return False
        mine = self._order.key(entry, now)
        ahead = sum(other.work(rates) for other in self if self._order.key(other, now) < mine)
        return now + int(ahead * 1e9) > entry.deadline
