"""Waiting requests in lanes: who is next is found in O(log n), whatever the order and however many wait.

A lane holds the requests of one tenant and one rank. Among them the order never changes, so only the heads
of lanes are compared::

    rank 0, tenant a    [3][7][8]
    rank 0, tenant b    [1][4][5][6]
    rank 2, tenant a    [2]
                         ^ the smallest of these is next

A head's key falls at a known moment (it rises by one rank) or because somebody says so (a refund, a return);
it grows as its tenant is served, which is found out when the lane's turn comes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Generator
from dataclasses import dataclass, field

from engine.sched.least import Least
from engine.sched.orders import Key, Order, Tally, Waiting, effective_rank

CHUNK = 64
"""Entries of a lane are kept in pieces of at most twice so many, each with its sums."""

Place = tuple[int, int]
"""(place, id) of an entry in its lane."""


@dataclass(slots=True)
class _Piece:
    places: list[Place] = field(default_factory=list)
    entries: dict[Place, Waiting] = field(default_factory=dict)
    sums: Tally = field(default_factory=Tally)

    def add(self, place: Place, entry: Waiting) -> None:
        insort(self.places, place)
        self.entries[place] = entry
        self.sums.count(entry)

    def remove(self, place: Place) -> None:
        del self.places[bisect_left(self.places, place)]
        self.sums.count(self.entries.pop(place), -1)


class Lane:
    """Entries of one tenant and rank by (place, id)."""

    def __init__(self, rank: int, tenant: str) -> None:
        self.rank = rank
        self.tenant = tenant
        self.sums = Tally()
        self._pieces: list[_Piece] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def head(self) -> Waiting:
        first = self._pieces[0]
        return first.entries[first.places[0]]

    def add(self, place: Place, entry: Waiting) -> None:
        if not self._pieces:
            self._pieces.append(_Piece())
        at = self._find(place) if self.sums.requests else 0
        piece = self._pieces[at]
        piece.add(place, entry)
        self.sums.count(entry)
        if len(piece.places) > 2 * CHUNK:
            upper = _Piece()
            for moved in piece.places[CHUNK:]:
                upper.add(moved, piece.entries[moved])
                piece.remove(moved)
            self._pieces.insert(at + 1, upper)

    def remove(self, place: Place) -> None:
        at = self._find(place)
        piece = self._pieces[at]
        self.sums.count(piece.entries[place], -1)
        piece.remove(place)
        if not piece.places:
            del self._pieces[at]

    def after(self, place: Place) -> Waiting | None:
        """The next one, whether ``place`` is still taken or not."""
        if not self._pieces:
            return None
        at = self._find(place)
        piece = self._pieces[at]
        index = bisect_right(piece.places, place)
        if index < len(piece.places):
            return piece.entries[piece.places[index]]
        if at + 1 < len(self._pieces):
            following = self._pieces[at + 1]
            return following.entries[following.places[0]]
        return None

    def before(self, place: Place) -> Tally:
        """Sums over those in front of ``place``."""
        sums = Tally()
        if self._pieces:
            at = self._find(place)
            for piece in self._pieces[:at]:
                sums += piece.sums
            last = self._pieces[at]
            for other in last.places[: bisect_left(last.places, place)]:
                sums.count(last.entries[other])
        return sums

    def _find(self, place: Place) -> int:
        """Index of the piece where it is or would be."""
        return max(0, bisect_right(self._pieces, place, key=lambda piece: piece.places[0]) - 1)


class Lanes:
    """All lanes under one order. ``aging`` in ns; ``served`` gives what a tenant has had (E29)."""

    def __init__(self, order: Order, aging: int, served: Callable[[str], float]) -> None:
        self._order = order
        self._aging = aging
        self._served = served
        self._now = 0
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._ranks: dict[int, Lane] = {}
        """All of one rank in a lane of their own, for sums."""
        self._heads: Least[Lane] = Least(lambda lane: self.key(lane.head, self._now))
        self._rises: list[tuple[int, int, Lane]] = []
        self._watched: dict[Lane, int] = {}
        self._watches = 0
        self._open: dict[Lane, None] = {}
        """Lanes that a walk has begun: not among the heads until it is over."""

    def key(self, entry: Waiting, now: int) -> Key:
        order = self._order
        rank = effective_rank(entry, now, self._aging) if order.by_rank else 0
        served = self._served(entry.tenant) if order.by_service else 0.0
        return rank, served, order.place(entry), entry.id

    def place(self, entry: Waiting) -> Place:
        return self._order.place(entry), entry.id

    def add(self, entry: Waiting) -> None:
        lane = self._lanes.get((entry.rank, entry.tenant))
        if lane is None:
            lane = self._lanes[entry.rank, entry.tenant] = Lane(entry.rank, entry.tenant)
        place = self.place(entry)
        lane.add(place, entry)
        self._ranks.setdefault(entry.rank, Lane(entry.rank, "")).add(place, entry)
        if lane.head is entry:
            self._list(lane)

    def remove(self, entry: Waiting) -> None:
        lane = self._lanes[entry.rank, entry.tenant]
        was_head = lane.head is entry
        lane.remove(self.place(entry))
        self._ranks[entry.rank].remove(self.place(entry))
        if not lane:
            del self._lanes[entry.rank, entry.tenant]
            self._heads.drop(lane)
            self._watched.pop(lane, None)
        elif was_head:
            self._list(lane)

    def refunded(self, tenant: str) -> None:
        """It has had less than was counted: its lanes may come earlier."""
        for lane in self.of(tenant):
            self._list(lane)

    def in_order(self, now: int, closed: Container[str] = ()) -> Generator[Waiting, None, None]:
        """Who is next, then who comes after, by the keys of the moment at which each is asked for. An entry
        that was handed out may be removed meanwhile; tenants may be added to ``closed``, whose lanes are
        passed over from then on. One walk at a time: close it before the next."""
        assert not self._open, "one walk at a time"
        self._advance(now)
        following: list[tuple[Key, Waiting, Lane]] = []
        try:
            while (chosen := self._take(following, now)) is not None:
                entry, lane = chosen
                if lane.tenant in closed:
                    continue
                place = self.place(entry)
                yield entry
                after = lane.after(place)
                if after is not None:
                    heapq.heappush(following, (self.key(after, now), after, lane))
        finally:
            self._close()

    def heads(self, now: int) -> Generator[Lane, None, None]:
        """Lanes by the keys of their heads. A walk too."""
        assert not self._open, "one walk at a time"
        self._advance(now)
        try:
            while (lane := self._heads.peek()) is not None:
                self._heads.drop(lane)
                self._open[lane] = None
                yield lane
        finally:
            self._close()

    def of(self, tenant: str) -> list[Lane]:
        """Those of one tenant."""
        found = (self._lanes.get((rank, tenant)) for rank in self._ranks)
        return [lane for lane in found if lane is not None]

    def in_front(self, rank: int, place: Place, now: int) -> Tally:
        """Sums over all in front of ``place``; with ``by_rank`` over all of at most this effective rank. What
        tenants have had is not looked at."""
        sums = Tally()
        for lane in self._ranks.values():
            sums += self.up_to(lane, rank, now) if self._order.by_rank else lane.before(place)
        return sums

    def up_to(self, lane: Lane, rank: int, now: int) -> Tally:
        """Sums over those of a lane that have at most this effective rank; ``by_rank`` only."""
        lift = lane.rank - rank
        if rank < 0:
            return Tally()
        return lane.sums if lift <= 0 else lane.before((now - lift * self._aging + 1, 0))

    def _take(self, following: list[tuple[Key, Waiting, Lane]], now: int) -> tuple[Waiting, Lane] | None:
        """The least of the heads and of those behind an opened lane's last."""
        while following and (key := self.key(following[0][1], now)) > following[0][0]:
            heapq.heapreplace(following, (key, *following[0][1:]))
        lane = self._heads.peek()
        if lane is None or (following and following[0][0] < self.key(lane.head, now)):
            return heapq.heappop(following)[1:] if following else None
        self._heads.drop(lane)
        self._open[lane] = None
        return lane.head, lane

    def _close(self) -> None:
        """The walk is over."""
        opened, self._open = self._open, {}
        for lane in opened:
            if lane:
                self._list(lane)

    def _list(self, lane: Lane) -> None:
        """Its head is new or may come earlier."""
        if lane not in self._open:
            self._heads.put(lane)
            self._watch(lane)

    def _watch(self, lane: Lane) -> None:
        """Look at it again when its head's rank rises by waiting."""
        head = lane.head
        if not self._order.by_rank or not effective_rank(head, self._now, self._aging):
            self._watched.pop(lane, None)
            return
        waited = max(0, self._now - head.arrived) // self._aging
        self._watches += 1
        self._watched[lane] = self._watches
        due = head.arrived + (waited + 1) * self._aging
        heapq.heappush(self._rises, (due, self._watches, lane))
        if len(self._rises) > 2 * len(self._watched) + CHUNK:
            self._rises = [row for row in self._rises if self._watched.get(row[2]) == row[1]]
            heapq.heapify(self._rises)

    def _advance(self, now: int) -> None:
        self._now = max(now, self._now)
        while self._rises and self._rises[0][0] <= self._now:
            _, number, lane = heapq.heappop(self._rises)
            if self._watched.get(lane) == number:
                self._list(lane)
