"""One injected monotonic clock, live or virtual, and the event loop on which nothing waits.

Durations everywhere are integers of nanoseconds on this clock (MEASUREMENT C1).
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Clock = Callable[[], int]
"""Nanoseconds on a monotonic clock."""

monotonic: Clock = time.monotonic_ns


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits: it moves the virtual clock forward instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("virtual time stands still: every task waits and no timer is set")
        if timeout > 0:
            # A timer for a whole ns rings at that one: the loop heeds what is due within the next.
            self.now_ns += round(timeout * 1e9)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time passes only when every task waits for a timer.

    Deterministic: with no real input or output, the same program takes the same steps. Work takes no
    virtual time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_ns / 1e9

    def clock(self) -> int:
        """The Clock of this loop."""
        return self._jumping.now_ns


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run ``main(clock)`` on a fresh virtual loop to its end."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.clock))


async def sleep_until(due: int, clock: Clock) -> None:
    """Return at ``due`` ns or later, never earlier (timers may fire early; the rest is waited)."""
    while (left := due - clock()) > 0:
        await asyncio.sleep(left / 1e9)
