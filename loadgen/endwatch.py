"""Has a stream said its last word? Looked at while it comes in, at the least possible cost.

A read is searched for a few short words that a last event or an error holds. Only where one is found, the
line is looked at, then the event; the rest of the stream is understood later, elsewhere.
"""

from __future__ import annotations

from loadgen.answer import Answer
from loadgen.http1 import Head
from loadgen.lane import LAST_EVENT
from loadgen.sse import Parser
from loadgen.targets.base import Dialect

_HEAD = 64
"""Bytes of a line's beginning that can matter: every pattern of `Dialect.end` fits in."""
_INSIDE = b"."
"""Stands for a line that is longer and was none to look at."""
_ALIKE = 16
"""Bytes by which the usual event of a stream is known."""
NEVER = b"\n\n\n"
"""No read that is one line begins so."""
_NEWLINES = (10, 13)


class Habit:
    """How one target's streams, and their events, begin, as far as one of them has shown it: a stream seldom
    begins otherwise than the one before."""

    __slots__ = ("begin", "head")

    def __init__(self) -> None:
        self.begin = NEVER
        self.head: Head | None = None


class EndWatch:
    """Watches one stream. ``feed`` each read; True once an event of it ended the answer."""

    __slots__ = ("_dialect", "_event", "_habit", "_hints", "_learns", "_open", "_usual")

    def __init__(self, dialect: Dialect, habit: Habit | None = None, usual: bytes | None = None) -> None:
        """``habit``: of this dialect's streams; it learns. ``usual``: how the events of this one begin; as a
        habit, if None."""
        self._dialect, self._habit = dialect, habit or Habit()
        self._hints = dialect.hints
        self._event: Parser | None = None
        self._open: bytes | None = None
        """The beginning of a line that the last read ended in; None between lines and once an end is near."""
        self._learns = dialect.alike
        self._usual = self._habit.begin if usual is None else usual
        """How a first event began; events that begin so are not the last one."""

    @property
    def usual(self) -> bytes | None:
        """How an event begins that need not be fed at all, as things stand; None if there is no such. The
        first one of a stream must be without `Dialect.hints` as well: what others did is no promise."""
        return self._usual if self._open is None and self._event is None and self._usual != NEVER else None

    def begun(self) -> None:
        """An event of the usual kind, with none of the words that an end has, was not fed."""
        self._learns = False

    def feed(self, t: int, chunk: bytes) -> bool:
        """``chunk`` is not empty."""
        if not self._learns and self._open is None and self._alike(chunk):
            return False  # nearly every read
        if self._event is not None:
            return self._read(t, chunk)
        text = self._open + chunk if self._open else chunk
        for hint in self._hints:
            if hint in text:
                return self._suspect(t, text)
        if self._learns and self._open is None and len(chunk) > _ALIKE and chunk.startswith(b"data:"):
            self._usual, self._learns = chunk[:_ALIKE], False
            if chunk[-1] in _NEWLINES:  # else a word that matters may still come
                self._habit.begin = self._usual
        self._open = None if chunk[-1] in _NEWLINES else _open_line(text)
        return False

    def _alike(self, chunk: bytes) -> bool:
        """Whether it is one line of the usual kind and its blank line."""
        return chunk.startswith(self._usual) and chunk.find(b"\n") == len(chunk) - 2

    def _suspect(self, t: int, text: bytes) -> bool:
        """A hint is in ``text``: does a line begin as a last event does?"""
        if LAST_EVENT in text or (self._open is None and text.startswith(LAST_EVENT[2:])):
            return True
        found = self._dialect.end.search(text)
        if found is None:
            self._open = None if text[-1] in _NEWLINES else _open_line(text)
            return False
        self._event, self._usual = Parser(), NEVER
        begin = found.start() + (text[found.start()] in _NEWLINES)
        return self._read(t, text[begin:])

    def _read(self, t: int, text: bytes) -> bool:
        assert self._event is not None
        events = self._event.feed(text)
        if not events:
            return False
        answer = Answer(self._dialect)
        answer.read(t, events)
        if answer.done_at is not None or answer.error is not None:
            return True
        # It ended nothing. What follows may already have begun in this read.
        self._event, self._open = None, _open_line(text)
        return False


def _open_line(text: bytes) -> bytes:
    """The line that ``text`` ends in, as far as it matters for what follows."""
    begin = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    return text[begin:] if len(text) - begin <= _HEAD else _INSIDE


def token_in(chunks: list[bytes], dialect: Dialect) -> int | None:
    """Index of the read that brought the last token; None if no read brought one.

    Looks at the last reads first, so that the cost does not grow with the length of the answer.
    """
    last, size = len(chunks), 4
    while True:
        first = max(0, last - size)
        found = _last_token(chunks, first, dialect)
        if found is not None or first == 0:
            return found
        size *= 8


def _last_token(chunks: list[bytes], first: int, dialect: Dialect) -> int | None:
    answer, parser = Answer(dialect), Parser()
    begun, before = first == 0, b""
    for index in range(first, len(chunks)):
        text = chunks[index]
        if not begun:  # in the middle of an event: reading begins with the next one
            before += text
            text = _from_event(before)
            begun = bool(text)
        if begun:
            answer.read(index, parser.feed(text))
    return answer.last_token


def _from_event(text: bytes) -> bytes:
    """``text`` from its first whole event on."""
    starts = [at + len(blank) for blank in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := text.find(blank)) >= 0]
    return text[min(starts) :] if starts else b""
