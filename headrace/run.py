"""One run from start to end: the page to read first."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from engine.model import ModelError
from faults.conductor import Conductor
from faults.fault import Stage
from headrace import prepare
from headrace.console import View
from headrace.errors import Interrupted, TargetFailed, UsageFailed
from headrace.evidence import Scene, audit, collect, until_quiet
from headrace.interrupt import beside, stopped_by_ctrl_c
from headrace.live import limit_of, live_site, preflight, target_override, with_first_model
from headrace.manifest import manifest
from headrace.models import obtain
from headrace.scraping import Scrapers, scrapers
from headrace.site import LEAD_NS, Load, LoadOrder, Site
from headrace.verdict import Outcome, conclude
from headrace.virtual import refuse_url, virtual_site
from headrace.watching import Watcher
from loadgen.clock import Clock, monotonic, run_virtual, sleep_until
from loadgen.plan import Plan
from loadgen.plan_io import write_plan
from results.run import Run, RunData, RunError
from scenarios import parts, traces
from scenarios.load import resolved
from scenarios.schema import EngineTarget, Scenario, UrlTarget


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
        overrides = (target_override(options.target), *overrides)  # what --set says of it comes on top
    scenario = prepare.load_scenario(path, overrides, virtual=options.virtual, seed=options.seed)
    if options.virtual:
        refuse_url(scenario)
    if options.target is not None:  # only now: a broken scenario is said before anybody is asked
        assert isinstance(scenario.target, UrlTarget), "overridden"
        scenario = replace(scenario, target=with_first_model(scenario.target))
    target = scenario.target
    if not options.virtual and isinstance(target, EngineTarget) and obtain(target.engine.model):
        prepare.load_scenario(path, overrides)  # now that the model's own limit is known
    asked = scenario.target if isinstance(scenario.target, UrlTarget) and not options.virtual else None
    if asked is not None and (context := limit_of(asked)) is not None:
        prepare.load_scenario(path, overrides, context=context)
    try:
        if options.virtual:
            data = run_virtual(lambda clock: run(scenario, options, clock, view))
        else:
            data = asyncio.run(run(scenario, options, monotonic, view))
    except ModelError as error:  # its folder was there when the run began
        raise TargetFailed(str(error)) from error
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
        await preflight(scenario, view)
    plan = prepare.make_plan(scenario)
    prepare.refuse_empty(plan)
    for text in prepare.warnings_of(scenario, plan):
        view.note(f"warning: {text}")
    if not options.virtual and scenario.client.launcher == "local":
        _foresee(scenario, plan, view)
    with _folder(scenario, plan, options) as folder:
        async with _site(scenario, options, folder.path, clock, view) as site:
            watcher = Watcher(view, plan.phases)
            load = await site.load(_order(scenario, plan, options, folder.path), watcher.on_tick)
            try:
                async with scrapers(site, virtual=options.virtual) as scraper:
                    await scraper.once()
                    await audit(folder, site, "before")
                    # Only now: what a target takes to answer must not be taken from the lead.
                    scene = Scene(scenario, plan, folder, site, load, site.clock() + LEAD_NS)
                    return await _play(scene, scraper, watcher)
            finally:
                await load.close()


def _foresee(scenario: Scenario, plan: Plan, view: View) -> None:
    """Refuse what this machine surely cannot send, warn of what it may not."""
    problems = prepare.foreseen(scenario, plan)
    sure = [problem.text for problem in problems if problem.sure]
    if sure:
        raise UsageFailed("this machine cannot send the plan:", *(f"  {text}" for text in sure))
    for problem in problems:
        view.note(f"warning: {problem.text}")


async def _play(scene: Scene, scraper: Scrapers, watcher: Watcher) -> RunData:
    site, load, t0 = scene.site, scene.load, scene.t0
    stage = Stage(
        scene.plan,
        site.controls,
        load,
        now=lambda: site.clock() - t0,
        sleep_until=lambda due: sleep_until(t0 + due, site.clock),
    )
    load.start(t0)
    with stopped_by_ctrl_c(load, watcher) as stop:
        async with beside(scraper.forever(), _stop_if_it_dies(site, load)):
            async with Conductor(scene.scenario.faults, stage) as conductor:
                watcher.faults = conductor.windows
                end = await load.finished()
                if end.interrupted or end.lost is not None:
                    await conductor.stop()
            watcher.say("waiting until the target is quiet")
            await until_quiet(site)
            await asyncio.sleep(scraper.interval)  # MEASUREMENT C40: one interval, then the last word
        await scraper.once()
        await audit(scene.folder, site, "after")
        # Load that was stopped, by whomever, is no smaller run; that of a dead target is an error of its own.
        interrupted = stop.asked or (end.interrupted and site.died() is None)
        return await collect(scene, end, conductor, scraper, interrupted)


async def _stop_if_it_dies(site: Site, load: Load) -> None:
    """A target that is gone by itself gets no more load: what is left of the plan has its outcome at once."""
    while site.died() is None:
        await asyncio.sleep(0.5)
    load.stop()


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
    facts = manifest(
        scenario=scenario.name,
        virtual=options.virtual,
        seed=scenario.seed,
        traces=traces.facts(scenario),
    )
    try:
        folder = Run.create(path, judging, resolved(scenario), manifest=facts)
    except RunError as error:
        raise UsageFailed(str(error)) from error
    except OSError as error:
        raise UsageFailed(
            f"{path}: cannot be made a run directory ({error.strerror}); choose another --out"
        ) from error
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
        parts.client_rules(scenario),
        scenario.client.processes,
        scenario.client.connections,
        options.keep_text,
        None if options.virtual else prepare.tokenizer_file(scenario),
        scenario.client.ray_address if scenario.client.launcher == "ray" else None,
    )
