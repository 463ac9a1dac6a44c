"""What a load process and its clerk say to each other: length-prefixed frames over one socket.

Frames are tuples of plain values, packed by `marshal`: both ends are the same interpreter.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any

from loadgen.outcomes import Cut
from loadgen.raw import Closed, Raw, Unsent
from results.record import Outcome

Frame = tuple[Any, ...]
"""The first value says what it is.

To the clerk: ``("t0", ns)``, ``("clock", mono, offset, half)``, ``("closed", ..)`` as `pack_closed` makes it,
``("unsent", ..)`` as `pack_unsent` does, ``("end",)``.
From it: ``("ready",)``, ``("body", shot, attempt, request, streamed)`` with the request as it goes over the
wire, ``("told", shot, completed, outcome, at, phase)``, ``("heard", {class: ..})``, ``("done", {..})``,
``("error", message)``.
"""

_LENGTH = struct.Struct("<I")


def framed(frame: Frame) -> bytes:
    """The bytes of a frame on the wire."""
    body = marshal.dumps(frame)
    return _LENGTH.pack(len(body)) + body


def unpacked(body: bytes) -> Frame:
    frame: Frame = marshal.loads(body)
    return frame


class Splitter:
    """Cuts a byte stream into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
        del buffer[:at]


def pack_closed(closed: Closed) -> Frame:
    """An ended attempt."""
    raw = closed.raw
    return (
        "closed",
        (closed.shot, closed.due, closed.dequeued, closed.start, closed.closed),
        None if closed.cut is None else (closed.cut.why, closed.cut.limit),
        (closed.attempt, closed.cap_wait, closed.last),
        (raw.conn, raw.conn_new, raw.sent, raw.headers_at, raw.headers_real, raw.status),
        dict(raw.headers),
        raw.ending,
        raw.detail,
        raw.reads.packed(),
    )


def who_closed(frame: Frame) -> tuple[int, int, bool]:
    """(shot, attempt, whether it is the last) of what `pack_closed` packed."""
    (shot, *_), (attempt, _, last) = frame[1], frame[3]
    return shot, attempt, last


def unpack_closed(frame: Frame) -> Closed:
    """Inverse of `pack_closed`."""
    _, times, cut, tries, stamps, headers, ending, detail, reads = frame
    conn, conn_new, sent, headers_at, headers_real, status = stamps
    shot, due, dequeued, start, closed = times
    attempt, cap_wait, last = tries
    raw = Raw(conn, conn_new, sent, headers_at, headers_real, status, headers)
    raw.reads.unpack(reads)
    raw.ending, raw.detail = ending, detail
    why = None if cut is None else Cut(*cut)
    return Closed(shot, due, dequeued, start, closed, raw, why, attempt, cap_wait, last)


def pack_unsent(unsent: Unsent) -> Frame:
    due, outcome = unsent.due, unsent.outcome.value
    return "unsent", unsent.shot, unsent.phase, unsent.why, due, outcome, unsent.attempt


def unpack_unsent(frame: Frame) -> Unsent:
    """Inverse of `pack_unsent`."""
    _, shot, phase, why, due, outcome, attempt = frame
    return Unsent(shot, phase, why, due, Outcome(outcome), attempt)
