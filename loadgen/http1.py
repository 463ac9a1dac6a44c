"""HTTP/1.1 answers from bytes, incrementally (RFC 9112). Knows no socket and no clock.

Nothing here raises for what a peer sends: a broken answer gives what came before it broke, and says
what is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadgen.bodies import MOST_LINE, ChunkScanner, CountedBody, Framing, ProtocolError, UntilClose
from loadgen.transport import HttpRequest

_MOST_DIGITS = 18
"""Of a length; what has more is none."""


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: Mapping[str, str]
    """Names in lower case; a repeated header's values are joined by commas."""
    keep_alive: bool
    block: bytes
    """As it came, its blank line included."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one read gave: the head if it became complete, body bytes, whether the answer is complete.

    ``broken`` says what is wrong with the answer, "" = nothing so far; nothing more comes of it.
    """

    head: Head | None
    body: bytes
    complete: bool
    broken: str = ""


class ResponseParser:
    """Parses one answer. Feed it reads cut anywhere; once ``framing`` is there, that can be fed directly."""

    __slots__ = ("_held", "_interim", "framing")

    def __init__(self) -> None:
        self.framing: Framing | None = None
        self._held = b""
        """A head, so far."""
        self._interim = False

    def feed(self, data: bytes) -> Piece:
        head = None
        if self.framing is None:
            try:
                head, data = self._head(self._held + data)
            except ProtocolError as error:
                return Piece(None, b"", False, str(error))
        framing = self.framing
        if framing is None:
            return Piece(None, b"", False)
        body = framing.feed(data) if data else b""
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
        return self.framing is None and not self._held and not self._interim

    def _head(self, data: bytes) -> tuple[Head | None, bytes]:
        """The head if it is complete, and the body's first bytes."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            final = _final_head(data[: end + 4])
            data = data[end + 4 :]
            if final is not None:  # else the real one follows
                head, make_framing = final
                self._held, self.framing = b"", make_framing()
                return head, data
            self._interim = True
        if len(data) > MOST_LINE:
            raise ProtocolError(f"no end of the headers within {MOST_LINE} bytes")
        self._held = data
        return None, b""


@functools.lru_cache(maxsize=64)
def _final_head(block: bytes) -> tuple[Head, Callable[[], Framing]] | None:
    """A head, and what finds the end of its body; None for an interim answer. Most heads come again, byte for
    byte, until the second of their date is over."""
    first, *lines = block[:-4].split(b"\r\n")
    version, status = _status_line(first)
    if 100 <= status < 200:
        return None
    headers = _fields(lines)
    make_framing = _framing(status, headers)
    options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    keep_alive = "close" not in options and (version != b"HTTP/1.0" or "keep-alive" in options)
    return Head(status, headers, keep_alive and make_framing is not UntilClose, block), make_framing


def _framing(status: int, headers: Mapping[str, str]) -> Callable[[], Framing]:
    if status in (204, 304):
        return functools.partial(CountedBody, 0)
    codings = headers.get("transfer-encoding", "").lower()
    if codings:
        return ChunkScanner if codings.rpartition(",")[2].strip() == "chunked" else UntilClose
    if "content-length" not in headers:
        return UntilClose
    lengths = {length.strip() for length in headers["content-length"].split(",")}
    (length, *others) = lengths
    if others or not (length.isascii() and length.isdigit() and len(length) <= _MOST_DIGITS):
        raise ProtocolError(f"content-length is {headers['content-length'][:40]!r}")
    return functools.partial(CountedBody, int(length))


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
    lines.append(f"Content-Length: {len(request.body)}\r\n\r\n")
    text = "\r\n".join(lines)
    if not text.count("\r") == text.count("\n") == len(lines) + 1:
        raise ValueError("a request header contains a line break")
    return text.encode("latin-1") + request.body
