"""The plan: every send of a run, fixed before time zero (JOINTS 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loadgen import plan_rows
from loadgen.load import Arrival, ClosedLoop, Load, Opening, Turn, Workload
from loadgen.planning import plan_shots
from loadgen.shot import Part, PhaseName, Phases, PlannedCancel, Rate, Seconds, Share, Shot

__all__ = [
    "Arrival",
    "ClosedLoop",
    "Load",
    "Opening",
    "Part",
    "PhaseName",
    "Phases",
    "Plan",
    "PlannedCancel",
    "Rate",
    "Seconds",
    "Share",
    "Shot",
    "Turn",
    "Workload",
]


@dataclass(frozen=True)
class Plan:
    """Shots in order of id; ids are 0..n-1. The digest covers all that decides what is sent when."""

    shots: tuple[Shot, ...]
    phases: Phases
    seed: int

    @classmethod
    def make(cls, loads: Sequence[Load], phases: Phases, seed: int, slices: int = 1) -> Plan:
        """Draw every send from one seed. A session with its sub-agents, and all sessions of one user of
        a closed loop, stay on one of ``slices`` load processes; each load is dealt out evenly."""
        return cls(tuple(plan_shots(loads, phases, seed, slices)), phases, seed)

    def with_shots(self, shots: tuple[Shot, ...]) -> Plan:
        return replace(self, shots=shots)

    def of_slice(self, slice: int) -> tuple[Shot, ...]:
        return tuple(shot for shot in self.shots if shot.slice == slice)

    @cached_property
    def digest(self) -> str:
        """Hex of blake2b-128 over seed, phases and every field of every shot but its slice: one plan has
        one digest, however many load processes share it."""
        return plan_rows.digest(self.shots, self.phases, self.seed)
