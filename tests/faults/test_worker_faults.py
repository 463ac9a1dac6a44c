"""Workers that die or stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faults.conductor import Conductor
from faults.fault import FaultWindow, Stage
from faults.when import InDecode, InPrefill
from faults.worker import FreezeWorker, KillWorker
from loadgen.plan import Plan

OnStage = Callable[[Plan, Any], Any]


def play(
    on_stage: OnStage, plan: Plan, fault: Any, prepare: Callable[[Any], None]
) -> tuple[FaultWindow, Any]:
    async def body(stage: Stage, target: Any) -> tuple[FaultWindow, Any]:
        prepare(target)
        async with Conductor([fault], stage) as conductor:
            await stage.sleep_until(30 * 10**9)
        return conductor.windows[0], target.calls

    result: tuple[FaultWindow, Any] = on_stage(plan, body)
    return result


def test_a_kill_is_proven_by_exit_and_healed_by_return(on_stage: OnStage, plan: Plan) -> None:
    """Proof is the exit; healed only when the new incarnation is in rotation."""
    window, calls = play(on_stage, plan, KillWorker("k", worker=1, at=5.0), lambda target: None)
    assert calls == [(5.0, "kill", 1)]
    assert window.error is None
    assert (window.injected, window.proven, window.healed) == (5 * 10**9, 5 * 10**9, 8 * 10**9)
    assert window.proof == {"incarnation_before": "1.1", "incarnation_after": "1.2"}


def test_a_kill_that_is_interrupted_is_still_seen_healed(on_stage: OnStage, plan: Plan) -> None:
    """Ctrl-C between the strike and the return: the window says when the worker was back."""

    async def body(stage: Stage, target: Any) -> FaultWindow:
        async with Conductor([KillWorker("k", worker=1, at=5.0)], stage) as conductor:
            await stage.sleep_until(6 * 10**9)
            await conductor.stop()
        return conductor.windows[0]

    window: FaultWindow = on_stage(plan, body)
    assert (window.injected, window.healed) == (5 * 10**9, 8 * 10**9)


def test_a_kill_waits_for_its_phase(on_stage: OnStage, plan: Plan) -> None:
    """With `when` the worker dies while a request is held there, and the hold goes."""

    def prepare(target: Any) -> None:
        target.reach[("prefill:1", 1)] = 7.5

    window, calls = play(on_stage, plan, KillWorker("k", worker=1, at=5.0, when=InPrefill(1)), prepare)
    assert calls == [
        (5.0, "hold", "prefill:1", 1),
        (7.5, "kill", 1),
        (7.5, "release", "prefill:1", 1),
    ]
    assert window.injected == 7_500_000_000
    assert window.proof["held"]["phase"] == "prefill:1"


def test_a_phase_that_is_not_reached_kills_nobody(on_stage: OnStage, plan: Plan) -> None:
    """No guess: the fault did not happen, the hold is released, and the window says why."""
    window, calls = play(
        on_stage, plan, KillWorker("k", 1, 5.0, InDecode(9), within=4.0), lambda target: None
    )
    assert calls == [(5.0, "hold", "decode:9", 1), (9.0, "release", "decode:9", 1)]
    assert window.injected is None
    assert window.error == "no request on worker 1 reached decode:9 within 4 s"


def test_a_worker_that_stays_away_is_not_healed(on_stage: OnStage, plan: Plan) -> None:
    """Proven, but never back: not healed, and said."""

    def prepare(target: Any) -> None:
        target.back_after = 100.0

    window, _ = play(on_stage, plan, KillWorker("k", 1, 5.0, heal_within=10.0), prepare)
    assert window.proven is not None
    assert window.healed is None
    assert window.error == "worker 1 is not back in rotation after 10 s"


def test_a_short_freeze_may_go_unseen(on_stage: OnStage, plan: Plan) -> None:
    """Thawed before anybody noticed: healed, and not proven."""
    window, calls = play(on_stage, plan, FreezeWorker("f", 0, at=3.0, for_=1.0), lambda target: None)
    assert calls == [(3.0, "freeze", 0), (4.0, "thaw", 0)]
    assert window.proven is None
    assert window.healed == 4 * 10**9


def test_a_freeze_that_is_stopped_is_healed(on_stage: OnStage, plan: Plan) -> None:
    """Ctrl-C in the middle: thawed at once, and seen back in rotation."""

    async def body(stage: Stage, target: Any) -> tuple[FaultWindow, Any]:
        async with Conductor([FreezeWorker("f", 0, at=3.0, for_=60.0)], stage) as conductor:
            await stage.sleep_until(7 * 10**9)
            await conductor.stop()
        return conductor.windows[0], target.calls

    window, calls = on_stage(plan, body)
    assert calls == [(3.0, "freeze", 0), (7.0, "thaw", 0)]
    assert (window.proven, window.healed) == (5 * 10**9, 7 * 10**9)
    assert window.error == "stopped before it was over"
