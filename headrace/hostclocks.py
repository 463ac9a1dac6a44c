"""The monotonic clocks of several hosts, joined through their wall clocks (MEASUREMENT C1)."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from loadgen.stamps import ClockSample

_BOOT, _NAMESPACE = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/time"


def clock_id() -> str:
    """Processes that give the same one read the same CLOCK_MONOTONIC: same boot, same time namespace."""
    try:
        boot = Path(_BOOT).read_text().strip()
    except OSError:
        return secrets.token_hex(8)  # nothing is known of its clock, so it is like no other
    return f"{boot} {os.readlink(_NAMESPACE)}" if os.path.exists(_NAMESPACE) else boot


@dataclass(frozen=True, slots=True)
class Reading:
    """Another host's monotonic clock minus ours, in ns: by the wall clocks of both, and the limits that one
    question and its answer set, whatever the wall clocks say.

    ```
    ours     before ---- asked ---- answered ---- after
    theirs                  \\ there /
    ```
    """

    by_wall: int
    low: int
    high: int

    @staticmethod
    def of(before: int, here: ClockSample, there: ClockSample, after: int) -> Reading:
        low, high = there.mono + there.half - after, there.mono - there.half - before
        return Reading(here.offset - there.offset, low, high)

    @property
    def offset(self) -> int:
        """By the wall clocks, as far as that can be."""
        return min(max(self.by_wall, self.low), self.high)

    @property
    def width(self) -> int:
        return self.high - self.low


OURS = Reading(0, 0, 0)
"""Of a host whose clock is our own."""


def host_clock(start: Reading, end: Reading | None) -> dict[str, int | None]:
    """What the manifest says of a host, in ns: the offset that its t0 was made with, how much that had moved
    at the end, and how wrong its times may be against ours. None = it could not be asked at the end."""
    if end is None:
        return {"offset_ns": start.offset, "drift_ns": None, "bound_ns": None}
    used = start.offset
    bound = max(used - min(start.low, end.low), max(start.high, end.high) - used)
    return {"offset_ns": used, "drift_ns": end.offset - used, "bound_ns": bound}
