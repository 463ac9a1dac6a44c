"""Reading a target's /metrics while a run goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from loadgen.clock import Clock


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series: a row of scrapes.parquet. ``t`` in ns since t0, ``labels`` as JSON."""

    t: int
    target: str
    name: str
    labels: str
    value: float


def samples(text: str, t: int, target: str, prefix: str = "", buckets: bool = True) -> list[Sample]:
    """The samples of a Prometheus text exposition whose names begin with ``prefix``.

    Without ``buckets`` the lines of histogram buckets are left out, which are most of a page. Raises
    ValueError if the text is no exposition.
    """
    if not buckets:
        text = "".join(line for line in text.splitlines(keepends=True) if "_bucket{" not in line)
    return [
        Sample(t, target, sample.name, json.dumps(sample.labels, sort_keys=True), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix) and not sample.name.endswith("_created")
    ]


@dataclass(slots=True)
class Scraper:
    """Scrapes at a fixed interval until it is cancelled; what it got stands in ``rows``.

    Histogram buckets are read by ``once``, before and after a run, and not in between. A failed scrape is
    counted in ``failures`` with its reason and leaves a gap, never a zero.
    """

    fetch: Callable[[], Awaitable[str]]
    clock: Clock
    t0: int
    target: str = "target"
    interval: float = 1.0
    prefix: str = ""
    rows: list[Sample] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    async def once(self, buckets: bool = True) -> None:
        at = self.clock() - self.t0
        try:
            self.rows += samples(await self.fetch(), at, self.target, self.prefix, buckets)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
            self.failures[reason] = self.failures.get(reason, 0) + 1

    async def forever(self) -> None:
        while True:
            await self.once(buckets=False)
            await asyncio.sleep(self.interval)
