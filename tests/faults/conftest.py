"""A scripted target: faults.fault.Controls and LoadControls without anything behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from faults.fault import Stage
from loadgen.clock import Clock, run_virtual, sleep_until
from loadgen.plan import Part, Phases, Plan, Shot

Call = tuple[Any, ...]


class ScriptedTarget:
    """Remembers what it was told. A killed worker is back after ``back_after`` s, a frozen one ejected
    after 2 s; ``reach`` maps a hold's (phase, request or worker) to the second when something is held;
    ``living`` maps a request's id to the second when the target lets go of it."""

    def __init__(self, clock: Clock, workers: int = 2, back_after: float = 3.0) -> None:
        self.clock = clock
        self.back_after = back_after
        self.calls: list[Call] = []
        self.reach: dict[tuple[str, Any], float] = {}
        self.failing: set[str] = set()
        self.living: dict[str, float] = {}
        self.lost = 0
        self.workers = [
            {"worker": k, "state": "in_rotation", "incarnation": f"{k}.1", "pid": 100 + k}
            for k in range(workers)
        ]
        self._holds: list[tuple[str, Any]] = []
        self._frozen: dict[int, int] = {}
        self._back: dict[int, int] = {}

    def _note(self, *call: Any) -> None:
        self.calls.append((round(self.clock() / 1e9, 3), *call))
        if call[0] in self.failing:
            raise RuntimeError(f"{call[0]} refused")

    async def state(self) -> dict[str, Any]:
        for row in self.workers:
            k = row["worker"]
            if k in self._back and self.clock() >= self._back[k]:
                row |= {"state": "in_rotation", "incarnation": f"{k}.2"}
            if k in self._frozen and self.clock() - self._frozen[k] >= 2e9:
                row["state"] = "ejected"
        alive = [{"id": id} for id, end in self.living.items() if self.clock() < end * 1e9]
        return {"workers": [dict(row) for row in self.workers], "requests": alive}

    async def audit(self) -> dict[str, Any]:
        return {"invariants": [], "workers": []}

    async def kill(self, worker: int) -> None:
        self._note("kill", worker)
        self.workers[worker] |= {"state": "gone", "incarnation": None}
        self._back[worker] = self.clock() + round(self.back_after * 1e9)

    async def freeze(self, worker: int) -> None:
        self._note("freeze", worker)
        self._frozen[worker] = self.clock()

    async def thaw(self, worker: int) -> None:
        self._note("thaw", worker)
        self._frozen.pop(worker, None)
        self.workers[worker]["state"] = "in_rotation"

    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int:
        self._note("hold", phase, request if request is not None else worker)
        self._holds.append((phase, request if request is not None else worker))
        return len(self._holds) - 1

    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None:
        at = self.reach.get(self._holds[hold_id])
        if at is None or at > self.clock() / 1e9 + timeout:
            await asyncio.sleep(timeout)
            return None
        await sleep_until(round(at * 1e9), self.clock)
        return {"request": "r", "worker": 1, "phase": self._holds[hold_id][0]}

    async def release(self, hold_id: int) -> None:
        self._note("release", *self._holds[hold_id])

    async def tier(self, disk: str | None) -> None:
        self._note("tier", disk)
        for row in self.workers:
            row["disk"] = {"fault": disk, "spills_lost": self.lost, "fetches_lost": 0}

    async def truth(self) -> list[dict[str, Any]]:
        return []

    def cancel(self, shot: int) -> None:
        self._note("cancel", shot)

    def request_id(self, shot: int) -> str:
        return f"r{shot}"


def make_plan(n: int = 20, **changes: Any) -> Plan:
    """``n`` one-turn sessions of class chat, one a second, with a shared system text."""
    shots = tuple(
        Shot(
            id=k,
            class_="chat",
            phase="window",
            session=k,
            turn=0,
            prompt=(Part("system", 100, "s"), Part("user", 10, f"u{k}")),
            n_in_asked=110,
            n_out_asked=16,
            due_ns=k * 10**9,
            **changes,
        )
        for k in range(n)
    )
    return Plan(shots, Phases(window=30.0, drain=10.0), seed=1)


Body = Callable[[Stage, ScriptedTarget], Coroutine[Any, Any, Any]]


@pytest.fixture
def plan() -> Plan:
    return make_plan()


@pytest.fixture
def on_stage() -> Callable[[Plan, Body], Any]:
    """Run a body in virtual time with a stage whose target is scripted."""

    def run(plan: Plan, body: Body) -> Any:
        async def main(clock: Clock) -> Any:
            target = ScriptedTarget(clock)
            stage = Stage(plan, target, target, clock, lambda at: sleep_until(at, clock))
            return await body(stage, target)

        return run_virtual(main)

    return run
