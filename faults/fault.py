"""What a fault is, and the three doors it may use.

Door 1 edits the plan before the run. Door 2 intercepts the client through LoadControls. Door 3 pulls
a control of the target through Controls. Healing is part of the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from loadgen.plan import Plan
from results.record import Record


@dataclass(slots=True)
class FaultWindow:
    """One line of faults.jsonl (JOINTS 5); times in ns since t0, None = did not happen."""

    id: str
    type: str
    target: str
    planned: int | None = None
    injected: int | None = None
    proven: int | None = None
    healed: int | None = None
    proof: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Controls(Protocol):
    """Door 3: the verbs of the admin door (JOINTS 8). A verb that the target lacks raises
    NotImplementedError with the reason; a verb that fails raises RuntimeError."""

    async def state(self) -> dict[str, Any]:
        """``{"workers": [{"worker", "state", "incarnation", "pid", ..}], "requests": [..]}``"""

    async def audit(self) -> dict[str, Any]: ...
    async def kill(self, worker: int) -> None: ...
    async def freeze(self, worker: int) -> None: ...
    async def thaw(self, worker: int) -> None: ...
    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int:
        """Arm a breakpoint; returns its id. ``request`` is the client's request id."""

    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None:
        """Wait until something is held there: ``{"request", "worker", "phase"}``; None on timeout (s)."""

    async def release(self, hold_id: int) -> None: ...
    async def tier(self, disk: str | None) -> None:
        """Every worker's disk tier is ``full`` or ``corrupt`` from now on; None heals it."""

    async def truth(self) -> list[dict[str, Any]]:
        """All finished truth rows of JOINTS 4."""


class LoadControls(Protocol):
    """Door 2: what may be done to requests in flight."""

    def cancel(self, shot: int) -> None: ...
    def request_id(self, shot: int) -> str:
        """The X-Request-Id that the client sends for a shot."""


@dataclass(frozen=True)
class Stage:
    """What a playing fault is given. ``now()`` is ns since t0."""

    plan: Plan
    controls: Controls
    load: LoadControls
    now: Callable[[], int]
    sleep_until: Callable[[int], Any]
    """Awaitable: returns at ns since t0, never earlier."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the load has ended: what waits for a request need not wait any longer."""

    async def held(self, hold: int, timeout: float) -> dict[str, Any] | None:
        """``controls.held``, given up when the load is over."""
        waiting = asyncio.ensure_future(self.controls.held(hold, timeout))
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({waiting, over}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            over.cancel()


@dataclass(frozen=True)
class Seen:
    """What a run left behind: the evidence for proofs and drill invariants."""

    plan: Plan
    records: Sequence[Record]
    truth: Sequence[Mapping[str, Any]] | None = None
    """Rows of JOINTS 4; None for a target that tells none."""
    truth_zero: int | None = None
    """t0 on the truth's clock, in ns; None = not known, and what needs it is not judged."""
    audits: Sequence[Mapping[str, Any]] = ()
    """In the order in which they were taken; the last one at quiescence."""
    windows: Sequence[FaultWindow] = ()
    deadlines: Mapping[str, float] = field(default_factory=dict)
    """Seconds by class, of those that have one."""


class Fault(Protocol):
    """One fault. ``edit`` is door 1, pure and seeded. ``play`` runs while the load runs; it fills the
    window as things happen and must heal what it broke also when it is cancelled. ``prove`` is pure and
    comes after the run, for what only records and truth can show."""

    @property
    def id(self) -> str: ...
    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan: ...
    def window(self) -> FaultWindow: ...
    async def play(self, stage: Stage, window: FaultWindow) -> None: ...
    def prove(self, window: FaultWindow, seen: Seen) -> None: ...
