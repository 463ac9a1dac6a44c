"""What a run leaves behind, asked of the target and of the load, and put into the run directory."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from faults.conductor import Conductor
from faults.fault import Seen
from faults.invariants import check
from headrace.alone import alone_times
from headrace.attributing import attribute_run, ideal_run
from headrace.scraping import Scrapers
from headrace.site import RECORD_STREAMS, Load, LoadEnd, Site
from loadgen.accounts import unaccounted
from loadgen.health import merged
from loadgen.plan import Plan
from results.record import Record
from results.recordfile import read_list
from results.run import Run, RunData
from scenarios import parts
from scenarios.schema import Scenario, UrlTarget

QUIET_LIMIT_S = 15.0
"""How long after the load an engine may need until nothing runs in it and all its workers are back."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One run while it goes on: what is asked, where it is written, who is asked. ``t0`` on the site's
    clock."""

    scenario: Scenario
    plan: Plan
    folder: Run
    site: Site
    load: Load
    t0: int


async def audit(folder: Run, site: Site, when: str) -> None:
    """Append a state audit of our own engine; nothing for a foreign target."""
    if site.own and site.died() is None:
        with suppress(OSError):  # it died just now: site.died() tells, and the run ends with that
            folder.audit({"when": when, **await site.controls.audit()})


async def until_quiet(site: Site) -> None:
    """Wait until nothing waits or runs in our engine and its workers are back, or the limit is reached:
    then the last audit shows what is wrong."""
    end = site.clock() + round(QUIET_LIMIT_S * 1e9)
    while site.own and site.died() is None and site.clock() < end:
        try:
            state = await site.controls.state()
        except OSError:
            return
        if not state["requests"] and all(row["state"] == "in_rotation" for row in state["workers"]):
            return
        await asyncio.sleep(0.25)


async def collect(
    scene: Scene, end: LoadEnd, conductor: Conductor, scraper: Scrapers, interrupted: bool
) -> RunData:
    """Everything that the judge looks at, as files and as one value."""
    folder, site = scene.folder, scene.site
    truth = await _truth(site)
    streams = sorted(folder.path.glob(RECORD_STREAMS))
    records = [record for stream in streams for record in read_list(stream, events=False)]
    if end.lost is not None:
        records += _left_open(scene, records, end.lost)
    folder.records.close()
    seen = Seen(
        scene.plan,
        records,
        truth,
        scene.t0 if site.own else None,
        folder.audits,
        conductor.windows,
        parts.deadlines(scene.scenario),
    )
    for window in conductor.prove(seen):
        folder.fault(window)
    invariants = [judgement.row() for judgement in check(seen)]
    alone = alone_times(scene.scenario, records, folder.judging.virtual)
    del seen, records  # a million of them are more than a GB, and all that follows reads the files
    return folder.finish(
        signals=merged([end.signals]) if end.signals else {},
        scrapes=[asdict(sample) for sample in scraper.since(scene.t0)],
        truth=truth,
        invariants=invariants,
        attribution=attribute_run(folder.path, end.observed, truth, scene.scenario),
        manifest=_facts(scene, end, scraper),
        interrupted=interrupted,
        target_error=site.died(),
        load_error=end.lost,
        alone=alone,
        ideal=ideal_run(end.observed, truth, scene.scenario),
    )


def _facts(scene: Scene, end: LoadEnd, scraper: Scrapers) -> dict[str, Any]:
    """Of target and load, for the manifest."""
    return {
        **scene.site.facts,
        **end.facts,
        "observe_error": end.observe_error,
        "receive_stamps": end.signals.get("stamp"),
        "reads": end.signals.get("reads"),
        "cores_awake": end.signals.get("awake"),
        "scrape_failures": scraper.failures,
        "power": scraper.power,
        "t0_ns": scene.t0,
    }


async def _truth(site: Site) -> list[dict[str, Any]] | None:
    if site.own and site.died() is None:
        with suppress(OSError):
            return await site.controls.truth()
    return None


def _left_open(scene: Scene, records: list[Record], why: str) -> list[Record]:
    """Records for what a load process that died leaves open: `unknown` (MEASUREMENT C23)."""
    target = scene.scenario.target
    model = target.model if isinstance(target, UrlTarget) else target.engine.model
    missing = unaccounted(scene.plan, {record.id for record in records}, model, why)
    for record in missing:
        record.request_id = scene.load.request_id(record.id)  # the target may have served it all the same
        scene.folder.records.append(record)
    return missing
