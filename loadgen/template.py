"""A shortcut through parsing: most events of a stream differ in a few characters of text only.

    data: {"id":"c1", ... "delta":{"content":" the"},"finish_reason":null}]}
    |<------------------ head ----------------->|    |<----- tail ----->|

Between the quotes stands what JSON and the event stream leave as it is: no quote, no backslash, no control
character. So a read that begins with the head, ends with the tail and has only such characters in between
says exactly what the first one said, with another text. This is verified once when a template is made, by
parsing it with a text of our own in the hole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from loadgen.payload import parsed
from loadgen.sse import Parser
from loadgen.targets.base import Dialect
from loadgen.targets.reading import ChoiceDelta, Reading

_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
_PROBE = "<~probe~>"


@dataclass(frozen=True, slots=True)
class Template:
    head: bytes
    tail: bytes
    index: int
    """Of the choice."""
    is_reasoning: bool

    def text(self, read: bytes) -> str | None:
        """The text in the hole, or None if ``read`` is anything else."""
        head, tail = self.head, self.tail
        if not (read.startswith(head) and read.endswith(tail)):
            return None
        start, end = len(head), len(read) - len(tail)
        if _PLAIN.fullmatch(read, start, end) is None:
            return None
        try:
            return read[start:end].decode()
        except UnicodeDecodeError:
            return None

    def texts(self, read: bytes) -> list[str] | None:
        """The texts of several such events in one read, and nothing else in it; else None."""
        head, tail = self.head, self.tail
        texts, at = [], 0
        while at < len(read):
            hole = _PLAIN.match(read, at + len(head)) if read.startswith(head, at) else None
            if hole is None or not read.startswith(tail, hole.end()):
                return None
            try:
                texts.append(hole[0].decode())
            except UnicodeDecodeError:
                return None
            at = hole.end() + len(tail)
        return texts

    def holds(self, delta: ChoiceDelta, dialect: Dialect) -> bool:
        """The hole is that of ``delta``'s text, and nothing else depends on it. As dear as a few events."""
        parser = Parser()
        events = parser.feed(self.head + _PROBE.encode() + self.tail)
        if len(events) != 1 or not parser.idle or events[0].type == "error":
            return False
        payload = parsed(events[0].data)
        probed = replace(delta, reasoning=_PROBE) if self.is_reasoning else replace(delta, content=_PROBE)
        return isinstance(payload, dict) and dialect.read(payload) == Reading((probed,))


def template_of(read: bytes, reading: Reading) -> Template | None:
    """What may be the template of a read that brought just one event, if it `holds`; None if that event
    said more than a text."""
    if len(reading.choices) != 1:
        return None
    (delta,) = reading.choices
    text = delta.content or delta.reasoning
    if not text or delta.ids is not None:
        return None
    if reading not in (
        Reading((ChoiceDelta(delta.index, content=text),)),
        Reading((ChoiceDelta(delta.index, reasoning=text),)),
    ):
        return None
    hole = b'"' + text.encode(errors="replace") + b'"'
    if read.count(hole) != 1:
        return None
    start = read.index(hole) + 1
    return Template(read[:start], read[start + len(hole) - 2 :], delta.index, bool(delta.reasoning))
