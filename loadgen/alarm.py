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
from typing import Protocol

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


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_CLOCK_MONOTONIC, _ABSTIME = 1, 1


class TimerfdAlarm:
    """The kernel's timer on CLOCK_MONOTONIC as a file that the running event loop watches (Linux)."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        spec = _Itimerspec()
        self._value, self._spec = spec.value, ctypes.byref(spec)
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._expired)

    def set(self, due: int) -> None:
        # A value of zero would disarm the timer.
        self._value.sec, self._value.nsec = divmod(max(due, 1), 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _ABSTIME, self._spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set to another time since it became readable
        self._ring()


def live_alarm(clock: Clock, ring: Callable[[], None]) -> Alarm:
    """The most exact alarm of this machine, for the monotonic clock."""
    return TimerfdAlarm(ring) if sys.platform == "linux" else LoopAlarm(clock, ring)
