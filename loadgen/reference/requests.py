"""HTTP/1.1 requests from bytes, incrementally, and what they ask for. Knows no socket and no clock."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

_FIELDS = re.compile(
    rb"\r\n(connection|content-length|expect|transfer-encoding|x-request-id):([^\r]*(?:\r(?!\n)[^\r]*)*)",
    re.IGNORECASE,
)
"""What we heed of a head; the first of a name counts. One pass over it costs less than looking for each."""
MAX_HEAD = 65_536
MAX_BODY = 1 << 28
_MOST_DIGITS = 4300
"""Python reads no number that is longer."""


class BadRequest(ValueError):
    """What is wrong with a request, for its 400."""


@dataclass(slots=True)
class Request:
    method: str
    path: str
    """With its query."""
    request_id: str
    """The X-Request-Id; empty without one."""
    keep_alive: bool
    length: int | None
    """Of the body as the head says it; None: it comes in chunks."""
    expects: bool
    """The client asks for ``100 Continue`` before it sends the body."""
    body: bytes = b""
    """Comes last."""


class RequestReader:
    """The requests of one connection, one after the other."""

    __slots__ = ("_begun", "_buffer", "expects")

    def __init__(self) -> None:
        self._buffer = b""
        """Without the head of what has begun."""
        self._begun: Request | None = None
        self.expects = False
        """The client waits for ``100 Continue`` before it sends the body."""

    def feed(self, data: bytes) -> Request | None:
        """The request that ``data`` completes; ``feed(b"")`` gives the one after it. Raises BadRequest."""
        self._buffer = buffer = self._buffer + data if self._buffer else data
        request = self._begun
        if request is None:
            lines, end, buffer = buffer.partition(b"\r\n\r\n")
            if not end:
                if len(lines) > MAX_HEAD:
                    raise BadRequest(f"no end of the headers within {MAX_HEAD} bytes")
                return None
            self._begun = request = _headed(lines)
            self._buffer = buffer
        length, body = request.length, None
        if length is None:
            body, length = self._chunked_body()
        elif len(buffer) >= length:
            body = buffer[:length]
        if body is None:
            self.expects = request.expects and not buffer
            return None
        request.body = body
        self._buffer, self._begun, self.expects = buffer[length:], None, False
        return request

    def keep(self, data: bytes) -> None:
        """Bytes that came before the last request was answered."""
        self._buffer += data

    @property
    def pending(self) -> bool:
        """Bytes are there that were not yet looked at."""
        return bool(self._buffer)

    def _chunked_body(self) -> tuple[bytes | None, int]:
        """The whole body and where it ends in the buffer, or None while some of it is missing."""
        body, at = bytearray(), 0
        while (line := self._buffer.find(b"\r\n", at)) >= 0:
            try:
                size = int(self._buffer[at:line].split(b";")[0], 16)
            except ValueError as error:
                raise BadRequest(f"chunk size is {self._buffer[at:line][:40]!r}") from error
            if size < 0:
                raise BadRequest(f"chunk size is {self._buffer[at:line][:40]!r}")
            if size == 0:
                end = self._buffer.find(b"\r\n\r\n", line)  # after trailers, if there are any
                return (bytes(body), end + 4) if end >= 0 else (None, 0)
            body += self._buffer[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
            if len(body) > MAX_BODY:
                raise BadRequest(f"a body of more than {MAX_BODY} bytes")
        return None, 0


def _headed(lines: bytes) -> Request:
    """Of a head, without its end. Raises BadRequest."""
    words = lines.decode("latin-1").split("\r\n", 1)[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(f"not an HTTP/1.1 request: {lines[:60]!r}")
    fields: dict[bytes, bytes] = {}
    for name, value in _FIELDS.findall(lines):
        fields.setdefault(name.lower(), value.strip())
    coding, connection = fields.get(b"transfer-encoding"), fields.get(b"connection")
    chunked = coding is not None and b"chunked" in coding.lower()
    return Request(
        words[0],
        words[1],
        fields.get(b"x-request-id", b"").decode("latin-1"),
        connection is None or b"close" not in connection.lower(),
        None if chunked else _size(fields.get(b"content-length", b"0") or b"0"),
        bool(fields.get(b"expect")),
    )


def _size(length: bytes) -> int:
    size = int(length) if length.isdigit() and len(length) <= _MOST_DIGITS else MAX_BODY + 1
    if size > MAX_BODY:
        raise BadRequest(f"content-length is {length[:40]!r}; at most {MAX_BODY}")
    return size


class Asked(NamedTuple):
    """What a generation request wants of us."""

    max_tokens: int | None
    stream: bool
    include_usage: bool


def asked(body: bytes) -> Asked:
    """What the fast parser does not take, or takes for what we refuse (a whole number of 65 bits is a float
    to it), is Python's own to judge. Raises BadRequest."""
    try:
        return _asked(orjson.loads(body))
    except (BadRequest, orjson.JSONDecodeError, RecursionError):
        return _patiently(body)


def _patiently(body: bytes) -> Asked:
    try:
        return _asked(json.loads(body))
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def _asked(payload: Any) -> Asked:
    if not isinstance(payload, dict):
        raise BadRequest("the body is not a JSON object")
    options = payload.get("stream_options")
    include = isinstance(options, dict) and bool(options.get("include_usage"))
    return Asked(_max_tokens(payload), bool(payload.get("stream")), include)


def _max_tokens(payload: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = payload.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadRequest(f"{name} must be a whole number above 0, not {value!r}")
        return int(value)
    return None
