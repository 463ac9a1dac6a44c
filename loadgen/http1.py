"""HTTP/1.1 answers from bytes, incrementally (RFC 9112). Knows no socket and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from loadgen.transport import HttpRequest

MAX_HEAD = 65_536


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1; says at what."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """Names in lower case; a repeated header's values are joined by commas."""
    keep_alive: bool


class _State(StrEnum):
    HEAD = "head"
    SIZE = "chunk size"
    CHUNK = "chunk"
    CHUNK_END = "end of chunk"
    TRAILER = "trailer"
    LENGTH = "body"
    UNTIL_CLOSE = "body until close"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one read gave: the head if it became complete, body bytes, whether the answer is complete."""

    head: Head | None
    body: bytes
    complete: bool


class ResponseParser:
    """Parses one answer. `feed` takes reads in any pieces; transfer coding is removed."""

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._buffer = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Piece:
        """Raises ProtocolError."""
        self._buffer += data
        head: Head | None = None
        body: list[bytes] = []
        while self._state is not _State.DONE:
            before = self._state, len(self._buffer)
            if self._state is _State.HEAD:
                head = self._head() or head
            else:
                self._body(body)
            if (self._state, len(self._buffer)) == before:
                break
        return Piece(head, b"".join(body), self._state is _State.DONE)

    def eof(self) -> bool:
        """The connection ended; True if that is how the answer was meant to end."""
        return self._state is _State.UNTIL_CLOSE

    @property
    def surplus(self) -> bool:
        """Bytes after the end of the answer: the connection is of no more use."""
        return bool(self._buffer)

    def _head(self) -> Head | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError(f"no end of the headers within {MAX_HEAD} bytes")
            return None
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, status = _status_line(lines[0])
        if 100 <= status < 200:
            return None  # an interim answer: the real one follows
        headers = _fields(lines[1:])
        options = headers.get("connection", "").lower()
        keep_alive = "close" not in options and (version == b"HTTP/1.1" or "keep-alive" in options)
        self._choose_framing(status, headers)
        return Head(status, headers, keep_alive and self._state is not _State.UNTIL_CLOSE)

    def _choose_framing(self, status: int, headers: Mapping[str, str]) -> None:
        if status in (204, 304):
            self._state = _State.DONE
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._state = _State.SIZE
        elif "content-length" in headers:
            length = headers["content-length"]
            if not length.isdigit():
                raise ProtocolError(f"content-length is {length[:40]!r}")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self._state = _State.UNTIL_CLOSE

    def _body(self, body: list[bytes]) -> None:
        match self._state:
            case _State.UNTIL_CLOSE:
                body.append(bytes(self._buffer))
                self._buffer.clear()
            case _State.LENGTH | _State.CHUNK:
                self._counted(body)
            case _State.SIZE:
                self._size()
            case _State.CHUNK_END:
                if len(self._buffer) >= 2:
                    if self._line() != b"":
                        raise ProtocolError("a chunk is longer than its size")
                    self._state = _State.SIZE
            case _State.TRAILER:
                if self._line() == b"":
                    self._state = _State.DONE

    def _counted(self, body: list[bytes]) -> None:
        part = bytes(self._buffer[: self._left])
        del self._buffer[: len(part)]
        self._left -= len(part)
        if part:
            body.append(part)
        if not self._left:
            self._state = _State.DONE if self._state is _State.LENGTH else _State.CHUNK_END

    def _size(self) -> None:
        line = self._line()
        if line is None:
            return
        digits = line.partition(b";")[0].strip()
        try:
            self._left = int(digits, 16)
        except ValueError:
            raise ProtocolError(f"chunk size is {digits[:40]!r}") from None
        self._state = _State.CHUNK if self._left else _State.TRAILER

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ProtocolError(f"no line end within {MAX_HEAD} bytes of a chunk header")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _status_line(line: bytes) -> tuple[bytes, int]:
    parts = line.split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise ProtocolError(f"the answer begins with {line[:60]!r}, not with an HTTP/1.1 status line")
    return parts[0], int(parts[1])


def _fields(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise ProtocolError(f"header without a colon: {line[:60]!r}")
        key, text = name.strip().lower(), value.strip()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def encode(request: HttpRequest, host: str, prefix: str = "") -> bytes:
    """The bytes of a request. ``prefix`` goes before its path."""
    lines = [f"{request.method} {prefix}{request.path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines.append(f"Content-Length: {len(request.body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a request header contains a line break")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body
