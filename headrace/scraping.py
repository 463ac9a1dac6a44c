"""All that is read once a second while a run goes on: the target's /metrics, and the power of its machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace import power
from headrace.site import Site
from loadgen.scrape import Sample, Scraper

ELSEWHERE = "the target runs on another machine, whose power cannot be read from here"


@dataclass(slots=True)
class Scrapers:
    """As one scraper. ``power`` tells for the manifest what is read of the machine, and why what is not."""

    each: tuple[Scraper, ...]
    power: dict[str, Any]

    @property
    def interval(self) -> float:
        return max(one.interval for one in self.each)

    @property
    def failures(self) -> dict[str, int]:
        return {reason: n for one in self.each for reason, n in one.failures.items()}

    async def once(self) -> None:
        for one in self.each:
            await one.once()

    async def forever(self) -> None:
        await asyncio.gather(*(one.forever() for one in self.each))

    def since(self, t0: int) -> list[Sample]:
        return [row for one in self.each for row in one.since(t0)]


@asynccontextmanager
async def scrapers(site: Site, *, virtual: bool) -> AsyncIterator[Scrapers]:
    """Of a target, and of the machine that it runs on where that is this one."""
    target = Scraper(site.scrape, site.clock)
    if virtual or not site.facts.get("co_located"):
        yield Scrapers((target,), {"devices": [], "reason": None if virtual else ELSEWHERE})
        return
    meters = power.machine()
    about = {
        "devices": [meter.device for meter in meters.meters],
        "refused": meters.refused,
        "reason": meters.reason,
    }
    try:
        machine = (Scraper(meters.page, site.clock, target="machine"),) if meters.meters else ()
        yield Scrapers((target, *machine), about)
    finally:
        meters.close()
