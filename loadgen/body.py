"""What kind of body it is that comes in: a stream of events, or one object."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

_BLANK = b" \t\r\n"
BOM = b"\xef\xbb\xbf"
_ANY_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, by what the bytes say


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
        self.broken = False

    def feed(self, read: bytes) -> bytes:
        """After a fault the bytes are passed on as they are: it then is no answer."""
        if self.broken:
            return read
        try:
            return self._inflate.decompress(read)
        except zlib.error:
            self.broken = True
            return read


def inflater_of(headers: Mapping[str, str]) -> Inflater | None:
    """Names in lower case. None for what is plain, and for codings that only others know (br, zstd)."""
    coding = headers.get("content-encoding", "identity").strip().lower()
    return Inflater() if coding in ("gzip", "x-gzip", "deflate") else None
