"""The reads of a streamed answer, from bytes to what they say (MEASUREMENT C3, C39)."""

from __future__ import annotations

from collections.abc import Iterable

from loadgen.answer import Answer
from loadgen.sse import Parser
from loadgen.targets.base import Dialect
from loadgen.targets.reading import Reading
from loadgen.template import Template, template_of

_PAYS = 4
"""Reads that a template must have fitted to have been worth making."""
_TRIES = 2
"""How often one is made that was not, before this stream goes the long way."""


class EventStream:
    """Feed the reads in order; ``answer`` is what they said. Times as in `Answer`."""

    __slots__ = ("_between", "_dialect", "_fitted", "_parser", "_template", "_tries", "answer")

    def __init__(self, dialect: Dialect) -> None:
        self.answer = Answer(dialect)
        self._dialect = dialect
        self._parser = Parser()
        self._between = True
        """Two events, in an answer that is not over: what a template asks for."""
        self._template: Template | None = None
        self._fitted, self._tries = _PAYS, _TRIES

    def feed(self, t: int, read: bytes) -> None:
        template = self._template
        if template is not None and self._between and (text := template.text(read)) is not None:
            self._fitted += 1
            self.answer.plain(t, template.index, text, template.is_reasoning)
        elif not self._several(t, read):
            self._feed(t, read)

    def _several(self, t: int, read: bytes) -> bool:
        """Events that were sent one by one, but came together."""
        template = self._template
        if template is None or not self._between or not read.startswith(template.head):
            return False
        texts = template.texts(read)
        if texts is not None:
            self._fitted += len(texts)
            self.answer.plain_all(t, template.index, texts, template.is_reasoning)
        return texts is not None

    def feed_all(self, reads: Iterable[tuple[int, bytes]]) -> None:
        for t, read in reads:
            self.feed(t, read)

    def close(self, t: int) -> None:
        """The stream has ended; its last event may lack its blank line. ``t``: the last read."""
        self._between = False
        self.answer.read(t, self._parser.close())

    def _feed(self, t: int, read: bytes) -> None:
        answer, began_between = self.answer, self._between
        events = self._parser.feed(read)
        to_end = self._parser.idle
        reading = answer.read(t, events, len(events) == 1 and to_end)
        self._between = to_end and answer.done_at is None
        if reading is not None and began_between and self._between and self._tries:
            self._learn(read if len(events) == 1 else read[read.rfind(b"\n\n", 0, -2) + 2 :], reading)

    def _learn(self, event: bytes, reading: Reading) -> None:
        """From the last event of a read, by itself."""
        made = template_of(event, reading)
        if made is None:
            return
        self._tries = _TRIES if self._fitted >= _PAYS else self._tries - 1
        self._fitted = 0
        holds = self._tries and made.holds(reading.choices[0], self._dialect)
        self._template = made if holds else None
