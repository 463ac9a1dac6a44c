"""The record: one row per planned request, with exactly one outcome (JOINTS 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The classes of MEASUREMENT C23. Every planned request ends in exactly one."""

    COMPLETED = "completed"
    HTTP_ERROR = "http_error"
    EXPIRED = "expired"
    IN_BAND_ERROR = "in_band_error"
    TRUNCATED = "truncated"
    RESET = "reset"
    CONNECT_ERROR = "connect_error"
    CLIENT_TIMEOUT = "client_timeout"
    CANCELLED_BY_PLAN = "cancelled_by_plan"
    DROPPED = "dropped"
    CENSORED_BY_RUN_END = "censored_by_run_end"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


CAP = "cap"
"""``error`` of what was not sent because a declared cap held it back."""
MISSING_DONE = "missing_done"
"""``warnings``: a stream that never said that it was done (C25)."""


@dataclass(slots=True)
class Record:
    """One closed request. Times in ns since t0 on one monotonic clock; None = did not happen."""

    id: int
    class_: str
    phase: str
    outcome: Outcome
    attempt: int = 1
    tenant: str = "default"
    rank: int = 0
    session: int = 0
    branch: int = 0
    turn: int = 0
    parent: int | None = None
    request_id: str = ""
    """The X-Request-Id that was sent: joins with the truth."""
    route: str = "target"
    model: str = ""
    adapter: str | None = None
    faults: list[str] = field(default_factory=list)

    due: int | None = None
    """When the request was due; also of a later attempt, so that the user's whole wait is seen."""
    retry_due: int | None = None
    """When this attempt was due, of a later attempt; None for the first."""
    dequeued: int | None = None
    start: int | None = None
    conn: int | None = None
    sent: int | None = None
    headers: int | None = None
    first_event: int | None = None
    first_token: int | None = None
    first_visible: int | None = None
    last_reasoning: int | None = None
    """Of the reasoning events up to the first visible one."""
    last_token: int | None = None
    terminal: int | None = None
    closed: int | None = None
    cap_wait: int = 0
    """ns that a declared cap held this attempt back: a part of its send lag that the client chose."""
    conn_new: bool = False
    stamp: str = "user"
    """Whose receive stamps these are: ``kernel``, ``user``, or ``mixed`` where the kernel gave only some."""
    skew_ns: int = 0
    """Bound of the error of turning kernel stamps into times on this clock."""

    event_us: list[int] = field(default_factory=list)
    """µs from first_token to each token-bearing event; the first is 0."""
    event_tokens: list[int] | None = None
    single: list[bool] | None = None
    """Which token-bearing events were the only one that their read completed; None = every one."""
    coalesced: int = 0
    """Token-bearing events after the first of their read: their times are upper bounds."""
    n_in_asked: int = 0
    n_in: int | None = None
    n_out_asked: int = 0
    n_out: int | None = None
    n_out_source: str | None = None
    """``usage``, ``ids``, ``tokenizer`` or ``events``; the last two are estimates."""
    n_reasoning: int | None = None
    k_first: int = 1
    streamed: bool = True

    prompt_total: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None

    finish: str | None = None
    http_status: int | None = None
    error: str | None = None
    timeout_limit: str | None = None
    """Which limit of C28 a client_timeout ran into."""
    retry_after_s: float | None = None
    cancel_missed: bool = False
    checks_failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
