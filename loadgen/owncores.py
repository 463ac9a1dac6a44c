"""What a load process and its clerk do with cores on which nothing else is to run.

Where the target, or anything else that counts, is on the same cores, none of this is done: it would disturb
what is measured.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICENESS = 10
PM_QOS = Path("/dev/cpu_dma_latency")
"""Linux's promise to those who measure: while somebody holds it open with a number of us in it, no idle core
sleeps so deeply that waking up takes longer (Documentation/power/pm_qos_interface). Often for root only."""


@contextmanager
def kept_awake(wanted: bool = True) -> Iterator[bool]:
    """Idle cores do not sleep meanwhile; whether they really do not. Waking up takes some 50 us, in a
    virtual machine whose host lent the core away meanwhile some ms, and a send is late by that."""
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
        held = os.open(PM_QOS, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(held, struct.pack("@i", 0))
        except OSError:
            os.close(held)
            raise
        return held
    return None


def stand_back(own_cores: bool) -> None:
    """This process makes way for the load process beside it, whatever priority that was started with: at
    once on ``own_cores``, where there is time enough left over; else soon, lest others leave it none."""
    if sys.platform == "linux":
        policy = os.SCHED_IDLE if own_cores else os.SCHED_BATCH
        os.sched_setscheduler(0, policy, os.sched_param(0))
    os.nice(NICENESS)
