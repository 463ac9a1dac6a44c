"""Plays the faults of a run beside its load, and sees that each is healed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from faults.fault import Fault, FaultWindow, Seen, Stage
from loadgen.plan import Plan
from loadgen.streams import stream


def edit(faults: Sequence[Fault], plan: Plan, seed: int) -> Plan:
    """Door 1: every fault edits the plan, in the scenario's order.

    Each draws from a stream named by its id, so adding one fault changes no draw of another.
    """
    for fault in faults:
        plan = fault.edit(plan, stream(seed, "fault", fault.id))
    return plan


class Conductor:
    """One task per fault for as long as its ``async with`` lasts.

    ``windows`` fills up while they play; an error of a fault ends in its window and never in the run.
    The block's normal end lets the faults finish (``settle``); an exception, a cancellation or Ctrl-C
    cancels them, and their healing is waited for before it goes on.
    """

    def __init__(self, faults: Sequence[Fault], stage: Stage, grace_s: float = 90.0) -> None:
        self._faults = tuple(faults)
        self._stage = stage
        self._grace_s = grace_s
        self._tasks: list[asyncio.Task[None]] = []
        self.windows = [fault.window() for fault in self._faults]

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._play(fault, window), name=f"fault {fault.id}")
            for fault, window in zip(self._faults, self.windows, strict=True)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()
        else:
            await self.stop()

    async def settle(self) -> None:
        """Let the faults finish, for at most the grace; then stop them. Cancelled: stop them at once."""
        self._stage.over.set()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._grace_s)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel what still plays and wait until it has healed. Idempotent.

        A cancellation during this wait (a second Ctrl-C) gives the wait up and leaves by itself."""
        playing = [task for task in self._tasks if not task.done()]
        for task in playing:
            task.cancel()
        if playing:
            await asyncio.wait(playing)

    async def _play(self, fault: Fault, window: FaultWindow) -> None:
        try:
            await fault.play(self._stage, window)
        except asyncio.CancelledError:
            window.error = window.error or "stopped before it was over"
            raise
        except Exception as error:
            window.error = "; ".join(_said(error))

    def prove(self, seen: Seen) -> list[FaultWindow]:
        """After the run: let every fault look for its proof. Returns the windows."""
        for fault, window in zip(self._faults, self.windows, strict=True):
            fault.prove(window, seen)
        return self.windows


def _said(error: BaseException) -> list[str]:
    """What one exception says, or each of a group's, once."""
    if isinstance(error, BaseExceptionGroup):
        return list(dict.fromkeys(line for inner in error.exceptions for line in _said(inner)))
    return [f"{type(error).__name__}: {error}" if str(error) else type(error).__name__]
