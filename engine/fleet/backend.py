"""The seams around the gateway: what the HTTP layer asks of it, and how it reaches its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.messages import FromWorker, ToWorker
from engine.request import Finish, Logprob, Miss, Sampling, Tokens


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation as the HTTP layer understood it; limits and class are the gateway's to judge."""

    tokens: Tokens[int]
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    class_: str = "default"
    tenant: str = "default"
    session: str | None = None
    client_id: str = ""
    cache_salt: str | None = None
    deadline_s: float | None = None
    n: int = 1
    adapter: str | None = None
    """Name of a LoRA adapter, None = the base model."""
    retention: str | None = None
    """Name of a life in ``cache.retention``."""
    received: int = 0
    """ns on the engine's clock when the request's last byte was read."""


class Rejected(Exception):
    """Refused at submit, before anything ran: an HTTP status with a code that a program can read."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        """Seconds, for the Retry-After header."""


@dataclass(frozen=True, slots=True)
class Generated:
    """New output tokens of one choice of a request, in order; ``finish`` when this choice has ended while
    others go on."""

    ids: tuple[int, ...]
    choice: int = 0
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The one terminal event of a submitted request."""

    finish: Finish
    prompt: int
    hits: Mapping[str, int]
    """Prompt tokens read from cache, by tier."""
    generated: int
    out_max: int
    worker: int | None = None
    epoch: int | None = None
    attempt: int = 1
    config_id: str = ""
    """Of the engine's configuration when it ended."""
    created_cache: int = 0
    retention: float | None = None
    """Seconds that its cached blocks are promised to stay; None = no longer than any (ENGINE E15)."""
    misses: tuple[Miss, ...] = ()
    """Why prompt tokens were not read from cache: not for clients, unless ``expose_miss_reasons`` (E18)."""
    code: str | None = None
    """``worker_lost``, ``deadline_exceeded``, ``step_failed`` .. when finish is ERROR or EXPIRED."""
    message: str | None = None
    retriable: bool = False
    times: dict[str, int | None] = field(default_factory=dict)
    """ns: received, queued, dispatched, first_scheduled, prefill_done, finished."""

    @property
    def cached(self) -> int:
        """Prompt tokens read from cache."""
        return sum(self.hits.values())


StreamEvent = Generated | Ended
Listener = Callable[[StreamEvent], None]


class Backend(Protocol):
    """The gateway as the HTTP layer sees it. All calls are made on one event loop."""

    def admits(self, class_: str, tenant: str = "default") -> None:
        """Raises Rejected if a request of this class and tenant would be refused whatever its prompt is:
        asked before the prompt is tokenised (ENGINE E32). Promises nothing; ``submit`` checks again."""

    def submit(self, ask: Ask, listener: Listener) -> tuple[int, int]:
        """Queue a request; returns (id, out_max). Raises Rejected. The listener gets Generated events
        and then exactly one Ended, none of them before this returns."""

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED, choice: int | None = None) -> None:
        """Idempotent. STOP = the text layer saw a stop string; the request ends ``stop``. With a ``choice``
        that one alone ends, and no more is heard of it; the last one that ends so ends the request."""

    def wrote(self, id: int, now: int) -> None:
        """The HTTP layer wrote output bytes of this request (truth: first_write, last_write)."""


class WorkerPool(Protocol):
    """The workers, wherever they live: in this process in virtual time, else processes behind sockets.

    A pool reports through the callbacks that ``start`` is given, on the same loop: every message, and
    the loss of a worker (connection closed or process gone). It replaces a lost worker by itself, with
    backoff; the new incarnation announces itself with Hello.
    """

    async def start(
        self, on_message: Callable[[int, FromWorker], None], on_lost: Callable[[int, str], None]
    ) -> None: ...
    def send(self, worker: int, message: ToWorker) -> None:
        """Never blocks; silently nothing if the worker is gone (on_lost tells)."""

    async def kill(self, worker: int) -> None:
        """SIGKILL, or its equal in virtual time."""

    async def freeze(self, worker: int) -> None: ...
    async def thaw(self, worker: int) -> None: ...
    def describe(self) -> list[dict[str, Any]]:
        """Per worker: ``{"worker", "pid", "incarnation", "alive"}``."""

    async def stop(self) -> None:
        """End every worker; none is left when this returns."""
