"""Bursts: more of the same, for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.burst import Burst
from faults.conductor import Conductor, edit
from faults.fault import Seen, Stage
from loadgen.arrivals import Constant
from loadgen.plan import Load, Phases, Plan
from loadgen.workload import Sessions
from results.record import Outcome, Record

OnStage = Callable[[Plan, Any], Any]

RUSH = Burst("rush", "chat", at=4.0, for_=2.0, rate=5.0)


def test_the_burst_is_appended_at_its_rate(plan: Plan) -> None:
    """rate x for requests, evenly spaced inside the span, with the ids that come next."""
    added = edit([RUSH], plan, seed=2).shots[len(plan.shots) :]
    assert [shot.due_ns for shot in added] == [4 * 10**9 + k * 200_000_000 for k in range(10)]
    assert [shot.id for shot in added] == list(range(20, 30))
    assert all(shot.fault == "rush" and shot.parent is None and shot.turn == 0 for shot in added)
    assert len({shot.session for shot in added} | {shot.session for shot in plan.shots}) == 30


def test_shared_text_stays_shared_and_the_rest_is_new(plan: Plan) -> None:
    """The class's system prompt may hit the cache as always; no burst prompt repeats a user text."""
    added = edit([RUSH], plan, seed=2).shots[len(plan.shots) :]
    assert {shot.prompt[0].text_key for shot in added} == {"s"}
    old = {shot.prompt[1].text_key for shot in plan.shots}
    new = {shot.prompt[1].text_key for shot in added}
    assert len(new) == 10
    assert not new & old


def test_a_class_without_shots_has_no_burst(plan: Plan) -> None:
    """There is nothing to copy: the plan stays, and the proof says so."""
    fault = Burst("rush", "nobody", at=4.0, for_=2.0, rate=5.0)
    edited = edit([fault], plan, seed=2)
    assert edited == plan
    window = fault.window()
    fault.prove(window, Seen(edited, []))
    assert window.error == "only 0 of 0 requests of the burst were sent"


@given(
    rate=st.floats(0.1, 50),
    at=st.floats(0, 20),
    for_=st.floats(0.1, 9),
    seed=st.integers(0, 2**32),
)
def test_any_burst_keeps_the_plan_and_its_own_span(rate: float, at: float, for_: float, seed: int) -> None:
    """What was planned stays as it was; every added request is due in [at, at + for), in its phase."""
    sessions = Sessions(turns=2, system=20, user=5, output=4, think=1.0)
    base = Plan.make([Load("chat", Constant(1.0), sessions)], Phases(window=20, warmup=5, cooldown=5), 1)
    edited = edit([Burst("b", "chat", at, for_, rate)], base, seed)
    assert edited.shots[: len(base.shots)] == base.shots
    for shot in edited.shots[len(base.shots) :]:
        assert shot.due_ns is not None
        assert round(at * 1e9) <= shot.due_ns <= round((at + for_) * 1e9)
        assert shot.phase == base.phases.of(shot.due_ns)
    assert len(edited.shots) - len(base.shots) == max(1, round(rate * for_))


def test_its_span_is_stamped(on_stage: OnStage, plan: Plan) -> None:
    """Injected when it begins, healed when it is over."""

    async def body(stage: Stage, target: Any) -> None:
        async with Conductor([RUSH], stage) as conductor:
            await stage.sleep_until(20 * 10**9)
        (window,) = conductor.windows
        assert (window.planned, window.injected, window.healed) == (4 * 10**9, 4 * 10**9, 6 * 10**9)

    on_stage(plan, body)


@pytest.mark.parametrize(("sent", "proven"), [(10, 4 * 10**9), (9, 4 * 10**9), (8, None)])
def test_the_proof_is_the_offered_rate(plan: Plan, sent: int, proven: int | None) -> None:
    """Nearly all of the burst must have been sent; the rate is counted from first to last send."""
    edited = edit([RUSH], plan, seed=2)
    own = [shot for shot in edited.shots if shot.fault == "rush"][:sent]
    records = [
        Record(s.id, "chat", "window", Outcome.COMPLETED, start=4 * 10**9 + k * 200_000_000)
        for k, s in enumerate(own)
    ]
    window = RUSH.window()
    RUSH.prove(window, Seen(edited, records))
    assert window.proven == proven
    assert window.proof["offered_rate"] == pytest.approx(5.0)
    assert window.proof["sent"] == sent
    assert window.injected == 4 * 10**9


def test_the_proof_is_never_before_the_injection(plan: Plan) -> None:
    """The first send may come before the fault's own clock wakes up; it is what the burst begins with."""
    edited = edit([RUSH], plan, seed=2)
    own = [shot for shot in edited.shots if shot.fault == "rush"]
    records = [
        Record(s.id, "chat", "window", Outcome.COMPLETED, start=4 * 10**9 + k * 200_000_000)
        for k, s in enumerate(own)
    ]
    window = RUSH.window()
    window.injected = 4 * 10**9 + 7_000_000
    RUSH.prove(window, Seen(edited, records))
    assert window.injected == window.proven == 4 * 10**9
