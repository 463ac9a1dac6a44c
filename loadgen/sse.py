"""Server-sent events by the HTML standard, incrementally and on bytes (MEASUREMENT C39).

Lines end with CR, LF or CRLF. An event is complete at its blank line: with CRLF already at the CR, so
that an event is never held back until the LF of another read.

Two things that the standard ignores are passed on, for some servers say so that an answer has failed: the
field ``error``, as an event of that type, and a line that is a JSON object by itself, as one of type `BARE`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
BARE = "{}"
"""The type of a line that is no field: nothing but an error is meant by it."""


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
        event = self._alone(chunk)
        if event is None:
            return self._lines(chunk)
        self._after_cr = self._first_line = False
        return [event]

    def _alone(self, chunk: bytes) -> Event | None:
        """What nearly every read is: one event of one line of data, maybe with its type, ended by LF."""
        if not chunk.endswith(b"\n\n") or b"\r" in chunk or self._partial or self._data or self._type:
            return None
        type_, start = "message", 0
        if chunk.startswith(b"event: "):
            start = chunk.index(b"\n") + 1
            type_ = chunk[7 : start - 1].decode("utf-8", "replace") or "message"
        # No line but the last may follow: its end is the first of the two that end the event.
        if not chunk.startswith(b"data: ", start) or chunk.index(b"\n", start) != len(chunk) - 2:
            return None
        return Event(chunk[start + 6 : -2].decode("utf-8", "replace"), type_)

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
        bare = None
        if self._partial:
            bare = self._line(b"".join(self._partial))
            self._partial.clear()
        return [event for event in (bare, self._dispatch(terminated=False)) if event]

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
        elif name == b"error":
            self._data.append(text)
            self._type = "error"
        elif name.startswith(b"{"):
            return Event(line.decode("utf-8", "replace"), BARE)
        return None  # a comment (no name), id, retry, or a field that the standard says to ignore

    def _dispatch(self, terminated: bool = True) -> Event | None:
        data, type_ = self._data, self._type
        self._data, self._type = [], ""
        return Event("\n".join(data), type_ or "message", terminated) if data else None
