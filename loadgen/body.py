"""What kind of body it is that comes in: a stream of events, or one object."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

_BLANK = b" \t\r\n"
BOM = b"\xef\xbb\xbf"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, by what the bytes say
_TELLS = 2
"""Bytes of a header that tell whether it is one."""


def looks_streamed(head: bytes | bytearray) -> bool | None:
    """Whether a body that begins like this is a stream of events; None if it has not begun.

    The bytes decide, for content types lie in both directions: no line of an event stream means anything
    that begins like a JSON object or list.
    """
    if BOM.startswith(head):
        return None
    begun = bytes(head).removeprefix(BOM).lstrip(_BLANK)
    return not begun.startswith((b"{", b"[")) if begun else None


class Inflater:
    """Undoes a compression that nobody asked for (we ask for identity); each read gives what it completes."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_ANY_HEADER)
        self._head = b""
        self.broken = False

    def feed(self, read: bytes) -> bytes:
        """After a fault the bytes are passed on as they are: it then is no answer."""
        if self.broken:
            return read
        try:
            return self._members(read)
        except zlib.error:
            self.broken = True
            return read

    def _members(self, read: bytes) -> bytes:
        """gzip may come in several, one after the other."""
        given = self._inflate.decompress(read) if len(self._head) == _TELLS else self._begin(read)
        while self._inflate.eof and (rest := self._inflate.unused_data):
            self._inflate = zlib.decompressobj(_ANY_HEADER)
            given += self._inflate.decompress(rest)
        return given

    def _begin(self, read: bytes) -> bytes:
        """What some call deflate has no header, as the first bytes tell."""
        body = self._head + read
        self._head = body[:_TELLS]
        if len(body) < _TELLS:
            return b""
        try:
            return self._inflate.decompress(body)
        except zlib.error:
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inflate.decompress(body)


def inflater_of(headers: Mapping[str, str]) -> Inflater | None:
    """Names in lower case. None for what is plain, and for codings that only others know (br, zstd)."""
    codings = {coding.strip().lower() for coding in headers.get("content-encoding", "").split(",")}
    codings -= {"", "identity"}
    return Inflater() if len(codings) == 1 and codings <= {"gzip", "x-gzip", "deflate"} else None
