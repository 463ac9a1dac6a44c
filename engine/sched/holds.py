"""Breakpoints: a request pauses exactly at a phase, keeping its blocks, while others run on (E48)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Held, Hold
from engine.sched.job import Job
from engine.sched.sequence import Sequence

LAPSES_AFTER_NS = 10_000_000_000
"""A request is held at most so long."""


NUMBERED = ("prefill", "transfer", "decode")


@dataclass(slots=True)
class _Caught:
    job: Job
    lapses: int


class Holds:
    """The holds of one worker: waiting for a request to reach their phase, or having caught one."""

    def __init__(self) -> None:
        self._waiting: dict[int, Hold] = {}
        self._caught: dict[int, _Caught] = {}
        self._reports: list[Held] = []

    def add(self, hold: Hold) -> None:
        """Raises ValueError if the phase is none that a worker knows."""
        check_phase(hold.phase)
        self._waiting[hold.hold_id] = hold

    def release(self, hold_id: int) -> None:
        """Idempotent; also withdraws a hold that has caught nobody."""
        self._waiting.pop(hold_id, None)
        if caught := self._caught.pop(hold_id, None):
            caught.job.held = None

    def reached(self, sequence: Sequence, phase: str, now: int) -> bool:
        """Pause its request, all choices of it, if a hold waits for it here; True if it is paused now."""
        if sequence.job.held is not None:
            return True
        for hold in self._waiting.values():
            if hold.phase == phase and hold.request in (None, sequence.request.client_id):
                del self._waiting[hold.hold_id]
                self._caught[hold.hold_id] = _Caught(sequence.job, now + LAPSES_AFTER_NS)
                sequence.job.held = hold.hold_id
                self._reports.append(Held(hold.hold_id, sequence.id, sequence.request.client_id, phase))
                return True
        return False

    def forget(self, job: Job) -> None:
        """The request has ended."""
        if job.held is not None:
            self.release(job.held)

    def lapse(self, now: int) -> None:
        """Let go of whoever has been held long enough."""
        for hold_id in [h for h, caught in self._caught.items() if caught.lapses <= now]:
            self.release(hold_id)

    @property
    def waiting(self) -> bool:
        """True while some hold has caught nobody yet."""
        return bool(self._waiting)

    @property
    def caught(self) -> bool:
        """True while somebody is paused."""
        return bool(self._caught)

    @property
    def next_lapse(self) -> int | None:
        return min((caught.lapses for caught in self._caught.values()), default=None)

    def take_reports(self) -> list[Held]:
        reports, self._reports = self._reports, []
        return reports


def check_phase(phase: str) -> None:
    """Raise ValueError unless ``phase`` is ``admitted``, ``prefill:k``, ``transfer:k`` or ``decode:n``."""
    name, _, number = phase.partition(":")
    if phase == "admitted" or (name in NUMBERED and number.isdigit() and int(number) > 0):
        return
    known = ", ".join(f"{name}:k" for name in NUMBERED)
    raise ValueError(f"hold phase {phase!r}: a worker holds at admitted, {known}, with k from 1")
