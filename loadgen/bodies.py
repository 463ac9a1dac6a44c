"""Where the body of an HTTP/1.1 answer ends (RFC 9112, 6 and 7), incrementally.

Nothing here raises for what a peer sends: a broken body gives what came before it broke, and says what is
wrong.
"""

from __future__ import annotations

from typing import Protocol

MOST_LINE = 65_536
"""Bytes of one line, or of a whole head."""

_HEX = frozenset(b"0123456789abcdefABCDEF")
# Sizes as servers usually write them. A look-up is faster than a strict parse, and every event needs one.
CHUNK_SIZES = {digits: size for size in range(1, 4096) for digits in (b"%x" % size, b"%X" % size)}
LAST_CHUNK = b"0\r\n\r\n"
"""How a body usually ends: no trailer, and nothing behind it."""


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1; says at what."""


class Framing(Protocol):
    """Finds the end of one body. ``over``: it ended or is ``broken``, feed no more; ``surplus``: bytes
    came after its end; ``until_close``: the end of the connection is its end."""

    over: bool
    broken: str
    surplus: bool
    until_close: bool

    def feed(self, data: bytes) -> bytes:
        """The body bytes that ``data`` brought, transfer coding removed."""


class ChunkScanner:
    """Removes chunked transfer coding."""

    __slots__ = ("_held", "_left", "_trailer", "between", "broken", "over", "surplus")
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
                if data[at:] == LAST_CHUNK:
                    self.over, self.between = True, False
                    return b"".join(body)
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
        end = data.find(b"\r\n", at, at + MOST_LINE + 2)
        if end < 0:
            if len(data) - at > MOST_LINE:
                raise ProtocolError(f"no line end within {MOST_LINE} bytes of a chunk header")
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


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip(b" \t")
    if not 0 < len(digits) <= 15 or not _HEX.issuperset(digits):
        raise ProtocolError(f"chunk size is {digits[:40]!r}")
    return int(digits, 16)
