"""Trace files as numbered lines: gzip or plain, with or without BOM, LF or CRLF."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from loadgen.tracefiles.errors import Findings, Say
from loadgen.tracefiles.fields import Field, nearest

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BROKEN_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


class Line(NamedTuple):
    number: int
    offset: int
    """Of its first byte, in the unpacked file."""
    text: str


class Row(NamedTuple):
    number: int
    values: dict[str, str]


def unpacked(path: Path) -> BinaryIO:
    """The file's bytes, unpacked if it is gzip, whatever its name. Raises OSError."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


class Source:
    """One file of a trace. ``digest`` covers its unpacked bytes once they were read."""

    def __init__(self, path: Path, found: Findings) -> None:
        self.path, self._found = path, found
        self._hash = blake2b(digest_size=8)
        self.bom = 0
        """Bytes of a byte order mark, once `chunks` has begun."""

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def chained(self, before: str) -> str:
        """The digest of the files up to this one, ``before`` being that of those before it."""
        both = blake2b((before + self.digest).encode(), digest_size=8).hexdigest()
        return both if before else self.digest

    def say(self, line: int) -> Say:
        """What to call with each thing that is wrong in ``line``."""
        return lambda what: self._found.add(str(self.path), line, what)

    def chunks(self, size: int) -> Iterator[bytes]:
        """The unpacked bytes, without a BOM. A damaged gzip stream is found, and ends them."""
        first = True
        with unpacked(self.path) as file:
            while chunk := self._read(lambda: file.read(size)):
                self._hash.update(chunk)
                if first and chunk.startswith(_BOM):
                    self.bom = len(_BOM)
                yield chunk[self.bom :] if first else chunk
                first = False

    def _read(self, read: Callable[[], bytes], line: int = 1) -> bytes:
        try:
            return read()
        except _BROKEN_GZIP as error:
            self.say(line)(f"the gzip stream is damaged or ends too early ({error}): fetch the file again")
            return b""

    def lines(self) -> Iterator[Line]:
        """Every line that is text. An empty file, an empty line, and bytes that are no UTF-8 are found."""
        number, offset = 0, 0
        with unpacked(self.path) as file:
            while raw := self._read(file.readline, number + 1):
                number += 1
                self._hash.update(raw)
                bare = raw.rstrip(b"\n").rstrip(b"\r")
                bom = len(_BOM) if number == 1 and bare.startswith(_BOM) else 0
                if (text := self._text(number, bare[bom:])) is not None:
                    yield Line(number, offset + bom, text)
                offset += len(raw)
        if number == 0:
            self.say(1)("the file is empty")

    def _text(self, number: int, raw: bytes) -> str | None:
        if not raw.strip():
            self.say(number)("an empty line: a request is missing here, or take the line out")
            return None
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            hint = "; it looks like UTF-16: save it as UTF-8" if raw.startswith(_UTF16) else ""
            self.say(number)(f"not UTF-8 at byte {error.start + 1} of the line{hint}")
            return None


def table(source: Source, spec: Mapping[str, Field]) -> Iterator[Row]:
    """The rows of a CSV file under its header; ``spec`` has the columns that are known."""
    lines = source.lines()
    head = next(lines, None)
    if head is None:
        return
    names = _cells(head.text) or []
    usable, sound = _header(names, spec, source.say(head.number))
    number = head.number
    for number, _, text in lines if usable else ():
        cells = _cells(text)
        if cells is None:
            source.say(number)("not a line of CSV: its quotes do not match")
        elif cells == names:
            source.say(number)("the header a second time: were files joined?")
        elif len(cells) == len(names):
            values = dict(zip(names, cells, strict=True))
            yield Row(number, values if sound else {name: values[name] for name in names if name in spec})
        elif sound:  # else it is the header that is wrong
            source.say(number)(f"{len(cells)} fields under {len(names)} columns")
    if usable and number == head.number:
        source.say(number)("no rows after the header")


def _cells(text: str) -> list[str] | None:
    """The fields of a line, without space around them; None if it is no CSV."""
    if '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True), [])]
    except csv.Error:
        return None


def _header(names: list[str], spec: Mapping[str, Field], say: Say) -> tuple[bool, bool]:
    """Whether rows can be read under these names, and whether nothing is wrong with them."""
    missing = [name for name, field in spec.items() if field.must and name not in names]
    unknown = [name for name in dict.fromkeys(names) if name not in spec]
    doubled = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    for name in missing:
        say(f"missing column {name!r}")
    for name in unknown:
        say(f"unknown column {name!r}{nearest(name, spec)}")
    for name in doubled:
        say(f"column {name!r} stands {names.count(name)} times")
    return not missing and not doubled, not unknown
