"""The plan: every send of a run, fixed before time zero (JOINTS 2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.streams import stream

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

    @property
    def load_ns(self) -> int:
        """Length of the time in which requests are due; then comes the drain."""
        return round((self.warmup + self.window + self.cooldown) * 1e9)

    @property
    def window_ns(self) -> tuple[int, int]:
        """[a, b) in ns since t0."""
        return round(self.warmup * 1e9), round((self.warmup + self.window) * 1e9)

    def of(self, due_ns: int) -> PhaseName:
        """The phase of a due time (MEASUREMENT C21)."""
        a, b = self.window_ns
        return "warmup" if due_ns < a else "window" if due_ns < b else "cooldown"


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

    role: Literal["system", "user", "assistant", "tool"]
    tokens: int
    text_key: str = ""
    answer_of: int | None = None
    stamp: float | None = None
    stamp_at: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    """Runs (first id, count) of prefix blocks of ``block_tokens`` tokens, as in a trace: the text is that
    of its blocks, the last one cut to ``tokens``. Equal ids under one ``text_key`` give equal text."""
    block_tokens: int = 0
    call: bool = False
    """An assistant message that calls a tool; the ``tool`` message after it is the tool's result."""


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
    adapter: str | None = None
    fresh: bool = False
    """A later turn that begins anew (closed loop): it comes ``after_ns`` after its parent's end, however
    that one ended."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A session about to be planned: the ``index``-th of its load, due at ``due_ns`` (since t0)."""

    index: int
    due_ns: int
    first_id: int
    """Id of its first shot; its turn k gets ``first_id + k``."""
    key: str
    """Prefix of the text keys of its load."""
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session; ``after_ns`` = think time after the answer before it (not the first)."""

    prompt: tuple[Part, ...]
    n_out: int
    after_ns: int | None = None
    parent: int | None = None
    """Index of the turn of this session that it follows; None = the one before it."""
    branch: int = 0
    lineage: int = 0
    """0 = the session itself; k > 0 = its k-th sub-agent, which is planned as a session of its own on the
    same slice (data rule f)."""
    adapter: str | None = None


class Arrival(Protocol):
    """When sessions start (loadgen.arrivals)."""

    def due_times(self, span: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """ns since the start of the span, sorted, each in [0, span); ``span`` in s."""

    def expected(self, span: float) -> float:
        """How many sessions about start in ``span`` s: to refuse what no plan could hold."""


class Workload(Protocol):
    """What a session sends (loadgen.workload)."""

    def session(self, opening: Opening) -> tuple[Turn, ...]: ...


@dataclass(frozen=True, slots=True)
class Load:
    """One line of a scenario's ``load``: who comes when, and asks for what."""

    class_: str
    arrival: Arrival
    workload: Workload
    tenant: str = "default"
    rank: int = 0


@dataclass(frozen=True)
class Plan:
    """Shots in order of id; ids are 0..n-1. The digest covers all that decides what is sent when."""

    shots: tuple[Shot, ...]
    phases: Phases
    seed: int

    @classmethod
    def make(cls, loads: Sequence[Load], phases: Phases, seed: int, slices: int = 1) -> Plan:
        """Draw every send from one seed. A session stays on one of ``slices`` load processes."""
        shots: list[Shot] = []
        for session, (due_ns, index, number) in enumerate(_openings(loads, phases, seed)):
            rng = stream(seed, "session", number, index)
            opening = Opening(index, due_ns, len(shots), f"{seed}/{number}", rng)
            shots += _session(loads[number], opening, session, phases.of(due_ns), session % slices)
        return cls(tuple(shots), phases, seed)

    def with_shots(self, shots: tuple[Shot, ...]) -> Plan:
        return replace(self, shots=shots)

    def of_slice(self, slice: int) -> tuple[Shot, ...]:
        return tuple(shot for shot in self.shots if shot.slice == slice)

    @property
    def digest(self) -> str:
        """Hex of blake2b-128 over seed, phases and every field of every shot."""
        digest = blake2b(digest_size=16)
        digest.update(json.dumps([self.seed, asdict(self.phases)], sort_keys=True).encode())
        for shot in self.shots:
            digest.update(json.dumps(asdict(shot), sort_keys=True).encode())
        return digest.hexdigest()


def _openings(loads: Sequence[Load], phases: Phases, seed: int) -> list[tuple[int, int, int]]:
    """(due ns, index within its load, number of its load) of every session, in order of due time."""
    span = phases.warmup + phases.window + phases.cooldown
    return sorted(
        (int(due), index, number)
        for number, load in enumerate(loads)
        for index, due in enumerate(load.arrival.due_times(span, stream(seed, "arrival", number)))
    )


def _session(load: Load, at: Opening, session: int, phase: PhaseName, slice: int) -> list[Shot]:
    return [
        Shot(
            id=at.first_id + k,
            class_=load.class_,
            phase=phase,
            session=session,
            turn=k,
            prompt=turn.prompt,
            n_in_asked=sum(part.tokens for part in turn.prompt),
            n_out_asked=turn.n_out,
            due_ns=at.due_ns if k == 0 else None,
            after_ns=turn.after_ns if k else None,
            parent=at.first_id + k - 1 if k else None,
            tenant=load.tenant,
            rank=load.rank,
            slice=slice,
        )
        for k, turn in enumerate(load.workload.session(at))
    ]
