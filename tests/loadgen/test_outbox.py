"""Frames leave in order and whole, however little of them the socket takes at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.frames import Frame, Splitter, framed, unpacked
from loadgen.outbox import TOGETHER, Outbox

PUT = st.tuples(st.just("put"), st.integers(0, 20_000))
FLUSH = st.tuples(st.just("flush"), st.just(0))
READ = st.tuples(st.just("read"), st.integers(1, 30_000))


class Slow:
    """A socket that takes so many bytes with each call, then all; 0 = it is full, -1 = a signal came."""

    def __init__(self, takes: list[int]) -> None:
        self._takes = takes[::-1]
        self.took = b""
        self.calls: list[int] = []

    def sendmsg(self, frames: Sequence[bytes | memoryview]) -> int:
        self.calls.append(len(frames))
        data = b"".join(frames)
        take = min(self._takes.pop(), len(data)) if self._takes else len(data)
        if take <= 0:
            raise InterruptedError if take else BlockingIOError
        self.took += data[:take]
        return take


def outbox(link: Slow) -> Outbox:
    return Outbox(cast(socket.socket, link))


def frame(k: int, size: int) -> Frame:
    return "frame", k, k.to_bytes(2, "little") * (size // 2)


@contextmanager
def pair(buffer: int) -> Iterator[tuple[Outbox, socket.socket]]:
    """An outbox on a socket whose kernel buffer is small, and the other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        ours.setblocking(False)
        theirs.setblocking(False)
        yield Outbox(ours), theirs


def read(link: socket.socket, most: int) -> bytes:
    try:
        return link.recv(most)
    except BlockingIOError:
        return b""


def drained(box: Outbox, link: socket.socket, size: int) -> bytes:
    """What is left, at most ``size`` bytes, flushed and read in turn; each turn must bring something."""
    got = b""
    while len(got) <= size:
        box.flush()
        data = read(link, 1 << 20)
        if not data:
            break
        got += data
    return got


@given(st.lists(PUT | FLUSH | READ, max_size=80), st.sampled_from([1, 4096, 65_536]))
def test_every_byte_arrives_once_and_in_order(steps: list[tuple[str, int]], buffer: int) -> None:
    """Through a real socket, whenever it is flushed and read. Who waits is counted by frames."""
    put, got = list[Frame](), b""
    with pair(buffer) as (box, theirs):
        for what, size in steps:
            if what == "put":
                put.append(frame(len(put), size))
                box.put(put[-1])
            elif what == "flush":
                box.flush()
            else:
                got += read(theirs, size)
            whole = len(list(Splitter().feed(got)))
            assert len(box) <= len(put) - whole, "what has arrived does not wait"
        got += drained(box, theirs, sum(len(framed(one)) for one in put))
        assert len(box) == 0
    assert got == b"".join(map(framed, put))


@given(st.lists(st.integers(0, 40), max_size=50), st.lists(st.integers(-1, 300), max_size=100))
@example([0] * 5, [len(framed(frame(0, 0)))] * 5)  # each call takes a frame to its last byte
@example([0] * 40, [0, -1, 1])
def test_a_socket_may_take_any_part_of_what_it_gets(sizes: list[int], takes: list[int]) -> None:
    """Also to the edge of a frame, or nothing for now: flushed again, it goes on where it stopped."""
    link = Slow(takes)
    box = outbox(link)
    frames = [frame(k, size) for k, size in enumerate(sizes)]
    wire = b"".join(map(framed, frames))
    for one in frames:
        box.put(one)
    assert link.calls == []
    for _ in range(sum(take <= 0 for take in takes) + 1):
        box.flush()
        left = len(wire) - len(link.took)
        assert wire.startswith(link.took)
        assert sum(len(framed(one)) for one in frames[len(frames) - len(box) + 1 :]) <= left
        assert (len(box) == 0) == (left == 0)
    assert link.took == wire
    assert all(0 < count <= TOGETHER for count in link.calls)


def test_frames_go_together() -> None:
    """A call for each sixteen, none for none; not before they are flushed."""
    link = Slow([])
    box = outbox(link)
    box.flush()
    for k in range(2 * TOGETHER + 1):
        box.put(frame(k, 10))
    assert (len(box), link.calls) == (2 * TOGETHER + 1, [])
    box.flush()
    assert link.calls == [TOGETHER, TOGETHER, 1]


def test_a_frame_larger_than_the_socket_goes_in_pieces() -> None:
    """Those behind it wait, and follow."""
    frames = [frame(0, 10), frame(1, 3_000_000), frame(2, 10)]
    with pair(4096) as (box, theirs):
        for one in frames:
            box.put(one)
        box.flush()
        assert len(box) == 2
        got = drained(box, theirs, 4_000_000)
    assert [unpacked(body) for body in Splitter().feed(got)] == frames


def test_who_is_gone_gets_nothing_more() -> None:
    """It is said, and not taken for a socket that is full; whoever hears it can drop what waits."""
    with pair(4096) as (box, theirs):
        box.put(frame(0, 100_000))
        box.flush()
        assert len(box) == 1
        theirs.close()
        with pytest.raises(OSError, match=r"pipe|reset"):
            box.flush()
        box.clear()
        box.flush()
        assert len(box) == 0
