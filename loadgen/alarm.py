"""Waking the driver at absolute times (MEASUREMENT C16).

Event loops keep time in milliseconds and may fire early or late by one; the kernel's timer does not.
Whoever is woken looks at the clock again before sending anything.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from loadgen import native
from loadgen.clock import Clock


class Alarm(Protocol):
    """Rings once at the time set last."""

    def set(self, due: int) -> None:
        """``due`` in ns on the clock; a time in the past rings soon. Replaces the time set before."""

    def close(self) -> None: ...


class LoopAlarm:
    """An alarm of the running event loop's timers: exact in virtual time."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: int) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0, due - self._clock()) / 1e9, self._ring)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


NEVER = 1 << 62
"""Later than any time on the clock."""
_CLOCK_MONOTONIC, _ABSTIME = 1, 1


class _Itimerspec(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "s", "ns"))


def _set_timer(libc: ctypes.CDLL, timer: int, due: int) -> None:
    """`loadgen._harvest.set_timer`."""
    if libc.timerfd_settime(
        timer, _ABSTIME, ctypes.byref(_Itimerspec(0, 0, *divmod(due, 1_000_000_000))), None
    ):
        raise OSError(ctypes.get_errno(), "timerfd_settime failed")


class TimerfdAlarm:
    """The kernel's timer on CLOCK_MONOTONIC as a file that the running event loop watches (Linux)."""

    def __init__(self, ring: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        native_set = None if native.extension is None else native.extension.set_timer
        self._set = native_set or partial(_set_timer, libc)
        self._ring, self._over = ring, False
        self.due = NEVER
        """When it rings next."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._expired)

    def set(self, due: int) -> None:
        self._set(self._fd, max(due, 1))  # zero would disarm the timer
        self.due, self._over = due, False

    def ring(self) -> None:
        """Now, ahead of the event loop."""
        self.due = NEVER
        self._ring()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd, self.due = -1, NEVER

    def _expired(self) -> None:
        """Or it was, and has been set to another time since: whoever is woken looks at the clock."""
        self._over = True
        try:
            self.ring()
        finally:
            if self._over and self._fd >= 0:  # set again, it is not readable any more
                with suppress(BlockingIOError):
                    os.read(self._fd, 8)


def live_alarm(clock: Clock, ring: Callable[[], None]) -> Alarm:
    """The most exact alarm of this machine, for the monotonic clock."""
    return TimerfdAlarm(ring) if sys.platform == "linux" else LoopAlarm(clock, ring)
