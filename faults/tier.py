"""A slower tier of the cache that fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from faults.fault import FaultWindow, Seen, Stage
from faults.when import ns
from loadgen.plan import Plan, Seconds

_LOOK_EVERY = ns(0.25)
_LOST: dict[str, str] = {"full": "spills_lost", "corrupt": "fetches_lost"}
"""What the workers count while it fails so."""


@dataclass(frozen=True, slots=True)
class BreakDisk:
    """The disk tier of all workers fails from ``at`` on for ``for``: ``full`` loses what is spilled to it,
    ``corrupt`` what is read from it. Both cost hits and nothing else.

    Proof: a worker has lost a block by it. Healed: it was told to work again, and is not told otherwise.
    """

    id: str
    how: Literal["full", "corrupt"]
    at: Seconds
    for_: Seconds

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        return plan

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "break_disk", target="disk", planned=ns(self.at))

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        await stage.sleep_until(ns(self.at))
        end = ns(self.at + self.for_)
        before = await self._lost(stage)
        try:
            await stage.controls.tier(self.how)
            window.injected = stage.now()
            while stage.now() < end:
                await stage.sleep_until(min(stage.now() + _LOOK_EVERY, end))
                await self._look(stage, window, before)
        finally:
            await stage.controls.tier(None)
            if window.injected is not None:
                await self._heal(stage, window, before)

    async def _heal(self, stage: Stage, window: FaultWindow, before: dict[str, int]) -> None:
        """What it lost until now is known with the next heartbeats."""
        rows = (await stage.controls.state())["workers"]
        if not any((row.get("disk") or {}).get("fault") for row in rows):
            window.healed = stage.now()
        await self._look(stage, window, before)

    async def _look(self, stage: Stage, window: FaultWindow, before: dict[str, int]) -> None:
        lost = await self._lost(stage)
        blocks = sum(max(0, count - before.get(life, 0)) for life, count in lost.items())
        window.proof["blocks_lost"] = max(blocks, window.proof.get("blocks_lost", 0))
        if blocks and window.proven is None:
            window.proven = stage.now()

    async def _lost(self, stage: Stage) -> dict[str, int]:
        """By incarnation: how many blocks it has lost this way."""
        rows: list[dict[str, Any]] = (await stage.controls.state())["workers"]
        disks = {str(row.get("incarnation")): row.get("disk") for row in rows}
        return {life: int(disk[_LOST[self.how]]) for life, disk in disks.items() if disk}

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Proven while it played."""
