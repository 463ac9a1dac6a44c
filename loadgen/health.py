"""What the load process knows about its own trustworthiness (MEASUREMENT 8); results.validity judges.

In virtual time nothing of this exists: there the signals that a real machine gives are None.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from loadgen.clock import Clock
from loadgen.driver import Driver

SAMPLE_NS = 10_000_000
"""Interval of the loop lag sampler."""
_STAT_LINE = 1_024


@dataclass(frozen=True, slots=True)
class ClientSignals:
    """Signals of one load process over the window; None = not measured.

    ``littles``: the in-flight counter's integral and the sum over records, in request-seconds (C35).
    """

    loop_lag_p99_ns: int | None = None
    loop_lag_max_ns: int | None = None
    gc_pause_max_ns: int | None = None
    cpu_ratio: float | None = None
    """CPU time of this process over wall time: 1 is one core, fully busy."""
    steal_ratio: float | None = None
    lost: int = 0
    bodies_late: int = 0
    """Requests of the plan that had to wait for their body, which its clerk had not made in time."""
    littles: Mapping[str, float] | None = None
    stamp: str = "user"
    clerk_cpu_s: float | None = None
    """CPU time of the process that makes its records and bodies, apart: it does not judge the client."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def driver_signals(
    driver: Driver, desk: Mapping[str, Any], machine: ClientSignals = ClientSignals()
) -> ClientSignals:
    """What the driver counted and what its desk said (``littles_sum`` in ns, ``lost``, ``clerk_cpu_s`` of a
    desk in a process of its own), added to the signals of their machine."""
    littles = {"integral": driver.in_flight.integral / 1e9, "sum": desk["littles_sum"] / 1e9}
    late, clerk = driver.bodies_late, desk.get("clerk_cpu_s")
    return replace(machine, lost=desk["lost"], bodies_late=late, littles=littles, clerk_cpu_s=clerk)


WORST = ("loop_lag_p99_ns", "loop_lag_max_ns", "gc_pause_max_ns", "cpu_ratio", "steal_ratio")
"""Signals of which the worst process counts."""


def merged(signals: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The signals of several load processes as one: the worst of each, sums of what is counted.

    ``processes`` keeps what each said, ``worst`` the number of the process that a value is of. A process
    that died before it could say anything is ``{"process": n, "reason": why}``; where any did, sums are
    not known. A row without ``process`` gets its place. Merging what was merged changes nothing.
    """
    rows = [dict(one) for row in signals for one in (row.get("processes") or [row])]
    for place, row in enumerate(rows):
        row["process"] = place if row.get("process") is None else row["process"]
    told = [row for row in rows if "reason" not in row]
    whole = bool(rows) and len(told) == len(rows)
    worst = {key: max(known, key=itemgetter(key)) for key in WORST if (known := _said(told, key))}
    littles = [row["littles"] for row in told if row.get("littles")]
    return {
        **{key: worst[key][key] if key in worst else None for key in WORST},
        **{key: sum(row.get(key, 0) for row in told) if whole else None for key in ("lost", "bodies_late")},
        "littles": {key: sum(row[key] for row in littles) for key in ("integral", "sum")}
        if littles and whole
        else None,
        "stamp": "kernel" if told and all(row.get("stamp") == "kernel" for row in told) else "user",
        "reads": "native" if told and all(row.get("reads") == "native" for row in told) else "python",
        "awake": bool(told) and all(row.get("awake") for row in told),
        "worst": {key: row["process"] for key, row in worst.items()} if len(rows) > 1 else {},
        "processes": rows,
    }


def _said(rows: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [row for row in rows if row.get(key) is not None]


def freeze_heap() -> None:
    """Collect once and exempt all that is alive from later collections (C37). Takes long: before t0."""
    gc.collect()
    gc.freeze()


class GcMeter:
    """Longest pause of the garbage collector between `start` and `stop`. Called by the interpreter."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: int | None = None
        self.longest_ns = 0

    def start(self) -> None:
        gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """Idempotent."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = self._clock()
        elif self._began is not None:
            self.longest_ns = max(self.longest_ns, self._clock() - self._began)


class LoopLag:
    """How late the event loop runs a timer, sampled every 10 ms against absolute times.

    A loop that is held up misses several samples at once. Each of them counts as late as it was, or the
    worst moments would be the rarest in the p99.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags = array("q")
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0

    def start(self) -> None:
        self._due = self._clock() + SAMPLE_NS
        self._arm()

    def stop(self) -> None:
        """Idempotent. What is overdue now counts too."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._sample()

    def p99_ns(self) -> int | None:
        return int(np.quantile(self._lags, 0.99)) if self._lags else None

    def max_ns(self) -> int | None:
        return max(self._lags, default=None)

    def _arm(self) -> None:
        delay = max(0, self._due - self._clock()) / 1e9
        self._handle = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._sample()
        self._arm()

    def _sample(self) -> None:
        now = self._clock()
        if now >= self._due:  # loops may fire a little early, which is no lag
            self._lags.extend(range(now - self._due, -1, -SAMPLE_NS))
            self._due += SAMPLE_NS * ((now - self._due) // SAMPLE_NS + 1)


class HealthMeter:
    """Measures this process between `begin` and `end`; use around the window."""

    def __init__(self, clock: Clock, steal: Callable[[], tuple[int, int] | None] | None = None) -> None:
        self._clock = clock
        self._lag = LoopLag(clock)
        self._gc = GcMeter(clock)
        self._stat = Stat()
        self._read_steal = steal or self._stat.read
        self._from: tuple[int, int, tuple[int, int] | None] | None = None
        self._signals = ClientSignals()

    def begin(self) -> None:
        self._gc.start()
        self._lag.start()
        self._from = self._clock(), time.process_time_ns(), self._read_steal()

    def end(self) -> None:
        """Idempotent; without `begin` there is nothing to measure."""
        if self._from is None:
            self._stat.close()
            return
        (t, cpu, steal), self._from = self._from, None
        self._lag.stop()
        self._gc.stop()
        wall = self._clock() - t
        self._signals = ClientSignals(
            loop_lag_p99_ns=self._lag.p99_ns(),
            loop_lag_max_ns=self._lag.max_ns(),
            gc_pause_max_ns=self._gc.longest_ns,
            cpu_ratio=(time.process_time_ns() - cpu) / wall if wall > 0 else None,
            steal_ratio=_share(steal, self._read_steal()),
        )
        self._stat.close()

    def signals(self) -> ClientSignals:
        self.end()
        return self._signals


class Stat:
    """The kernel's count of CPU ticks. Opened once: in the window all descriptors may be taken."""

    def __init__(self, path: str = "/proc/stat") -> None:
        self._file = open(path, "rb", buffering=0) if os.path.exists(path) else None  # noqa: SIM115

    def read(self) -> tuple[int, int] | None:
        """(stolen, all) ticks of this machine since boot; None where the kernel does not say."""
        if self._file is None:
            return None
        line = os.pread(self._file.fileno(), _STAT_LINE, 0).partition(b"\n")[0]
        ticks = [int(field) for field in line.split()[1:9]]
        return (ticks[7], sum(ticks)) if len(ticks) == 8 else None

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()


def read_steal(path: str = "/proc/stat") -> tuple[int, int] | None:
    """`Stat.read`, once."""
    with closing(Stat(path)) as stat:
        return stat.read()


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
