"""How a planned request ended: exactly one class of MEASUREMENT C23."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.targets.reading import InBandError
from loadgen.transport import Ending
from results.record import Outcome

Limit = Literal["connect", "first_token", "between_tokens", "total"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The driver let go of an exchange before its end."""

    why: Literal["plan", "timeout", "run_end"]
    limit: Limit | None = None
    """Which limit of C28, for a timeout."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the class of an exchange depends on."""

    status: int | None
    ending: Ending | None
    done: bool
    """The stream's own terminal event was seen."""
    finished: bool
    """Every choice had its finish reason."""
    error: InBandError | None
    cut: Cut | None
    detail: str = ""


def is_answer(status: int | None) -> bool:
    """A body with this status is an answer."""
    return status is not None and 200 <= status < 300


def outcome_of(seen: Seen) -> Outcome:
    """What happened counts, not what was planned: a finished answer is completed even if a cancel or a
    timeout came after it (C29)."""
    if seen.status is not None and seen.status >= 400:
        return _http(seen)
    if seen.error is not None:
        return Outcome.EXPIRED if seen.error.code == "deadline_exceeded" else Outcome.IN_BAND_ERROR
    if is_answer(seen.status) and (seen.done or seen.finished):
        return Outcome.COMPLETED
    if seen.cut is not None:
        return _CUTS[seen.cut.why]
    return _ended(seen)


_CUTS = {
    "plan": Outcome.CANCELLED_BY_PLAN,
    "timeout": Outcome.CLIENT_TIMEOUT,
    "run_end": Outcome.CENSORED_BY_RUN_END,
}


def _http(seen: Seen) -> Outcome:
    expired = seen.status == 504 and seen.error is not None and seen.error.code == "deadline_exceeded"
    return Outcome.EXPIRED if expired else Outcome.HTTP_ERROR


def _ended(seen: Seen) -> Outcome:
    if seen.ending == "connect_error":
        return Outcome.CONNECT_ERROR
    if seen.ending == "timeout":
        return Outcome.CLIENT_TIMEOUT
    if seen.ending in ("reset", "aborted") or seen.status is None:
        return Outcome.RESET
    return Outcome.TRUNCATED
