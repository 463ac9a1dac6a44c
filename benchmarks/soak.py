"""A long, mixed, tight life of a whole engine in virtual time, and what it leaves behind (engine case C24).

    python -m benchmarks.soak [--requests 20000] [--seed 0] [--trace]

Requests of random lengths with aborts, deadlines, forks, tenants, classes, lives and adapters come in waves
over a pool that is too small, with tiers below it. Between two waves the engine is idle: nothing may be
referenced then, and resident memory is read. What the engine bounds by a number of entries (truth rows, lost
digests) is bounded at few here, so that it is full long before the last half: what still grows is a leak.

Prints the series, then one JSON line; exits 1 if something was left or memory grew by 1 % or more over the
last half. ``--trace`` also says which lines of code held more at the end than at half-time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.mixes import FACTORS, Mix, asks, config
from engine.config import EngineConfig
from engine.fleet import index as fleet_index
from engine.fleet import truth as fleet_truth
from engine.fleet.backend import Ask, Ended, Rejected, StreamEvent
from engine.fleet.fleet import Fleet
from engine.fleet.inproc import InprocPool
from engine.kv import prefix_cache
from engine.request import Finish
from engine.runner.simulated import SimulatedRunner
from loadgen.clock import Clock, run_virtual


@dataclass
class Report:
    """What a soak has seen. One entry per idle moment in the series."""

    submitted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    used: list[int] = field(default_factory=list)
    """Blocks referenced or fenced at each idle moment."""
    rss: list[int] = field(default_factory=list)
    """Resident bytes at each idle moment."""
    problems: list[str] = field(default_factory=list)
    preemptions: int = 0
    virtual_s: float = 0.0
    half: tracemalloc.Snapshot | None = None
    """What was allocated at half-time, if that is traced."""

    @property
    def growth(self) -> float:
        """Share by which resident memory grew over the last half."""
        half = self.rss[len(self.rss) // 2 :]
        return half[-1] / half[0] - 1

    @property
    def used_slope(self) -> float:
        """Blocks per idle moment over the last half, by least squares."""
        return slope(self.used[len(self.used) // 2 :])


def slope(series: Sequence[float]) -> float:
    mean_x, mean_y = (len(series) - 1) / 2, sum(series) / len(series)
    over = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(series))
    under = sum((x - mean_x) ** 2 for x in range(len(series)))
    return over / under if under else 0.0


Judge = Callable[[Ask, int, list[int]], bool]
"""(request, choice, output tokens) -> whether they are what it alone would have got."""


def _any_text(ask: Ask, choice: int, text: list[int]) -> bool:
    return True


class Soak:
    """Drives one fleet in virtual time."""

    def __init__(self, of: EngineConfig, mix: Mix, clock: Clock, seed: int, judge: Judge = _any_text) -> None:
        self.clock = clock
        self.judge = judge
        self.rng = random.Random(f"{seed}/{mix}")
        self.asks = asks(mix, self.rng)
        self.report = Report()
        self.fleet = Fleet(of, InprocPool(of, clock, self._runner), clock)
        self.config = of
        self._ends: dict[int, int] = {}
        self._truth = 0

    def _runner(self, worker: int) -> SimulatedRunner:
        return SimulatedRunner(self.config.cost, self.config.seed, worker, tiers=self.config.cache.tiers)

    async def run(self, requests: int, waves: int) -> Report:
        await self.fleet.start()
        while self.fleet.not_ready() is not None:
            await asyncio.sleep(0.1)
        for wave in range(waves):
            await self._wave(requests // waves)
            await self._idle()
            if tracemalloc.is_tracing() and wave == waves // 2 - 1:
                self.report.half = tracemalloc.take_snapshot()
        self.report.virtual_s = self.clock() / 1e9
        await self.fleet.stop()
        return self.report

    async def _wave(self, count: int) -> None:
        """A burst that the pool cannot serve at once, with clients that lose patience."""
        for _ in range(count):
            self._submit(next(self.asks))
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.expovariate(1 / 0.03))
        limit = self.clock() + 900 * 10**9
        while self.fleet.gateway.lives.runs:
            if self.clock() > limit:
                self.report.problems.append(f"hang: {len(self.fleet.gateway.lives.runs)} requests never end")
                return
            await asyncio.sleep(0.05)

    def _submit(self, ask: Ask) -> None:
        self.report.submitted += 1
        heard: list[int] = []
        texts: dict[int, list[int]] = {}

        def listen(event: StreamEvent) -> None:
            if not isinstance(event, Ended):
                texts.setdefault(event.choice, []).extend(event.ids)
                return
            self._ends[heard[0]] = self._ends.get(heard[0], 0) + 1
            self.report.ends[event.finish.value] += 1
            wrong = [choice for choice, text in texts.items() if not self.judge(ask, choice, text)]
            self.report.problems += [
                f"choice {choice} of {ask.client_id} says something else" for choice in wrong
            ]

        try:
            id, _ = self.fleet.submit(ask, listen)
        except Rejected as rejected:
            self.report.rejected[rejected.code] += 1
            return
        heard.append(id)
        self._ends[id] = 0
        if self.rng.random() < 0.08:
            delay = self.rng.expovariate(1 / 0.3)
            asyncio.get_running_loop().call_later(delay, self.fleet.cancel, id, Finish.CANCELLED)

    async def _idle(self) -> None:
        """Nothing runs: every count must say so, and every request have had its one end."""
        await asyncio.sleep(1.0)
        report, audit = self.report, await self.fleet.audit()
        report.problems += [str(row) for row in audit["invariants"] if row["ok"] is False]
        (worker,) = audit["workers"]
        report.used.append(worker["referenced"] + worker["fenced"])
        for count in ("referenced", "fenced", "waiting", "running", "reserved"):
            if worker[count]:
                report.problems.append(f"{worker[count]} {count} while idle")
        report.problems += [f"request {id} ended {n} times" for id, n in self._ends.items() if n != 1]
        self._ends.clear()
        await self._truths()
        gc.collect()
        report.rss.append(resident())

    async def _truths(self) -> None:
        """Hits at the first admission and misses over all reasons are the prompt."""
        rows = await self.fleet.truth(self._truth)
        for row in rows:
            self._truth = row["seq"]
            self.report.preemptions += row["preemptions"] or 0
            if row["first_scheduled"] is None:
                continue
            hits = row["hit_device"] + row["hit_host"] + row["hit_disk"]
            if hits + sum(miss["tokens"] for miss in row["misses"]) != row["prompt"]:
                self.report.problems.append(f"hits and misses of {row['id']} are not its prompt")


def resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def soak(
    mix: Mix, requests: int, waves: int = 20, seed: int = 0, judge: Judge = _any_text, **changes: Any
) -> Report:
    """Run one; ``judge`` says whether a text is what it should be, ``changes`` go into the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        of = replace(config(mix, Path(folder)), **changes)
        return run_virtual(lambda clock: Soak(of, mix, clock, seed, judge).run(requests, waves))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--trace", action="store_true", help="also say where memory grew; several times slower"
    )
    for name, values in FACTORS.items():
        parser.add_argument(f"--{name}", type=type(values[0]), choices=values, default=getattr(Mix, name))
    asked = parser.parse_args()
    mix = Mix(**{name: getattr(asked, name) for name in FACTORS})
    fleet_truth.MAX_ROWS, fleet_index.MAX_LOST, prefix_cache.LEAST_HISTORY = 1000, 2000, 2000
    began = time.perf_counter()
    if asked.trace:
        tracemalloc.start(8)
    report = soak(mix, asked.requests, waves=40, seed=asked.seed)
    print(f"{'idle moment':>12} {'used blocks':>12} {'resident':>12}")
    for index, (used, rss) in enumerate(zip(report.used, report.rss, strict=True)):
        print(f"{index:>12} {used:>12} {rss / 1e6:>10.1f}MB")
    for problem in report.problems[:20]:
        print(problem)
    if report.half is not None:
        for line in tracemalloc.take_snapshot().compare_to(report.half, "lineno")[:20]:
            print(line)
    print(
        json.dumps(
            {
                "mix": str(mix),
                "seed": asked.seed,
                "submitted": report.submitted,
                "rejected": dict(report.rejected),
                "ends": dict(report.ends),
                "preemptions": report.preemptions,
                "used_slope": report.used_slope,
                "rss_growth_last_half": round(report.growth, 5),
                "problems": len(report.problems),
                "virtual_s": round(report.virtual_s, 1),
                "seconds": round(time.perf_counter() - began, 1),
                "load_average": round(os.getloadavg()[0], 2),
            }
        )
    )
    sys.exit(bool(report.problems or report.growth >= 0.01 or any(report.used[len(report.used) // 2 :])))


if __name__ == "__main__":
    main()
