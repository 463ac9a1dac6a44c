"""From events to writes: lines, transfer coding, cuts, and which write completes which event."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.reference.script import Framing
from loadgen.reference.wire import Event

_ENDS = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}


@dataclass(frozen=True, slots=True)
class Writes:
    """What goes out together, in one write or cut into several."""

    pieces: tuple[bytes, ...]
    tokens: tuple[int, ...]
    """Token events that each piece completes."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def framed(
    framing: Framing, events: Sequence[tuple[Event, bool]], *, first: bool = False, last: bool = False
) -> Writes:
    """The writes of ``events``, each with whether it bears a token. ``first`` and ``last`` of a stream add
    what stands at its ends."""
    data, done = _encoded(framing, events)
    if first and framing.bom:
        data, done = b"\xef\xbb\xbf" + data, [at + 3 for at in done]
    if framing.transfer == "chunked" and data:
        size = b"%x\r\n" % len(data)
        data, done = size + data + b"\r\n", [at + len(size) for at in done]
    if framing.transfer == "chunked" and last:
        data += b"0\r\n\r\n"
    return cut(framing, data, done)


def cut(framing: Framing, data: bytes, done: Sequence[int] = ()) -> Writes:
    """``data`` in the pieces that the framing asks for; ``done``: its bytes that complete a token event."""
    bounds = [0, *_cuts(framing, len(data)), len(data)]
    spans = [(a, b) for a, b in pairwise(bounds) if b > a]
    return Writes(
        tuple(data[a:b] for a, b in spans),
        tuple(sum(a <= at < b for at in done) for a, b in spans),
    )


def _cuts(framing: Framing, size: int) -> list[int]:
    if framing.bytewise:
        return list(range(1, size))
    return sorted({at if at >= 0 else size + at for at in framing.cuts if 0 < abs(at) < size})


def _encoded(framing: Framing, events: Sequence[tuple[Event, bool]]) -> tuple[bytes, list[int]]:
    """The bytes of ``events``, and where in them each token event is complete."""
    data, done = bytearray(), []
    end = _ENDS[framing.line_end]
    for event, bears in events:
        data += (end.join(_lines(framing, event)) + end).encode()
        if bears:
            done.append(len(data))  # the first byte of the blank line: with CRLF the CR already ends it
        data += end.encode()
    return bytes(data), done


def _lines(framing: Framing, event: Event) -> Iterator[str]:
    gap = " " if framing.space else ""
    if framing.comments:
        yield ": keep-alive"
    if event.name is not None:
        yield f"event:{gap}{event.name}"
    if framing.multiline and not isinstance(event.data, str):
        for line in json.dumps(event.data, indent=1).splitlines():
            yield f"data:{gap}{line}"
    else:
        yield f"data:{gap}{event.text}"
