"""HTTP/1.1 answers from bytes, incrementally (RFC 9112). Knows no socket and no clock.

Nothing here raises for what a peer sends: a broken answer gives what came before it broke, and says
what is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from loadgen.transport import HttpRequest

MAX_HEAD = 65_536
_MOST_DIGITS = 18
"""Of a length; what has more is none."""

_HEX = frozenset(b"0123456789abcdefABCDEF")
# Sizes as servers usually write them. A look-up is faster than a strict parse, and every event needs one.
CHUNK_SIZES = {digits: size for size in range(1, 4096) for digits in (b"%x" % size, b"%X" % size)}


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1; says at what."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """Names in lower case; a repeated header's values are joined by commas."""
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """What one read gave: the head if it became complete, body bytes, whether the answer is complete.

    ``broken`` says what is wrong with the answer, "" = nothing so far; nothing more comes of it.
    """

    head: Head | None
    body: bytes
    complete: bool
    broken: str = ""


class Framing(Protocol):
    """Finds the end of one body. ``over``: it ended or is ``broken``, feed no more; ``surplus``: bytes
    came after its end; ``until_close``: the end of the connection is its end."""

    over: bool
    broken: str
    surplus: bool
    until_close: bool

    def feed(self, data: bytes) -> bytes:
        """The body bytes that ``data`` brought, transfer coding removed."""


class ResponseParser:
    """Parses one answer. Feed it reads cut anywhere; once ``framing`` is there, that can be fed directly."""

    def __init__(self) -> None:
        self.framing: Framing | None = None
        self._buffer = bytearray()
        self._interim = False

    def feed(self, data: bytes) -> Piece:
        head = None
        framing = self.framing
        if framing is None:
            self._buffer += data
            try:
                head = self._head()
            except ProtocolError as error:
                return Piece(None, b"", False, str(error))
            framing = self.framing
            if framing is None:
                return Piece(None, b"", False)
            data = bytes(self._buffer)
        body = framing.feed(data)
        return Piece(head, body, framing.over and not framing.broken, framing.broken)

    def eof(self) -> bool:
        """The connection ended; True if that is how the answer was meant to end."""
        return self.framing is not None and self.framing.until_close

    @property
    def surplus(self) -> bool:
        """Bytes after the end of the answer: the connection is of no more use."""
        return self.framing is not None and self.framing.surplus

    @property
    def untouched(self) -> bool:
        """Not a byte has come."""
        return self.framing is None and not self._buffer and not self._interim

    def _head(self) -> Head | None:
        """The head if it is complete; then the buffer begins with the body."""
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            version, status = _status_line(lines[0])
            if not 100 <= status < 200:  # else an interim answer: the real one follows
                return self._final(version, status, _fields(lines[1:]))
            self._interim = True
        if len(self._buffer) > MAX_HEAD:
            raise ProtocolError(f"no end of the headers within {MAX_HEAD} bytes")
        return None

    def _final(self, version: bytes, status: int, headers: Mapping[str, str]) -> Head:
        options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
        keep_alive = "close" not in options and (version != b"HTTP/1.0" or "keep-alive" in options)
        self.framing = _framing(status, headers)
        return Head(status, headers, keep_alive and not self.framing.until_close)


class ChunkScanner:
    """Removes chunked transfer coding."""

    until_close = False

    def __init__(self) -> None:
        self.over = False
        self.broken = ""
        self.surplus = False
        self.between = True  # the next byte is the first one of a chunk's size
        self._held = b""  # a line whose end has not come yet
        self._left = 0  # bytes still to come of this chunk, its line end included
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        if not self.between:
            return self._scan(data, [])
        # Mostly a read is one event, and an event is one chunk.
        body: list[bytes] = []
        at, length = 0, len(data)
        while (end := data.find(b"\r\n", at, at + 8)) > 0:
            size = CHUNK_SIZES.get(data[at:end])
            if size is None:
                break
            after = end + size + 4
            if after > length or data[after - 2 : after] != b"\r\n":
                break
            own = data[end + 2 : after - 2]
            if after == length:
                return b"".join([*body, own]) if body else own
            body.append(own)
            at = after
        return self._scan(data[at:], body)

    def _scan(self, data: bytes, body: list[bytes]) -> bytes:
        data, self._held = self._held + data, b""
        at = 0
        try:
            while at < len(data) and not self.over:
                at = self._rest(data, at, body) if self._left else self._line(data, at)
        except ProtocolError as error:
            self.over, self.broken = True, str(error)
        self.surplus = self.over and at < len(data)
        self.between = not (self._left or self._held or self._trailer or self.over)
        return b"".join(body)

    def _rest(self, data: bytes, at: int, body: list[bytes]) -> int:
        """Of a chunk; the last two bytes of it must be its line end. Returns where to go on."""
        own = data[at : at + max(0, self._left - 2)]
        if own:
            body.append(own)
            self._left -= len(own)
            at += len(own)
        while at < len(data) and 0 < self._left <= 2:
            if data[at] != b"\n\r"[self._left - 1]:
                raise ProtocolError("a chunk is longer than its size")
            at, self._left = at + 1, self._left - 1
        return at

    def _line(self, data: bytes, at: int) -> int:
        """A chunk's size, or a trailer. Returns where to go on."""
        end = data.find(b"\r\n", at, at + MAX_HEAD + 2)
        if end < 0:
            if len(data) - at > MAX_HEAD:
                raise ProtocolError(f"no line end within {MAX_HEAD} bytes of a chunk header")
            self._held = data[at:]
            return len(data)
        if self._trailer:
            self.over = end == at
        elif size := _size(data[at:end]):
            self._left = size + 2
        else:
            self._trailer = True
        return end + 2


class CountedBody:
    """A body of known length."""

    until_close = False

    def __init__(self, length: int) -> None:
        self.over = length == 0
        self.broken = ""
        self.surplus = False
        self._left = length

    def feed(self, data: bytes) -> bytes:
        own = data[: self._left]
        self._left -= len(own)
        self.over = self._left == 0
        self.surplus = len(own) < len(data)
        return own


class UntilClose:
    """A body that only the end of its connection ends."""

    until_close = True

    def __init__(self) -> None:
        self.over = False
        self.broken = ""
        self.surplus = False

    def feed(self, data: bytes) -> bytes:
        return data


def _framing(status: int, headers: Mapping[str, str]) -> Framing:
    if status in (204, 304):
        return CountedBody(0)
    codings = headers.get("transfer-encoding", "").lower()
    if codings:
        return ChunkScanner() if codings.rpartition(",")[2].strip() == "chunked" else UntilClose()
    if "content-length" not in headers:
        return UntilClose()
    lengths = {length.strip() for length in headers["content-length"].split(",")}
    (length, *others) = lengths
    if others or not (length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS):
        raise ProtocolError(f"content-length is {headers['content-length'][:40]!r}")
    return CountedBody(int(length))


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip(b" \t")
    if not 0 < len(digits) <= 15 or not _HEX.issuperset(digits):
        raise ProtocolError(f"chunk size is {digits[:40]!r}")
    return int(digits, 16)


def _status_line(line: bytes) -> tuple[bytes, int]:
    parts = line.split(b" ", 2)
    if (
        len(parts) < 2
        or not parts[0].startswith(b"HTTP/1.")
        or not (len(parts[1]) == 3 and parts[1].isdigit())
    ):
        raise ProtocolError(f"the answer begins with {line[:60]!r}, not with an HTTP/1.1 status line")
    return parts[0], int(parts[1])


def _fields(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    key = ""
    for line in lines:
        if key and line[:1] in (b" ", b"\t"):  # the old way to go on with a value in another line
            headers[key] = f"{headers[key]} {line.decode('latin-1').strip()}".strip()
            continue
        key, text = _field(line)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


@functools.lru_cache(maxsize=256)
def _field(line: bytes) -> tuple[str, str]:
    """Its name in lower case, and its value. A server says most of them again with each answer."""
    name, colon, value = line.decode("latin-1").partition(":")
    if not colon:
        raise ProtocolError(f"header without a colon: {line[:60]!r}")
    return name.strip().lower(), value.strip()


def encode(request: HttpRequest, host: str, prefix: str = "") -> bytes:
    """The bytes of a request. ``prefix`` goes before its path."""
    lines = [f"{request.method} {prefix}{request.path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines.append(f"Content-Length: {len(request.body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a request header contains a line break")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body
