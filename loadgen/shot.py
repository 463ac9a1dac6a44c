"""One planned request, and the spans of time it is planned in (JOINTS 2)."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Of the time that its session opens at. A session of a closed loop opens when the one before has
    ended: here stands the earliest phase that this could be."""
    session: int
    turn: int
    """Place on its path: one more than that of the parent in the same session, 0 where a session begins."""
    prompt: tuple[Part, ...]
    n_in_asked: int
    n_out_asked: int
    due_ns: int | None = None
    after_ns: int | None = None
    parent: int | None = None
    """Id of the shot it waits for. That of a sub-agent's first turn, or of a session of a closed loop, is
    in another session."""
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
