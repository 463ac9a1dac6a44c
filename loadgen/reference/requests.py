"""HTTP/1.1 requests from bytes, incrementally, and what they ask for. Knows no socket and no clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_HEAD = 65_536
MAX_BODY = 1 << 28


class BadRequest(ValueError):
    """What is wrong with a request, for its 400."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """With its query."""
    body: bytes
    request_id: str
    """The X-Request-Id; empty without one."""
    keep_alive: bool


@dataclass(slots=True)
class _Head:
    method: str
    path: str
    lines: bytes
    lowered: bytes
    begin: int
    """Where the body begins in the buffer."""
    length: int | None
    """None: chunked."""

    def field(self, name: bytes) -> bytes:
        """The value of the header ``name``, given in lower case; empty without one."""
        at = self.lowered.find(b"\r\n" + name + b":")
        if at < 0:
            return b""
        begin = at + len(name) + 3
        end = self.lines.find(b"\r\n", begin)
        return self.lines[begin : end if end >= 0 else None].strip()


class RequestReader:
    """The requests of one connection, one after the other."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head: _Head | None = None
        self.expects = False
        """The client waits for ``100 Continue`` before it sends the body."""

    def feed(self, data: bytes) -> Request | None:
        """The request that ``data`` completes; ``feed(b"")`` gives the one after it. Raises BadRequest."""
        self._buffer = self._buffer + data if self._buffer else data
        head = self._head or self._parse_head()
        if head is None:
            return None
        self._head = head
        body, end = self._body(head)
        if body is None:
            self.expects = head.field(b"expect") != b"" and len(self._buffer) == head.begin
            return None
        self._buffer, self._head, self.expects = self._buffer[end:], None, False
        request_id = head.field(b"x-request-id").decode("latin-1")
        keep_alive = b"close" not in head.field(b"connection").lower()
        return Request(head.method, head.path, body, request_id, keep_alive)

    def keep(self, data: bytes) -> None:
        """Bytes that came before the last request was answered."""
        self._buffer += data

    @property
    def pending(self) -> bool:
        """Bytes are there that were not yet looked at."""
        return bool(self._buffer)

    def _parse_head(self) -> _Head | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadRequest(f"no end of the headers within {MAX_HEAD} bytes")
            return None
        fields = self._buffer[:end]
        words = fields.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequest(f"not an HTTP/1.1 request: {fields[:60]!r}")
        head = _Head(words[0], words[1], fields, fields.lower(), end + 4, None)
        if b"chunked" not in head.field(b"transfer-encoding").lower():
            head.length = _size(head.field(b"content-length"))
        return head

    def _body(self, head: _Head) -> tuple[bytes | None, int]:
        """The whole body and where it ends in the buffer, or None while some of it is missing."""
        if head.length is None:
            return self._chunked_body(head.begin)
        end = head.begin + head.length
        return (self._buffer[head.begin : end], end) if len(self._buffer) >= end else (None, 0)

    def _chunked_body(self, at: int) -> tuple[bytes | None, int]:
        body = bytearray()
        while (line := self._buffer.find(b"\r\n", at)) >= 0:
            try:
                size = int(self._buffer[at:line].split(b";")[0], 16)
            except ValueError as error:
                raise BadRequest(f"chunk size is {self._buffer[at:line][:40]!r}") from error
            if size == 0:
                end = self._buffer.find(b"\r\n\r\n", line)  # after trailers, if there are any
                return (bytes(body), end + 4) if end >= 0 else (None, 0)
            body += self._buffer[line + 2 : line + 2 + size]
            at = line + 2 + size + 2
            if len(body) > MAX_BODY:
                raise BadRequest(f"a body of more than {MAX_BODY} bytes")
        return None, 0


def _size(length: bytes) -> int:
    if not length:
        return 0
    if not length.isdigit() or int(length) > MAX_BODY:
        raise BadRequest(f"content-length is {length[:40]!r}; at most {MAX_BODY}")
    return int(length)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a generation request wants of us."""

    max_tokens: int | None
    stream: bool
    include_usage: bool


def asked(body: bytes) -> Asked:
    """Raises BadRequest."""
    try:
        payload = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
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
