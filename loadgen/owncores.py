"""What a load process and its clerk do with cores on which nothing else is to run.

Where the target is on the same machine, and not pinned apart, none of this is done: it would disturb what is
measured.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NICENESS = 10
SLICE_NS = 100_000
"""The scheduler's own are of a ms or more, and a load process that wakes up waits for the end of one."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of the system call, for which neither Python nor older C libraries have a name."""
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, nice, priority, runtime, deadline, period"""
PM_QOS = Path("/dev/cpu_dma_latency")
"""Linux's promise to those who measure: while somebody holds it open with a number of us in it, no idle core
of the machine sleeps so deeply that waking up takes longer. Often for root only."""
IDLE_DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
"""Who puts idle cores to sleep; where there is none, nobody keeps the promise."""


def elsewhere(url: str) -> bool:
    """Whether ``url`` names another machine than this one, as far as its address tells."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return not any(_is_ours(family, address) for family, _, _, _, address in found)


def _is_ours(family: int, address: tuple[Any, ...]) -> bool:
    """Only a machine's own addresses can be bound there."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


@contextmanager
def kept_awake(wanted: bool = True) -> Iterator[bool]:
    """Keeps idle cores from sleeping, and says whether it can. Waking up takes some 50 us, in a virtual
    machine whose host lent the core away meanwhile some ms, and a send is late by that."""
    held = _hold() if wanted else None
    try:
        yield held is not None
    finally:
        if held is not None:
            os.close(held)


def can_be_kept_awake() -> bool:
    with kept_awake() as held:
        return held


def _hold() -> int | None:
    with suppress(OSError):
        if IDLE_DRIVER.read_text().strip() == "none":
            return None
        held = os.open(PM_QOS, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(held, struct.pack("@i", 0))
        except OSError:
            os.close(held)
            raise
        return held
    return None


def step_back() -> None:
    """From now on this process has a tenth of a core that others want, whatever priority it was started with,
    and that in short slices; for a clerk, beside its load process."""
    os.nice(NICENESS)
    come_back()
    if sys.platform == "linux":
        _ask_for_slices(SLICE_NS)


def _ask_for_slices(ns: int) -> None:
    """How long it runs before another one that wants to may. Since Linux 6.12; ignored before."""
    call = _SCHED_SETATTR.get(platform.machine())
    if call is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        asked = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.sched_getscheduler(0), 0, nice, 0, ns, 0, 0)
        ctypes.CDLL(None).syscall(call, 0, asked, 0)


class Rank:
    """The place of a process that has stepped back. While it is `last`, it runs when nobody else wants to,
    and a load process that wakes up has the core at once. It may wait for ever then, so somebody else must
    watch over what it is there for."""

    def __init__(self, pid: int, may_be_last: bool) -> None:
        """``may_be_last``: where nothing else is to run; it also takes the right to bring it back."""
        self.last = False
        self._pid = pid
        self._may = may_be_last and sys.platform == "linux" and _could_come_back()

    def be(self, last: bool) -> None:
        if not self._may or last == self.last:
            return
        try:
            if last and sys.platform == "linux":
                os.sched_setscheduler(self._pid, os.SCHED_IDLE, os.sched_param(0))
            else:
                come_back(self._pid)
            self.last = last
        except OSError:  # it has ended, or is not ours to place any more
            self._may = False


def come_back(pid: int = 0) -> None:
    """From being the last one; 0 is this process itself."""
    if sys.platform == "linux":
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))


def _could_come_back() -> bool:
    """Whether SCHED_IDLE can be left again; tried by a thread, which may have to stay there."""
    back: list[bool] = []

    def go() -> None:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            come_back()
            back.append(True)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    return bool(back)
