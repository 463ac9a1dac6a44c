"""The least of many items whose keys change, in O(log n)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SLACK = 64
"""Dead rows beyond one per item that are kept before all are swept."""

Item = TypeVar("Item", bound=Hashable)


class Least(Generic[Item]):
    """The least of many items whose keys change. ``put`` says that an item is new or that its key may have
    fallen; that one has grown is found out when it comes to the top."""

    def __init__(self, key: Callable[[Item], tuple[float, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[float, ...], int, Item]] = []
        self._valid: dict[Item, int] = {}
        self._puts = 0

    def __contains__(self, item: Item) -> bool:
        return item in self._valid

    def put(self, item: Item) -> None:
        self._puts += 1
        self._valid[item] = self._puts
        heapq.heappush(self._heap, (self._key(item), self._puts, item))
        if len(self._heap) > 2 * len(self._valid) + SLACK:
            self._heap = [row for row in self._heap if self._valid.get(row[2]) == row[1]]
            heapq.heapify(self._heap)

    def drop(self, item: Item) -> None:
        """Idempotent."""
        self._valid.pop(item, None)

    def peek(self) -> Item | None:
        while self._heap:
            key, number, item = self._heap[0]
            if self._valid.get(item) != number:
                heapq.heappop(self._heap)
            elif (now := self._key(item)) > key:
                heapq.heapreplace(self._heap, (now, number, item))
            else:
                return item
        return None
