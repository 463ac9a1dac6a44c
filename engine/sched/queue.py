"""The gateway's queue: who waits, who is next, and when the door is shut (ENGINE E28-E32).

A request keeps its place for its whole life: its id is its arrival, so whoever comes back from a worker
is inserted where it stood before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

from engine.config import ClassConfig, EngineConfig
from engine.sched.fairness import Service, Turn, tenant_config
from engine.sched.lanes import Lanes
from engine.sched.orders import ORDERS, Key, Tally, Waiting

MAX_RETRY_AFTER_S = 60
UNKNOWN_RETRY_AFTER_S = 2
"""Retry-After while nothing is known of the pool's speed."""

Speed = tuple[float, float]
"""(R_prefill, R_decode) of the pool in tokens/s."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not join: ``queue_full``, ``class_queue_full``, ``tenant_queue_full`` or
    ``deadline_unreachable``, all 429."""

    code: str
    message: str
    retry_after: int


@dataclass(frozen=True, slots=True)
class _Bound:
    code: str
    whose: str
    waits: Tally
    max_requests: int | None
    max_tokens: int | None


class Queue:
    """Bounded by requests and by tokens: in all, per class, per tenant. Both are counted in the same call
    that adds (E24)."""

    def __init__(self, config: EngineConfig, rng: random.Random) -> None:
        self.service = Service(config)
        self._rng = rng
        self._entries: dict[int, Waiting] = {}
        self._all = Tally()
        self._classes: dict[str, Tally] = {}
        self._tenants: dict[str, Tally] = {}
        self.configure(config)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries.values())

    @property
    def tokens(self) -> int:
        return self._all.tokens

    def of_class(self, name: str) -> Tally:
        """What of this class waits."""
        return self._classes.get(name, Tally())

    def of_tenant(self, name: str) -> Tally:
        """What of this tenant waits."""
        return self._tenants.get(name, Tally())

    def configure(self, config: EngineConfig) -> None:
        """New bounds or another order, also while requests wait; none is thrown out. Raises ValueError."""
        queue = config.queue
        if queue.order not in ORDERS:
            raise ValueError(f"queue.order {queue.order!r} is none of {', '.join(ORDERS)}")
        self.order = ORDERS[queue.order]
        self._config = config
        self.service.configure(config)
        self._lanes = Lanes(self.order, max(1, int(queue.aging * 1e9)), self.service.of)
        for entry in self._entries.values():
            self._lanes.add(entry)

    def full(self, class_: str, tenant: str, rates: Speed | None) -> Refusal | None:
        """The part of ``refusal`` that needs no prompt: the bounds by count, checked before tokenizing."""
        for bound in self._bounds(class_, tenant):
            if bound.max_requests is not None and bound.waits.requests >= bound.max_requests:
                what = f"{bound.waits.requests} requests{bound.whose} wait, the limit is {bound.max_requests}"
                return Refusal(bound.code, what, self.retry_after(rates))
        return None

    def refusal(self, entry: Waiting, rates: Speed | None, now: int) -> Refusal | None:
        """Why ``entry`` may not join now, None if it may (E31, E32)."""
        if (full := self.full(entry.class_, entry.tenant, rates)) is not None:
            return full
        for bound in self._bounds(entry.class_, entry.tenant):
            if not bound.waits.requests or bound.max_tokens is None:
                continue  # one alone may be larger than the bound: it would never get in otherwise
            if bound.waits.tokens + entry.tokens > bound.max_tokens:
                what = (
                    f"{bound.waits.tokens} tokens{bound.whose} wait, {entry.tokens} more pass the limit of "
                )
                return Refusal(bound.code, f"{what}{bound.max_tokens}", self.retry_after(rates))
        if rates is None or entry.deadline is None:
            return None
        left = (entry.deadline - now) / 1e9
        if self._all.work(rates) <= left:
            return None
        work = self.ahead(entry, now, lambda sums: sums.work(rates) > left).work(rates)
        if work <= left:
            return None
        what = f"the work ahead takes {work:.1f} s or more and the deadline is in {left:.1f} s"
        return Refusal("deadline_unreachable", what, self.retry_after(rates))

    def retry_after(self, rates: Speed | None) -> int:
        """Seconds until what waits now will have been served, with jitter so that clients spread."""
        if rates is None:
            return UNKNOWN_RETRY_AFTER_S
        work = self._all.work(rates)
        return min(max(math.ceil(work * (1 + self._rng.uniform(0.0, 0.25))), 1), MAX_RETRY_AFTER_S)

    def add(self, entry: Waiting) -> None:
        """Let it in, or back to its old place. The caller asked ``refusal`` before if it is new."""
        self.service.comes(entry)
        self._entries[entry.id] = entry
        self._lanes.add(entry)
        self._all.count(entry)
        self._classes.setdefault(entry.class_, Tally()).count(entry)
        self._tenants.setdefault(entry.tenant, Tally()).count(entry)

    def remove(self, id: int) -> Waiting | None:
        """Take it out, None if it does not wait here."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self._lanes.remove(entry)
        self.service.goes(entry)
        self._all.count(entry, -1)
        self._classes[entry.class_].count(entry, -1)
        self._tenants[entry.tenant].count(entry, -1)
        if not self._tenants[entry.tenant].requests:
            del self._tenants[entry.tenant]
        return entry

    def admitted(self, entry: Waiting, uncached: int) -> None:
        """It was taken out to go to a worker, where so many of its prompt tokens are charged (E29)."""
        self.service.admitted(entry, uncached)

    def charge(self, tenant: str, uncached: int = 0, output: int = 0) -> None:
        """A tenant has had so many tokens; ``uncached`` below 0 is a refund."""
        self.service.charge(tenant, uncached, output)
        if uncached < 0 and self.order.by_service:
            self._lanes.refunded(tenant)

    def in_order(self, now: int, closed: Container[str] = ()) -> Generator[Waiting, None, None]:
        """Who is next; tenants in ``closed`` are passed over. Lazy: what was handed out may be removed before
        the next is asked for. Close it if you do not come to its end."""
        return self._lanes.in_order(now, closed)

    def key(self, entry: Waiting, now: int) -> Key:
        """The smallest is served first."""
        return self._lanes.key(entry, now)

    def oldest(self) -> Waiting | None:
        return self._entries[min(self._entries)] if self._entries else None

    def ahead(self, entry: Waiting, now: int, enough: Callable[[Tally], bool] = lambda _: False) -> Tally:
        """What would be served before ``entry`` if it came now and nobody came after it. Sums no further than
        is ``enough``."""
        lanes, rank, place = self._lanes, entry.rank, self._lanes.place(entry)
        if not self.order.by_service:
            return lanes.in_front(rank, place, now)
        mine = Tally()
        for lane in lanes.of(entry.tenant):
            mine += lanes.up_to(lane, rank, now) - lanes.up_to(lane, rank - 1, now)
        turn = Turn(self.service, entry.tenant, rank, mine)
        sums = lanes.in_front(rank - 1, place, now) + mine
        with closing(lanes.heads(now)) as heads:
            for lane in heads:
                if enough(sums) or lanes.key(lane.head, now)[:2] >= (rank, turn.at):
                    break
                if lane.tenant != entry.tenant:
                    level = lanes.up_to(lane, rank, now) - lanes.up_to(lane, rank - 1, now)
                    sums += turn.before(lane.tenant, level)
        return sums

    def audit(self) -> list[str]:
        """What of the sums kept is not what the entries add up to."""
        kept = {("all", ""): self._all}
        kept |= {("class", name): tally for name, tally in self._classes.items()}
        kept |= {("tenant", name): tally for name, tally in self._tenants.items()}
        true: dict[tuple[str, str], Tally] = {}
        for entry in self:
            for of in (("all", ""), ("class", entry.class_), ("tenant", entry.tenant)):
                true.setdefault(of, Tally()).count(entry)
        return [
            f"what waits ({' '.join(of)}) is counted as {mine}, not {true.get(of, Tally())}"
            for of, mine in kept.items()
            if mine.whole != true.get(of, Tally()).whole
        ]

    def _bounds(self, class_: str, tenant: str) -> tuple[_Bound, ...]:
        queue = self._config.queue
        limits = self._config.classes.get(class_, ClassConfig())
        caps = tenant_config(self._config.tenants, tenant)
        return (
            _Bound("queue_full", "", self._all, queue.max_requests, queue.max_tokens),
            _Bound(
                "class_queue_full",
                f" of class {class_!r}",
                self.of_class(class_),
                limits.max_queued,
                limits.max_queued_tokens,
            ),
            _Bound(
                "tenant_queue_full",
                f" of tenant {tenant!r}",
                self.of_tenant(tenant),
                caps.max_queued,
                caps.max_queued_tokens,
            ),
        )
