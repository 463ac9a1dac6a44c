"""JSON in trace files: an object a line, an array of objects, or one object a file.

Files of texts can be larger than memory, so an array is read through a window that moves over it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.tracefiles.errors import Say
from loadgen.tracefiles.reading import Source, unpacked

_WINDOW = 1 << 22
_SPACE = re.compile(r"[ \t\r\n]*")
_CUT_SHORT = 16
"""An error this near to the end of what was read may only mean that more must be read."""


class Document(NamedTuple):
    """One object and where it stands: its first line, and ``offset`` of its bytes in the unpacked file."""

    line: int
    offset: int
    raw: bytes
    value: dict[str, Any]


class Broken(Exception):
    """Text that is no JSON; ``at`` is the character."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


class StrictJson:
    """JSON without what Python adds to it: no NaN, no infinities, no key twice."""

    def __init__(self) -> None:
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)
        self._faults: list[str] = []

    def decode(self, text: str, at: int = 0) -> tuple[Any, int, list[str]]:
        """The value at ``at``, where it ends, and what JSON forbids in it. Raises Broken."""
        self._faults = []
        try:
            value, end = self._decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise Broken(error.msg, error.pos) from error
        except RecursionError as error:
            raise Broken("nested too deeply", at) from error
        except ValueError as error:  # a number of thousands of digits
            raise Broken(str(error), at) from error
        return value, end, self._faults

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [key for key, _ in pairs]
            self._faults += [f"key {key!r} stands twice" for key in made if names.count(key) > 1]
        return made

    def _constant(self, name: str) -> float:
        self._faults.append(f"{name} is not a number")
        return 0.0


def per_line(source: Source) -> Iterator[Document]:
    """The objects of a JSONL file; lines that hold no object are found."""
    json_ = StrictJson()
    for line in source.lines():
        value = whole(json_, line.text, source.say(line.number))
        if value is not None:
            yield Document(line.number, line.offset, line.text.encode(), value)


def whole(json_: StrictJson, text: str, say: Say) -> dict[str, Any] | None:
    """The object that ``text`` is, None if it is none; why is said."""
    start = _after_space(text, 0)
    try:
        value, end, faults = json_.decode(text, start)
    except Broken as error:
        say(f"not JSON: {str(error).removesuffix(' at')} at character {error.at + 1}")
        return None
    if _after_space(text, end) != len(text):
        say(f"not JSON: more after its end at character {end + 1}")
        return None
    return _object_only(value, faults, say)


def any_shape(source: Source) -> Iterator[Document]:
    """The objects of a file that is JSONL, an array, or one object over many lines."""
    shape = _shape(source.path)
    if shape == "array":
        yield from _Array(source)
    elif shape == "object":
        yield from _one(source)
    else:
        yield from per_line(source)


def _shape(path: Path) -> str:
    try:
        with unpacked(path) as file:
            head = file.readline(1 << 16).lstrip(b"\xef\xbb\xbf").strip()
    except (OSError, EOFError):
        return "lines"
    return "array" if head.startswith(b"[") else "object" if head == b"{" else "lines"


def _one(source: Source) -> Iterator[Document]:
    raw = b"".join(source.chunks(_WINDOW))
    say = source.say(1)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        source.say(raw.count(b"\n", 0, error.start) + 1)("not UTF-8")
        return
    json_ = StrictJson()
    try:
        value, end, faults = json_.decode(text, _after_space(text, 0))
    except Broken as error:
        source.say(text.count("\n", 0, error.at) + 1)(f"not JSON: {error}")
        return
    if _after_space(text, end) != len(text):
        source.say(text.count("\n", 0, end) + 1)("not JSON: more after its end")
        return
    made = _object_only(value, faults, say)
    if made is not None:
        yield Document(1, source.bom, raw, made)


def _object_only(value: Any, faults: list[str], say: Say) -> dict[str, Any] | None:
    for fault in faults:
        say(fault)
    if not isinstance(value, dict):
        say("expected an object {..}")
        return None
    return None if faults else value


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


class _Array:
    """The objects of ``[{..}, {..}]``, one after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunks = source.chunks(_WINDOW)
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = StrictJson()
        self._text, self._at = "", 0
        self._line, self._offset = 1, 0
        self._ended = False

    def __iter__(self) -> Iterator[Document]:
        try:
            yield from self._items()
        except Broken as error:
            self._source.say(self._line + self._text.count("\n", self._at, error.at))(f"not JSON: {error}")
        except UnicodeDecodeError:
            self._source.say(self._line + self._text.count("\n", self._at))("not UTF-8 in what follows")
        for _ in self._chunks:  # the digest is that of the whole file
            pass

    def _items(self) -> Iterator[Document]:
        self._take("[")
        if self._peek() == "]":
            self._source.say(self._line)("the array is empty")
        while self._peek() != "]":
            line, offset = self._line, self._offset
            value, end, faults = self._value()
            raw = self._advance(end)
            made = _object_only(value, faults, self._source.say(line))
            if made is not None:
                yield Document(line, offset, raw, made)
            if self._peek() != "]":
                self._take(",")
                if self._peek() == "]":
                    raise Broken("a comma before the end", self._at)
        self._take("]")
        if self._peek():
            raise Broken("more after its end", self._at)

    def _take(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise Broken(f"expected {wanted!r}", self._at)
        self._advance(self._at + 1)

    def _peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            self._advance(_after_space(self._text, self._at))
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _value(self) -> tuple[Any, int, list[str]]:
        while True:
            try:
                return self._json.decode(self._text, self._at)
            except Broken as error:
                near_end = error.at >= len(self._text) - _CUT_SHORT
                if not (near_end or str(error).startswith("Unterminated")) or not self._fill():
                    raise

    def _advance(self, to: int) -> bytes:
        passed = self._text[self._at : to]
        raw = passed.encode("utf-8")
        self._line += passed.count("\n")
        self._offset += len(raw)
        self._at = to
        return raw

    def _fill(self) -> bool:
        """Read on, at least as much as is waiting; False at the end of the file."""
        wanted, got = max(_WINDOW, len(self._text) - self._at), []
        while wanted > 0 and not self._ended:
            chunk = next(self._chunks, b"")
            self._offset = self._offset or self._source.bom
            self._ended = not chunk
            got.append(self._utf8.decode(chunk, final=self._ended))
            wanted -= len(chunk)
        self._text, self._at = self._text[self._at :] + "".join(got), 0
        return any(got)
