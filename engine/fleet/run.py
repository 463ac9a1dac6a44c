"""One request at the gateway, from submit to its one terminal event, and what the gateway asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.fleet.backend import Ask, StreamEvent
from engine.fleet.router import Choice
from engine.messages import ToWorker
from engine.request import Finish, MissReason, Request
from engine.sched.orders import Waiting


@dataclass(frozen=True, slots=True)
class Send:
    """Say something to a worker."""

    worker: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the listener of a request."""

    id: int
    event: StreamEvent


Action = Send | Emit


class Stage(StrEnum):
    """Where a request is, as the gateway sees it."""

    QUEUED = "queued"
    PAUSED = "paused"
    """Waits between two attempts, outside the queue."""
    DISPATCHED = "dispatched"
    ENDED = "ended"


Facts = tuple[tuple[int, MissReason | None], ...]
"""Run-length coded: from this block on, what the gateway knew at the decision (engine.fleet.misses)."""


@dataclass(slots=True)
class Run:
    """``attempt`` is the number of the present or next attempt; ``failures`` counts those lost (F40)."""

    id: int
    ask: Ask
    request: Request
    """As of the first attempt; each dispatch replaces the attempt number."""
    entry: Waiting
    received: int
    queued: int
    stage: Stage = Stage.QUEUED
    attempt: int = 1
    failures: int = 0
    excluded: set[str] = field(default_factory=set)
    """Incarnations that failed it."""
    worker: int | None = None
    incarnation: str | None = None
    epoch: int | None = None
    dispatched: int | None = None
    choice: Choice | None = None
    waits_for: int | None = None
    facts: Facts = ()
    started: bool = False
    first_token: bool = False
    recalled: bool = False
    """Its worker was asked to hand it back if it has not started (F29)."""
    signed: int = 0
    """ns of the last progress or token."""
    generated: int = 0
    """Output tokens passed on to the listener."""
    to_compute: int = 0
    """Prompt tokens that were not in the cache of its worker when it was sent there."""
    computed: int = 0
    """The most prompt tokens that one of its attempts has computed."""
    charged: int = 0
    """Prompt tokens that its tenant is charged for at the moment (E29)."""
    intent: Finish | None = None
    """How it is to end: cancelled, stopped or expired before the worker said so."""
    over: set[int] = field(default_factory=set)
    """Choices that have ended before the last one: nothing that is still said of them is passed on."""
    held: bool = False
    back_since: int | None = None
    """ns when it last came back to the queue from a worker."""
    first_write: int | None = None
    last_write: int | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.id, self.attempt
