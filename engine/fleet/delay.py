"""A wire in virtual time: what is put in at one end comes out at the other a little later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Wire(Generic[T]):
    """Hands items on in order, each ``latency`` seconds after it was put."""

    def __init__(self, deliver: Callable[[T], None], latency: float, clock: Callable[[], int]) -> None:
        self._deliver = deliver
        self._latency = latency
        self._clock = clock
        self._items: deque[tuple[int, T]] = deque()

    def put(self, item: T) -> None:
        self._items.append((self._clock() + int(self._latency * 1e9), item))
        if len(self._items) == 1:
            self._arm()

    def cut(self) -> None:
        """What is under way is lost."""
        self._items.clear()

    def _arm(self) -> None:
        loop, due = asyncio.get_running_loop(), self._items[0][0]
        if due <= self._clock():
            loop.call_soon(self._run)
        else:
            loop.call_later((due - self._clock()) / 1e9, self._run)

    def _run(self) -> None:
        now = self._clock()
        while self._items and self._items[0][0] <= now:
            self._deliver(self._items.popleft()[1])
        if self._items:
            self._arm()
