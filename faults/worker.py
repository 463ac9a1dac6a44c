"""Workers that die or stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np

from faults.fault import FaultWindow, Seen, Stage
from faults.when import InDecode, InPrefill, hold_phase, ns
from loadgen.plan import Plan, Seconds

Row = dict[str, Any]

_LOOK_EVERY = ns(0.05)
_HURRIED_S = 20.0
"""How long a cancelled fault still waits for its healing to be seen."""
_IN_ROTATION = "in_rotation"


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL to a worker at ``at``, or as soon after it as a request there reaches ``when``.

    Proof: its exit, then a new incarnation. Healed: that one is in rotation. ``within`` bounds the wait
    for ``when``, ``heal_within`` the one for the return.
    """

    id: str
    worker: int
    at: Seconds
    when: InPrefill | InDecode | None = None
    within: Seconds = 10.0
    heal_within: Seconds = 60.0

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        return plan

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "kill_worker", target=f"worker {self.worker}", planned=ns(self.at))

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        await stage.sleep_until(ns(self.at))
        before = await _look(stage, self.worker)
        window.proof["incarnation_before"] = before.get("incarnation")
        try:
            await self._strike(stage, window)
        finally:
            if window.injected is not None:
                await _to_its_end(self._heal(stage, window, before))

    async def _heal(self, stage: Stage, window: FaultWindow, before: Row) -> None:
        """The supervisor replaces the worker; this sees it gone, and back."""
        limit = stage.now() + ns(self.heal_within)
        gone = await _until(stage, self.worker, limit, lambda row: not _serves(row) or _reborn(row, before))
        if gone is None:
            window.error = f"worker {self.worker} still serves {self.heal_within:g} s after its kill"
            return
        window.proven = stage.now()
        back = await _until(stage, self.worker, limit, lambda row: _serves(row) and _reborn(row, before))
        if back is None:
            window.error = f"worker {self.worker} is not back in rotation after {self.heal_within:g} s"
            return
        window.proof["incarnation_after"] = back.get("incarnation")
        window.healed = stage.now()

    async def _strike(self, stage: Stage, window: FaultWindow) -> None:
        """Kill, phase-exact if asked for; not at all if the phase is not reached."""
        if self.when is None:
            await stage.controls.kill(self.worker)
            window.injected = stage.now()
            return
        hold = await stage.controls.hold(hold_phase(self.when), worker=self.worker)
        try:
            held = await stage.held(hold, timeout=self.within)
            if held is None:
                phase = hold_phase(self.when)
                window.error = f"no request on worker {self.worker} reached {phase} within {self.within:g} s"
                return
            window.proof["held"] = held
            await stage.controls.kill(self.worker)
            window.injected = stage.now()
        finally:
            await stage.controls.release(hold)

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Proven while it played."""


@dataclass(frozen=True, slots=True)
class FreezeWorker:
    """SIGSTOP to a worker at ``at``, SIGCONT after ``for``.

    Proof: it left the rotation. Healed: it is back there, as itself or replaced.
    """

    id: str
    worker: int
    at: Seconds
    for_: Seconds
    heal_within: Seconds = 60.0

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        return plan

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "freeze_worker", target=f"worker {self.worker}", planned=ns(self.at))

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        await stage.sleep_until(ns(self.at))
        end = ns(self.at + self.for_)
        window.proof["incarnation_before"] = (await _look(stage, self.worker)).get("incarnation")
        try:
            await stage.controls.freeze(self.worker)
            window.injected = stage.now()
            left = await _until(stage, self.worker, end, lambda row: not _serves(row))
            window.proven = stage.now() if left is not None else None
            window.proof["state_seen"] = None if left is None else left.get("state")
            await stage.sleep_until(end)
        finally:
            await stage.controls.thaw(self.worker)
            window.proof["thawed"] = stage.now()
            if window.injected is not None:
                await _to_its_end(self._heal(stage, window))

    async def _heal(self, stage: Stage, window: FaultWindow) -> None:
        limit = stage.now() + ns(self.heal_within)
        if await _until(stage, self.worker, limit, _serves) is None:
            window.error = f"worker {self.worker} is not back in rotation after {self.heal_within:g} s"
        else:
            window.healed = stage.now()

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Proven while it played."""


async def _to_its_end(healing: Coroutine[Any, Any, None]) -> None:
    """Await ``healing``; if the fault is cancelled meanwhile, for some seconds more."""
    task = asyncio.ensure_future(healing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=_HURRIED_S)
        raise
    finally:
        task.cancel()


async def _look(stage: Stage, worker: int) -> Row:
    """The worker's row of the target's state; empty if it has none at the moment."""
    state = await stage.controls.state()
    rows: list[Row] = [row for row in state["workers"] if row.get("worker") == worker]
    return rows[0] if rows else {}


async def _until(stage: Stage, worker: int, limit: int, holds: Callable[[Row], bool]) -> Row | None:
    """The first row for which ``holds`` is true; None if there is none until ``limit``."""
    while not holds(row := await _look(stage, worker)):
        if stage.now() >= limit:
            return None
        await stage.sleep_until(min(stage.now() + _LOOK_EVERY, limit))
    return row


def _serves(row: Row) -> bool:
    return row.get("state") == _IN_ROTATION


def _reborn(row: Row, before: Row) -> bool:
    return row.get("incarnation") not in (None, before.get("incarnation"))
