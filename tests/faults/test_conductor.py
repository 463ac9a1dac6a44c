"""The conductor: faults play beside the load and are healed whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from faults.burst import Burst
from faults.cancel import Cancel
from faults.conductor import Conductor, edit
from faults.fault import Fault, FaultWindow, Seen, Stage
from faults.noop import Noop
from faults.table import FAULTS
from faults.tier import BreakDisk
from faults.when import InDecode, InPrefill
from faults.worker import FreezeWorker, KillWorker
from loadgen.plan import Plan

OnStage = Callable[[Plan, Any], Any]

FREEZE = FreezeWorker("ice", worker=1, at=2.0, for_=5.0)


def names(calls: list[Any]) -> list[Any]:
    return [call[1:] for call in calls]


def test_success_heals_and_stamps(on_stage: OnStage, plan: Plan) -> None:
    """A fault that plays to its end has planned, injected, proven and healed in this order."""

    async def body(stage: Stage, target: Any) -> None:
        async with Conductor([FREEZE], stage) as conductor:
            await stage.sleep_until(20 * 10**9)
        (window,) = conductor.windows
        assert window.error is None
        stamps = [window.planned, window.injected, window.proven, window.healed]
        assert stamps == [2 * 10**9, 2 * 10**9, 4 * 10**9, 7 * 10**9]
        assert target.calls == [(2.0, "freeze", 1), (7.0, "thaw", 1)]

    on_stage(plan, body)


def test_an_error_of_the_run_heals_at_once(on_stage: OnStage, plan: Plan) -> None:
    """When the load fails, a frozen worker is thawed before the exception goes on."""

    async def body(stage: Stage, target: Any) -> None:
        conductor = Conductor([FREEZE], stage)

        async def run() -> None:
            async with conductor:
                await stage.sleep_until(3 * 10**9)
                raise LookupError("the load broke")

        with pytest.raises(LookupError):
            await run()
        assert target.calls == [(2.0, "freeze", 1), (3.0, "thaw", 1)]
        assert conductor.windows[0].error == "stopped before it was over"

    on_stage(plan, body)


@pytest.mark.parametrize("at", [3.0, 20.5])
def test_cancellation_heals_at_once(on_stage: OnStage, plan: Plan, at: float) -> None:
    """Ctrl-C, during the load or while the faults still settle, thaws the worker and goes on up."""
    late = FreezeWorker("ice", worker=1, at=2.0, for_=30.0)

    async def body(stage: Stage, target: Any) -> None:
        async def run() -> None:
            async with Conductor([late], stage):
                await stage.sleep_until(20 * 10**9)

        task = asyncio.create_task(run())
        await stage.sleep_until(round(at * 1e9))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert target.calls == [(2.0, "freeze", 1), (at, "thaw", 1)]

    on_stage(plan, body)


def test_a_failing_heal_is_said(on_stage: OnStage, plan: Plan) -> None:
    """A heal that fails ends in the window's error, not in the run."""

    async def body(stage: Stage, target: Any) -> None:
        target.failing = {"thaw"}
        async with Conductor([FREEZE], stage) as conductor:
            await stage.sleep_until(20 * 10**9)
        assert conductor.windows[0].error == "RuntimeError: thaw refused"
        assert conductor.windows[0].healed is None

    on_stage(plan, body)


def test_one_failing_fault_leaves_the_others_alone(on_stage: OnStage, plan: Plan) -> None:
    """An error in one fault's play is recorded there; the others play on."""

    async def body(stage: Stage, target: Any) -> None:
        target.failing = {"kill"}
        faults = [KillWorker("crash", worker=0, at=1.0), Noop("calm", at=5.0)]
        async with Conductor(faults, stage) as conductor:
            await stage.sleep_until(10 * 10**9)
        crash, calm = conductor.windows
        assert crash.error == "RuntimeError: kill refused"
        assert calm.error is None
        assert calm.healed == 5 * 10**9

    on_stage(plan, body)


def test_what_never_ends_is_stopped_after_the_grace(on_stage: OnStage, plan: Plan) -> None:
    """The run's end waits for its faults, and a little longer for a worker to come back, not for ever."""

    async def body(stage: Stage, target: Any) -> int:
        target.back_after = 1000.0
        fault = KillWorker("crash", worker=0, at=1.0, heal_within=500.0)
        async with Conductor([fault], stage, grace_s=4.0) as conductor:
            await stage.sleep_until(2 * 10**9)
        assert conductor.windows[0].error == "stopped before it was over"
        return stage.now()

    assert on_stage(plan, body) == pytest.approx((2 + 4 + 20) * 10**9)


def test_each_fault_draws_from_its_own_stream(plan: Plan) -> None:
    """Adding a fault does not change what another one picks; the same seed picks the same."""
    hangup = Cancel("hangup", "chat", 0.2, InDecode(3))

    def picked(*faults: Fault) -> set[int]:
        return {shot.id for shot in edit(faults, plan, seed=5).shots if shot.fault == "hangup"}

    assert picked(hangup) == picked(hangup)
    assert len(picked(hangup)) == 4
    assert picked(hangup, Burst("rush", "chat", 1.0, 1.0, 5.0)) == picked(hangup)
    assert picked(hangup) != {s.id for s in edit([hangup], plan, seed=6).shots if s.fault == "hangup"}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_names_its_window_and_leaves_ids_in_order(name: str, plan: Plan) -> None:
    """Whatever the fault: its window carries id and type, its edit keeps ids 0..n-1, its proof is pure."""
    fault = {
        "noop": Noop("f", at=1.0),
        "cancel": Cancel("f", "chat", 0.1, "queued"),
        "burst": Burst("f", "chat", at=1.0, for_=2.0, rate=3.0),
        "kill_worker": KillWorker("f", worker=0, at=1.0, when=InPrefill(1)),
        "freeze_worker": FreezeWorker("f", worker=0, at=1.0, for_=1.0),
        "break_disk": BreakDisk("f", "full", at=1.0, for_=1.0),
    }[name]
    assert type(fault) is FAULTS[name]
    window: FaultWindow = fault.window()
    assert (window.id, window.type) == ("f", name)
    edited = edit([fault], plan, seed=1)
    assert [shot.id for shot in edited.shots] == list(range(len(edited.shots)))
    fault.prove(window, Seen(edited, []))
