"""Hang-ups at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from faults.cancel import Cancel
from faults.conductor import Conductor, edit
from faults.fault import Seen, Stage
from faults.when import AfterSend, InDecode, InPrefill, When
from loadgen.plan import Plan, PlannedCancel, Shot
from results.record import Outcome, Record

OnStage = Callable[[Plan, Any], Any]


def record(shot: Shot, outcome: Outcome, closed: int | None = None) -> Record:
    return Record(
        id=shot.id,
        class_=shot.class_,
        phase="window",
        outcome=outcome,
        request_id=f"r{shot.id}",
        closed=closed,
    )


@pytest.mark.parametrize(
    ("when", "planned"),
    [
        ("queued", PlannedCancel("queued", 0)),
        (InPrefill(2), PlannedCancel("prefill", 2)),
        (InDecode(5), PlannedCancel("decode", 5)),
        (AfterSend(0.3), PlannedCancel("after", 300_000_000)),
    ],
)
def test_a_share_of_the_class_is_marked(plan: Plan, when: When, planned: PlannedCancel) -> None:
    """Exactly the share, rounded, is picked; the moment stands in the plan."""
    edited = edit([Cancel("c", "chat", 0.25, when)], plan, seed=3)
    marked = [shot for shot in edited.shots if shot.cancel is not None]
    assert [shot.cancel for shot in marked] == [planned] * 5
    assert all(shot.fault == "c" for shot in marked)


def test_small_shares_cancel_at_least_one(plan: Plan) -> None:
    """A share of a few requests is never nothing."""
    edited = edit([Cancel("c", "chat", 0.001, "queued")], plan, seed=3)
    assert sum(shot.cancel is not None for shot in edited.shots) == 1


def test_tokens_that_never_come_are_not_waited_for(plan: Plan) -> None:
    """A cancel at token 16 of answers of 16 tokens can hit nobody, and the proof says so."""
    fault = Cancel("c", "chat", 0.5, InDecode(16))
    edited = edit([fault], plan, seed=3)
    assert all(shot.cancel is None for shot in edited.shots)
    window = fault.window()
    fault.prove(window, Seen(edited, []))
    assert window.error == "no request reached the moment of its cancel"


def test_two_cancels_share_no_request(plan: Plan) -> None:
    """A request is cancelled once: the second fault picks among the others."""
    edited = edit([Cancel("a", "chat", 0.5, "queued"), Cancel("b", "chat", 1.0, InDecode(2))], plan, seed=3)
    counts = [sum(shot.fault == id for shot in edited.shots) for id in ("a", "b")]
    assert counts == [10, 10]


def test_a_held_request_is_cancelled_then_released(on_stage: OnStage, plan: Plan) -> None:
    """queued and prefill: arm the hold shortly before the send, cancel when held, then let go."""
    fault = Cancel("c", "chat", 0.05, InPrefill(1))
    edited = edit([fault], plan, seed=3)
    (shot,) = [s for s in edited.shots if s.fault]
    assert shot.due_ns is not None
    due = shot.due_ns / 1e9

    async def body(stage: Stage, target: Any) -> None:
        target.reach[("prefill:1", f"r{shot.id}")] = due + 0.5
        async with Conductor([fault], stage) as conductor:
            await stage.sleep_until(30 * 10**9)
        assert target.calls == [
            (max(0.0, due - 1), "hold", "prefill:1", f"r{shot.id}"),
            (due + 0.5, "cancel", shot.id),
            (due + 0.5, "release", "prefill:1", f"r{shot.id}"),
        ]
        assert conductor.windows[0].injected == round((due + 0.5) * 1e9)

    on_stage(edited, body)


def test_the_hold_stays_until_the_target_saw_the_hang_up(on_stage: OnStage, plan: Plan) -> None:
    """A release that overtakes the cancel would let the request leave its phase."""
    fault = Cancel("c", "chat", 0.05, "queued")
    edited = edit([fault], plan, seed=3)
    (shot,) = [s for s in edited.shots if s.fault]

    async def body(stage: Stage, target: Any) -> None:
        target.reach[("queued", f"r{shot.id}")] = 20.0
        target.living[f"r{shot.id}"] = 20.3
        async with Conductor([fault], stage):
            await stage.sleep_until(30 * 10**9)
        assert [call[:2] for call in target.calls[1:]] == [(20.0, "cancel"), (20.3, "release")]

    on_stage(edited, body)


def test_holds_that_nothing_reaches_go_when_the_load_is_over(on_stage: OnStage, plan: Plan) -> None:
    """A request that never got there does not keep the run from ending, and its hold is released."""
    fault = Cancel("c", "chat", 0.1, "queued")

    async def body(stage: Stage, target: Any) -> int:
        async with Conductor([fault], stage):
            await stage.sleep_until(25 * 10**9)
        holds = [call[2:] for call in target.calls if call[1] == "hold"]
        assert len(holds) == 2
        assert sorted(call[2:] for call in target.calls if call[1] == "release") == sorted(holds)
        return stage.now()

    assert on_stage(edit([fault], plan, seed=3), body) == 25 * 10**9


def test_an_interrupt_releases_every_hold(on_stage: OnStage, plan: Plan) -> None:
    """No request stays held after Ctrl-C."""
    fault = Cancel("c", "chat", 1.0, "queued")

    async def body(stage: Stage, target: Any) -> None:
        conductor = Conductor([fault], stage)
        async with conductor:
            await stage.sleep_until(5 * 10**9)
            await conductor.stop()
        verbs = [call[1] for call in target.calls]
        assert verbs.count("hold") == verbs.count("release") > 0

    on_stage(edit([fault], plan, seed=3), body)


def test_the_clients_own_cancels_need_no_target(on_stage: OnStage, plan: Plan) -> None:
    """decode and after are done by the client alone."""
    fault = Cancel("c", "chat", 1.0, InDecode(3))

    async def body(stage: Stage, target: Any) -> None:
        async with Conductor([fault], stage):
            await stage.sleep_until(25 * 10**9)
        assert target.calls == []

    on_stage(edit([fault], plan, seed=3), body)


@pytest.mark.parametrize(("phase", "proven"), [("decode", 4), ("prefill", None)])
def test_the_proof_is_the_phase_that_the_truth_saw(plan: Plan, phase: str, proven: int | None) -> None:
    """Cut at token 5, but the engine says it was in prefill: not proven."""
    fault = Cancel("c", "chat", 0.1, InDecode(5))
    edited = edit([fault], plan, seed=3)
    cut = [shot for shot in edited.shots if shot.fault]
    records = [record(shot, Outcome.CANCELLED_BY_PLAN, closed=4 + k) for k, shot in enumerate(cut)]
    truth = [{"id": f"r{shot.id}", "cancel_phase": phase} for shot in cut]
    window = fault.window()
    fault.prove(window, Seen(edited, records, truth))
    assert window.proven == proven
    assert (window.injected, window.healed) == (4, 5)
    assert window.proof == {"planned": 2, "cancelled": 2, "phases": {phase: 2}}
