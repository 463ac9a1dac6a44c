"""At which moment of a request's life a fault strikes.

In YAML: ``queued``, ``{prefill: 1}``, ``{decode: 5}`` or ``{after: 300ms}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.plan import PlannedCancel, Seconds


@dataclass(frozen=True, slots=True)
class InPrefill:
    """After prefill chunk ``prefill``; 1 is the first. A prompt of one chunk is past its prefill then, so
    to strike *in* prefill takes prompts longer than a chunk."""

    prefill: int

    def __post_init__(self) -> None:
        if self.prefill < 1:
            raise ValueError("prefill counts chunks from 1")


@dataclass(frozen=True, slots=True)
class InDecode:
    """At output token ``decode``; 1 is the first."""

    decode: int

    def __post_init__(self) -> None:
        if self.decode < 1:
            raise ValueError("decode counts output tokens from 1")


@dataclass(frozen=True, slots=True)
class AfterSend:
    """``after`` seconds after the request was sent, whatever its phase."""

    after: Seconds


Queued = Literal["queued"]
When = Queued | InPrefill | InDecode | AfterSend
Held = Queued | InPrefill | InDecode


def hold_phase(when: Held) -> str:
    """The phase in the words of a hold (ENGINE E48)."""
    match when:
        case InPrefill(k):
            return f"prefill:{k}"
        case InDecode(n):
            return f"decode:{n}"
        case "queued":
            return "queued"


def planned_cancel(when: When) -> PlannedCancel:
    """The same moment as a column of the plan."""
    match when:
        case InPrefill(k):
            return PlannedCancel("prefill", k)
        case InDecode(n):
            return PlannedCancel("decode", n)
        case AfterSend(seconds):
            return PlannedCancel("after", ns(seconds))
        case "queued":
            return PlannedCancel("queued", 0)


def ns(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)
