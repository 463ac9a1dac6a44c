"""One run from start to end: the page to read first."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from faults.conductor import Conductor
from faults.fault import Seen, Stage
from faults.invariants import check
from headrace import prepare
from headrace.attributing import attribute_run
from headrace.console import View
from headrace.errors import Interrupted, UsageFailed
from headrace.live import live_site, preflight, target_override, with_first_model
from headrace.manifest import manifest
from headrace.site import LEAD_NS, RECORDS, Load, LoadEnd, LoadOrder, Site
from headrace.verdict import Outcome, conclude
from headrace.virtual import virtual_site
from headrace.watching import Watcher
from loadgen.accounts import unaccounted
from loadgen.clock import Clock, monotonic, run_virtual, sleep_until
from loadgen.flight import Timeouts
from loadgen.health import merged
from loadgen.plan import Plan
from loadgen.plan_io import write_plan
from loadgen.scrape import Scraper
from results.record import Record
from results.recordfile import read_list
from results.run import Run, RunData, RunError
from scenarios import parts
from scenarios.load import resolved
from scenarios.schema import Scenario, UrlTarget

QUIET_LIMIT_S = 15.0
"""How long after the load an engine may need until nothing runs in it and all its workers are back."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line adds to a scenario."""

    out: Path | None = None
    target: str | None = None
    virtual: bool = False
    seed: int | None = None
    overrides: tuple[str, ...] = ()
    keep_text: bool = False
    strict: bool = False
    allow_inconclusive: bool = False


def run_scenario(path: Path, options: Options, view: View) -> Outcome:
    """Load the file, run it live or in virtual time, judge it. Raises BenchError."""
    if options.virtual and options.target is not None:
        raise UsageFailed("--virtual and --target exclude each other: a URL has no virtual time")
    overrides = options.overrides
    if options.target is not None:
        overrides = (*overrides, target_override(options.target))
    scenario = prepare.load_scenario(path, overrides, virtual=options.virtual, seed=options.seed)
    if options.target is not None:  # only now: a broken scenario is said before anybody is asked
        assert isinstance(scenario.target, UrlTarget), "overridden"
        scenario = replace(scenario, target=with_first_model(scenario.target))
    try:
        if options.virtual:
            data = run_virtual(lambda clock: run(scenario, options, clock, view))
        else:
            data = asyncio.run(run(scenario, options, monotonic, view))
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        raise Interrupted(
            "interrupted before there was a verdict",
            "What was recorded is in the run directory; `bench report RUN` judges it.",
        ) from stopped
    finally:
        view.close()
    return conclude(data)


async def run(scenario: Scenario, options: Options, clock: Clock, view: View) -> RunData:
    """Plan, launch, fire, disturb, watch; then collect what the judge needs."""
    if not options.virtual:
        await preflight(scenario)
    plan = prepare.make_plan(scenario)
    with _folder(scenario, plan, options) as folder:
        async with _site(scenario, options, folder.path, clock, view) as site:
            watcher = Watcher(view, plan.phases)
            load = await site.load(_order(scenario, plan, options, folder.path), watcher.on_tick)
            try:
                return await _play(scenario, plan, folder, site, load, watcher)
            finally:
                await load.close()


async def _play(
    scenario: Scenario, plan: Plan, folder: Run, site: Site, load: Load, watcher: Watcher
) -> RunData:
    t0 = site.clock() + LEAD_NS
    scraper = Scraper(site.scrape, site.clock, t0)
    await scraper.once()
    await _audit(folder, site, "before")
    stage = Stage(
        plan, site.controls, load, lambda: site.clock() - t0, lambda due: sleep_until(t0 + due, site.clock)
    )
    scraping = asyncio.create_task(scraper.forever())
    load.start(t0)
    with _stopped_by_ctrl_c(load, watcher):
        async with Conductor(scenario.faults, stage) as conductor:
            watcher.faults = conductor.windows
            end = await load.finished()
            if end.interrupted or end.lost is not None:
                await conductor.stop()
        watcher.say("waiting until the target is quiet")
        await _quiet(site)
        scraping.cancel()
        await asyncio.sleep(scraper.interval)  # MEASUREMENT C40: one interval, then the last word
        await scraper.once()
        await _audit(folder, site, "after")
        return await _collect(scenario, plan, folder, site, load, end, conductor, scraper, t0)


async def _collect(
    scenario: Scenario,
    plan: Plan,
    folder: Run,
    site: Site,
    load: Load,
    end: LoadEnd,
    conductor: Conductor,
    scraper: Scraper,
    t0: int,
) -> RunData:
    """Everything that the judge looks at, as files and as one value."""
    truth = await _truth(site)
    records = read_list(folder.path / RECORDS)
    if end.lost is not None:
        records += _left_open(scenario, plan, folder, load, records, end.lost)
    folder.records.close()
    seen = Seen(
        plan,
        records,
        truth,
        t0 if site.own else None,
        folder.audits,
        conductor.windows,
        parts.deadlines(scenario),
    )
    for window in conductor.prove(seen):
        folder.fault(window)
    return folder.finish(
        signals=merged([end.signals]) if end.signals else {},
        scrapes=[asdict(sample) for sample in scraper.rows],
        truth=truth,
        invariants=[judgement.row() for judgement in check(seen)],
        attribution=attribute_run(folder.path, end.observed, truth, scenario),
        manifest={"observe_error": end.observe_error, "scrape_failures": scraper.failures, "t0_ns": t0},
        interrupted=end.interrupted,
        target_error=site.died(),
        load_error=end.lost,
    )


def _left_open(
    scenario: Scenario, plan: Plan, folder: Run, load: Load, records: list[Record], why: str
) -> list[Record]:
    """Records for what a load process that died leaves open: `unknown` (MEASUREMENT C23)."""
    target = scenario.target
    model = target.model if isinstance(target, UrlTarget) else target.engine.model
    missing = unaccounted(plan, {record.id for record in records}, model, why)
    for record in missing:
        record.request_id = load.request_id(record.id)  # the target may have served it all the same
        folder.records.append(record)
    return missing


def _folder(scenario: Scenario, plan: Plan, options: Options) -> Run:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = options.out or Path("runs") / f"{scenario.name}-{stamp}"
    judging = prepare.judging_of(
        scenario,
        plan,
        virtual=options.virtual,
        strict=options.strict,
        allow_inconclusive=options.allow_inconclusive,
    )
    facts = manifest(scenario=scenario.name, virtual=options.virtual, seed=scenario.seed)
    try:
        folder = Run.create(path, judging, resolved(scenario), manifest=facts)
    except (RunError, OSError) as error:
        raise UsageFailed(str(error)) from error
    write_plan(plan, path / "plan.parquet")
    folder.plan = pd.read_parquet(path / "plan.parquet")
    return folder


@asynccontextmanager
async def _site(
    scenario: Scenario, options: Options, folder: Path, clock: Clock, view: View
) -> AsyncIterator[Site]:
    if options.virtual:
        async with virtual_site(scenario, clock) as simulated:
            yield simulated
    else:
        async with live_site(scenario, folder, view) as live:
            yield live


def _order(scenario: Scenario, plan: Plan, options: Options, folder: Path) -> LoadOrder:
    """A live run is cold by a nonce that nobody has used; a virtual one by its seed (MEASUREMENT C22)."""
    tag = f"v{scenario.seed}" if options.virtual else secrets.token_hex(4)
    return LoadOrder(
        plan,
        folder,
        prepare.text_unit(scenario),
        tag if scenario.cache == "cold" else None,
        tag,
        parts.whole(scenario),
        Timeouts(**asdict(scenario.timeouts)),
        options.keep_text,
    )


@contextmanager
def _stopped_by_ctrl_c(load: Load, watcher: Watcher) -> Iterator[None]:
    """The first Ctrl-C ends the load, heals the faults and keeps the records; the second ends the run."""
    loop = asyncio.get_running_loop()
    whole = asyncio.current_task()
    pressed = 0

    def on_signal() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            watcher.say("interrupted: healing what is broken and keeping the records (again: stop at once)")
            load.stop()
        elif whole is not None:
            whole.cancel()

    loop.add_signal_handler(signal.SIGINT, on_signal)
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


async def _audit(folder: Run, site: Site, when: str) -> None:
    if site.own and site.died() is None:
        with suppress(OSError):  # it died just now: site.died() tells, and the run ends with that
            folder.audit({"when": when, **await site.controls.audit()})


async def _truth(site: Site) -> list[dict[str, Any]] | None:
    if site.own and site.died() is None:
        with suppress(OSError):
            return await site.controls.truth()
    return None


async def _quiet(site: Site) -> None:
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
