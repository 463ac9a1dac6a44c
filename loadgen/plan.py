"""The plan: every send of a run, fixed before time zero (JOINTS 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

Seconds = Annotated[float, "s"]
Rate = Annotated[float, "1/s"]
Share = Annotated[float, "share"]

PhaseName = Literal["warmup", "window", "cooldown"]


@dataclass(frozen=True, slots=True)
class Phases:
    """Spans of due times in seconds; after the last comes a drain of at most ``drain`` s."""

    window: Seconds
    warmup: Seconds = 0.0
    cooldown: Seconds = 0.0
    drain: Seconds = 30.0


@dataclass(frozen=True, slots=True)
class PlannedCancel:
    """A scripted cancel. ``queued``/``prefill`` need a target that can hold a request at a phase;
    ``decode`` fires at output token ``at``; ``after`` fires ``at`` ns after the send."""

    kind: Literal["queued", "prefill", "decode", "after"]
    at: int


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a prompt, so described that its text can be made again.

    ``text_key`` seeds the text; equal keys and sizes give equal text. ``answer_of`` names the shot
    whose live answer stands here instead. ``stamp`` puts a clock value (s since t0 of the plan) at
    token ``stamp_at`` of the text: the slip that `accidental-reset` plays.
    """

    role: Literal["system", "user", "assistant"]
    tokens: int
    text_key: str = ""
    answer_of: int | None = None
    stamp: float | None = None
    stamp_at: int = 0


@dataclass(frozen=True, slots=True)
class Shot:
    """One thing to send. Exactly one of ``due_ns`` (since t0) and ``after_ns`` (think time after the
    parent's terminal) is set."""

    id: int
    class_: str
    phase: PhaseName
    session: int
    turn: int
    prompt: tuple[Part, ...]
    n_in_asked: int
    n_out_asked: int
    due_ns: int | None = None
    after_ns: int | None = None
    parent: int | None = None
    branch: int = 0
    tenant: str = "default"
    rank: int = 0
    cancel: PlannedCancel | None = None
    duplicate_of: int | None = None
    idempotency_key: str | None = None
    fault: str | None = None
    """Id of the fault that put this shot into the plan (a burst), or touched it (a cancel)."""
    slice: int = 0


@dataclass(frozen=True)
class Plan:
    """Shots in order of id; ids are 0..n-1. The digest covers all that decides what is sent when."""

    shots: tuple[Shot, ...]
    phases: Phases
    seed: int

    def with_shots(self, shots: tuple[Shot, ...]) -> Plan:
        return replace(self, shots=shots)
