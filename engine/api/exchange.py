"""One HTTP exchange as the API layer sees it, whoever carries the bytes: a socket, or nothing at all in
virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api.answers import dump
from engine.api.errors import ApiError

log = logging.getLogger(__name__)

Headers = tuple[tuple[str, str], ...]
Abort = Callable[[], None]
"""The client is gone. Idempotent; nothing is written to the sink afterwards."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """``headers`` by lower-case name; ``path`` without the query string."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Sink(Protocol):
    """Where an answer goes: ``start`` once, ``write`` any number of times, ``end`` once."""

    def start(self, status: int, headers: Headers) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...


def answer_bytes(
    sink: Sink, body: bytes, kind: str = "application/json", status: int = 200, headers: Headers = ()
) -> None:
    """A whole answer at once."""
    sink.start(status, (("Content-Type", kind), ("Content-Length", str(len(body))), *headers))
    sink.write(body)
    sink.end()


def answer_json(sink: Sink, value: Any, status: int = 200, headers: Headers = ()) -> None:
    answer_bytes(sink, dump(value), status=status, headers=headers)


def answer_error(sink: Sink, error: ApiError, headers: Headers = ()) -> None:
    if error.retry_after is not None:
        headers = (*headers, ("Retry-After", str(error.retry_after)))
    answer_json(sink, error.body(), error.status, headers)


@contextmanager
def answering(request: ApiRequest, sink: Sink, headers: Headers) -> Iterator[None]:
    """Whatever goes wrong is the answer: one request ends, never the process (ENGINE E2)."""
    try:
        yield
    except ApiError as error:
        answer_error(sink, error, headers)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        answer_error(sink, ApiError(500, "internal_error", "internal error"), headers)
