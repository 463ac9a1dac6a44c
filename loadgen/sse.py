"""Server-sent events by the HTML standard, incrementally and on bytes (MEASUREMENT C39).

Lines end with CR, LF or CRLF. An event is complete at its blank line: with CRLF already at the CR, so
that an event is never held back until the LF of another read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    data: str
    type: str = "message"
    terminated: bool = True
    """False for a last event whose blank line never came."""


class Parser:
    """Feed the bytes of a stream in any pieces; the events are always the same."""

    __slots__ = ("_after_cr", "_data", "_first_line", "_partial", "_type")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._after_cr = False
        self._first_line = True
        self._data: list[str] = []
        self._type = ""

    @property
    def idle(self) -> bool:
        """Between two events: nothing of the next one has come."""
        return not (self._partial or self._data or self._type)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this piece completes."""
        # Nearly every read is just this: one event of one line. (After a CR there would be no "data".)
        if (
            chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.find(b"\n") == len(chunk) - 2
            and b"\r" not in chunk
            and not (self._partial or self._data or self._type)
        ):
            self._after_cr = self._first_line = False
            return [Event(chunk[6:-2].decode("utf-8", "replace"))]
        return self._lines(chunk)

    def _lines(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        start = 0
        if self._after_cr and chunk:
            start = 1 if chunk.startswith(b"\n") else 0
            self._after_cr = False
        for end in _LINE_END.finditer(chunk, start):
            self._partial.append(chunk[start : end.start()])
            start = end.end()
            if event := self._line(b"".join(self._partial)):
                events.append(event)
            self._partial.clear()
        if start < len(chunk):
            self._partial.append(chunk[start:])
        elif chunk.endswith(b"\r"):
            self._after_cr = True
        return events

    def close(self) -> list[Event]:
        """The last event, if the stream ended before its blank line."""
        if self._partial:
            self._line(b"".join(self._partial))
            self._partial.clear()
        event = self._dispatch(terminated=False)
        return [event] if event else []

    def _line(self, line: bytes) -> Event | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._type = text
        return None  # a comment (no name), id, retry, or a field that the standard says to ignore

    def _dispatch(self, terminated: bool = True) -> Event | None:
        data, type_ = self._data, self._type
        self._data, self._type = [], ""
        return Event("\n".join(data), type_ or "message", terminated) if data else None
