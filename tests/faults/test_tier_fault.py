"""A disk tier that fails for a while, scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.conductor import Conductor
from faults.fault import FaultWindow, Stage
from faults.tier import BreakDisk
from loadgen.plan import Plan

OnStage = Callable[[Plan, Any], Any]
FULL = BreakDisk("nospace", "full", at=5.0, for_=10.0)


def test_it_is_proven_by_a_lost_block_and_healed(on_stage: OnStage, plan: Plan) -> None:
    """Injected at its time, proven when a worker first counts a loss, healed after its span."""

    async def body(stage: Stage, target: Any) -> tuple[FaultWindow, Any]:
        async with Conductor([FULL], stage) as conductor:
            await stage.sleep_until(8 * 10**9)
            for row in target.workers:
                row["disk"] |= {"spills_lost": 3}
            await stage.sleep_until(20 * 10**9)
        return conductor.windows[0], target.calls

    window, calls = on_stage(plan, body)
    assert calls == [(5.0, "tier", "full"), (15.0, "tier", None)]
    assert window.error is None
    assert (window.injected, window.healed) == (5 * 10**9, 15 * 10**9)
    assert 8.0 <= window.proven / 1e9 <= 8.3
    assert window.proof == {"blocks_lost": 6}


def test_what_was_lost_before_is_no_proof(on_stage: OnStage, plan: Plan) -> None:
    """Nothing was spilled meanwhile: the fault struck nobody, and the drill cannot be judged."""

    async def body(stage: Stage, target: Any) -> FaultWindow:
        target.lost = 9
        await target.tier(None)
        async with Conductor([FULL], stage) as conductor:
            await stage.sleep_until(20 * 10**9)
        return conductor.windows[0]

    window: FaultWindow = on_stage(plan, body)
    assert (window.injected, window.proven) == (5 * 10**9, None)
    assert window.healed == 15 * 10**9


def test_a_run_that_breaks_off_heals_the_disk(on_stage: OnStage, plan: Plan) -> None:
    """Ctrl-C while the disk is broken."""

    async def body(stage: Stage, target: Any) -> tuple[FaultWindow, Any]:
        async with Conductor([FULL], stage) as conductor:
            await stage.sleep_until(7 * 10**9)
            await conductor.stop()
        return conductor.windows[0], target.calls

    window, calls = on_stage(plan, body)
    assert calls[-1] == (7.0, "tier", None)
    assert window.healed == 7 * 10**9


def test_a_target_that_refuses_is_said_in_the_window(on_stage: OnStage, plan: Plan) -> None:
    """An engine without a disk tier, for one: no injection, the target's own words."""

    async def body(stage: Stage, target: Any) -> FaultWindow:
        target.failing.add("tier")
        async with Conductor([FULL], stage) as conductor:
            await stage.sleep_until(20 * 10**9)
        return conductor.windows[0]

    window: FaultWindow = on_stage(plan, body)
    assert (window.injected, window.healed) == (None, None)
    assert "tier refused" in (window.error or "")
