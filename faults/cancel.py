"""Clients that hang up, at a chosen moment of their request's life."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np

from faults.fault import FaultWindow, Seen, Stage
from faults.when import AfterSend, Held, InDecode, InPrefill, When, hold_phase, ns, planned_cancel
from loadgen.plan import Plan, Share, Shot
from results.record import Outcome, Record

_ARM_AHEAD = ns(1.0)
_NOTICE = ns(5.0)
"""How long a target may take to see a hang-up; a hold ends by itself after 10 s (ENGINE E48)."""
_LOOK_EVERY = ns(0.02)


@dataclass(frozen=True, slots=True)
class Cancel:
    """A seeded share of a class's requests is cancelled by its clients.

    ``when: {decode: n}`` and ``{after: t}`` are done by the client alone. ``queued`` and ``{prefill: k}``
    hold the request at that phase first, so they need a target that can hold.
    """

    id: str
    class_: str
    share: Share
    when: When

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError("a share of 0% cancels nothing")

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        """Mark ``share`` of the class's shots (at least one), among those that can reach the moment."""
        able = [shot.id for shot in plan.shots if shot.class_ == self.class_ and self._can_reach(shot)]
        count = min(len(able), max(1, round(self.share * len(able))))
        chosen = {int(i) for i in rng.choice(able, size=count, replace=False)} if count else set()
        cancel = planned_cancel(self.when)
        return plan.with_shots(
            tuple(
                replace(shot, cancel=cancel, fault=self.id) if shot.id in chosen else shot
                for shot in plan.shots
            )
        )

    def _can_reach(self, shot: Shot) -> bool:
        """A token beyond the answer's end never comes; one cancel per request is enough."""
        free = shot.cancel is None and shot.fault is None
        return free and not (isinstance(self.when, InDecode) and self.when.decode >= shot.n_out_asked)

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "cancel", target=f"class {self.class_}")

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        """Door 3 holds, door 2 cancels; nothing to do where the client cancels by itself."""
        if isinstance(self.when, InDecode | AfterSend):
            return
        strikes = [
            self._strike(shot, self.when, stage, window) for shot in stage.plan.shots if shot.fault == self.id
        ]
        async with asyncio.TaskGroup() as group:
            for strike in strikes:
                group.create_task(strike)

    async def _strike(self, shot: Shot, when: Held, stage: Stage, window: FaultWindow) -> None:
        await stage.sleep_until(max(0, _earliest(shot, stage.plan) - _ARM_AHEAD))
        request = stage.load.request_id(shot.id)
        hold = await stage.controls.hold(hold_phase(when), request=request)
        try:
            left = (_end(stage.plan) - stage.now()) / 1e9
            if await stage.held(hold, timeout=max(left, 0.0)) is not None:
                window.injected = stage.now() if window.injected is None else window.injected
                stage.load.cancel(shot.id)
                await _gone(stage, request)
        finally:
            await stage.controls.release(hold)

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Proof: the phase that the truth saw, else only that the client cut the stream.

        A hold at ``queued`` or ``prefill`` that nothing reached shows as fewer proofs than plans."""
        planned = {shot.id for shot in seen.plan.shots if shot.fault == self.id}
        cut = [r for r in seen.records if r.id in planned and r.outcome is Outcome.CANCELLED_BY_PLAN]
        phases = _phases(cut, seen)
        window.proof |= {"planned": len(planned), "cancelled": len(cut), "phases": phases}
        ends = sorted(end for r in cut if (end := r.closed or r.terminal) is not None)
        if not ends:
            window.error = window.error or "no request reached the moment of its cancel"
            return
        window.injected = ends[0] if window.injected is None else window.injected
        window.healed = ends[-1]
        if phases is None or phases.get(self._phase(), 0) > 0 or isinstance(self.when, AfterSend):
            window.proven = ends[0]
        else:
            seen_in = ", ".join(f"{phase} {n}" for phase, n in sorted(phases.items())) or "nowhere"
            window.error = window.error or f"none was cancelled in {self._phase()}; the engine saw: {seen_in}"

    def _phase(self) -> str:
        match self.when:
            case InPrefill():
                return "prefill"
            case InDecode():
                return "decode"
            case AfterSend():
                return "any"
            case "queued":
                return "queued"


async def _gone(stage: Stage, request: str) -> None:
    """Wait until the target has seen the hang-up; released before, the request would leave its phase."""
    limit = stage.now() + _NOTICE
    while stage.now() < limit:
        state = await stage.controls.state()
        if all(row.get("id") != request for row in state.get("requests", ())):
            return
        await stage.sleep_until(stage.now() + _LOOK_EVERY)


def _phases(cut: list[Record], seen: Seen) -> dict[str, int] | None:
    """How many were cancelled in which phase; None where the target tells no truth."""
    if seen.truth is None:
        return None
    ids = {r.request_id for r in cut}
    counts: dict[str, int] = {}
    for row in seen.truth:
        if row.get("id") in ids and row.get("cancel_phase"):
            phase = str(row["cancel_phase"]).partition(":")[0]
            counts[phase] = counts.get(phase, 0) + 1
    return counts


def _earliest(shot: Shot, plan: Plan) -> int:
    """When a shot can be sent at the earliest: its first ancestor's due time, and all think times since."""
    thinking = 0
    while shot.due_ns is None:
        assert shot.parent is not None, "a shot without a due time has a parent"
        thinking += shot.after_ns or 0
        shot = plan.shots[shot.parent]
    return shot.due_ns + thinking


def _end(plan: Plan) -> int:
    """When nothing is sent any more and the drain is over."""
    return plan.phases.load_ns + ns(plan.phases.drain)
