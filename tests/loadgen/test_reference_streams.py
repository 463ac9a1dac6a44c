"""The order and the stamps of writes, on a clock and sockets that are made up, in Python and compiled."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import native
from loadgen.clock import monotonic
from loadgen.reference import streams
from loadgen.reference.answers import Answer, End
from loadgen.reference.streams import Stream, Timeline

GAP = 10
Kind = Any
"""A module with both classes."""
COMPILED = native.find("loadgen.reference._streams")
both = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(streams, id="python"),
        pytest.param(COMPILED, id="native", marks=pytest.mark.skipif(not COMPILED, reason="not built here")),
    ],
)


@dataclass
class Wire:
    """A socket that takes ``room`` bytes more, and then none."""

    room: int = 10**9
    gone: bool = False
    got: bytes = b""
    at: list[int] = field(default_factory=list)
    clock: Any = None

    def send(self, data: bytes) -> int:
        if self.gone:
            raise ConnectionResetError
        if self.room == 0 and data:
            raise BlockingIOError
        taken = data[: self.room]
        self.room -= len(taken)
        self.got += taken
        self.at.append(self.clock())
        return len(taken)


@dataclass
class World:
    """A clock that moves by ``cost`` with each look at it, and what the timeline reports."""

    kind: Kind
    cost: int = 0
    now: int = 0
    ends: list[tuple[int, End]] = field(default_factory=list)
    blocked: list[Stream] = field(default_factory=list)

    def clock(self) -> int:
        self.now += self.cost
        return self.now

    def timeline(self) -> Timeline:
        line: Timeline = self.kind.Timeline(
            self.clock, GAP, lambda s, end: self.ends.append((s.number, end)), self.blocked.append
        )
        return line

    def stream(self, number: int, base: int, offsets: list[int], wire: Any) -> Stream:
        pieces = tuple(b"%d " % k for k in range(len(offsets)))
        answer = Answer(pieces, tuple(offsets), (1,) * len(offsets))
        made: Stream = self.kind.Stream(number, base, answer, wire, None)
        return made


def noted(stream: Stream) -> tuple[list[int], list[int]]:
    stamps, late = stream.written()
    return np.frombuffer(stamps, np.int64).tolist(), np.frombuffer(late, np.uint32).tolist()


OFFSETS = st.lists(st.sampled_from([0, GAP, GAP, GAP, 3, 25]), min_size=1, max_size=12).map(
    lambda gaps: [sum(gaps[: k + 1]) for k in range(len(gaps))]
)


@both
@given(
    scripts=st.lists(st.tuples(st.integers(0, 40), OFFSETS), min_size=1, max_size=8), cost=st.integers(0, 3)
)
def test_every_piece_goes_out_once_in_order_and_never_early(
    kind: Kind, scripts: list[tuple[int, list[int]]], cost: int
) -> None:
    """Regular and irregular gaps mixed: by due time, at it or after, and on it if the clock stands still."""
    world = World(kind, cost)
    timeline, made = world.timeline(), []
    for number, (base, offsets) in enumerate(sorted(scripts)):
        made.append(world.stream(number, base, offsets, Wire(clock=lambda: world.now)))
        timeline.add(made[-1])
    written: list[tuple[int, int]] = []
    while (due := timeline.next_due) is not None:
        world.now = max(world.now, due)
        before = {s.number: len(s.stamps) for s in made}
        timeline.run_due(1)
        written += [
            (s.base + s.offsets[k], s.stamps[k]) for s in made for k in range(before[s.number], len(s.stamps))
        ]
    assert [due for due, _ in written] == sorted(due for due, _ in written)
    assert len(written) == sum(len(offsets) for _, offsets in scripts) == timeline.writes
    assert all(stamp >= due for due, stamp in written)
    if cost == 0:
        assert all(stamp == due for due, stamp in written)
    assert sorted(world.ends) == [(number, End.WHOLE) for number in range(len(scripts))]
    for s in made:
        stamps, late = noted(s)
        assert stamps == s.stamps
        assert s.first == stamps[0]
        assert late == [t - s.base - offset for t, offset in zip(s.stamps, s.offsets, strict=True)]


@dataclass
class Order:
    """A socket that takes all, and notes on the list of all of them whose write it was."""

    number: int
    writes: list[int]

    def send(self, data: bytes) -> int:
        self.writes.append(self.number)
        return len(data)


@pytest.mark.skipif(not COMPILED, reason="not built here")
@given(scripts=st.lists(st.tuples(st.integers(0, 60), OFFSETS), min_size=1, max_size=60))
def test_both_write_in_the_same_order(scripts: list[tuple[int, list[int]]]) -> None:
    """Also what is due at the same time, with many on the heap and pieces that are added late."""
    orders = []
    for kind in (streams, COMPILED):
        world, writes = World(kind), list[int]()
        timeline = world.timeline()
        for number, (base, offsets) in enumerate(scripts):
            timeline.add(world.stream(number, base, offsets, Order(number, writes)))
            world.now += 1
            timeline.run_due(2)
        while (due := timeline.next_due) is not None:
            world.now = max(world.now, due)
            timeline.run_due(7)
        orders.append((writes, world.ends, timeline.writes))
    assert orders[0] == orders[1]


@both
def test_a_full_socket_takes_its_stream_off_the_line(kind: Kind) -> None:
    """What is left goes out when there is room, stamped then; the rest follows late, the others on time."""
    world = World(kind)
    timeline = world.timeline()
    tight, free = Wire(room=3, clock=lambda: world.now), Wire(clock=lambda: world.now)
    slow, other = world.stream(0, 0, [0, 10, 20], tight), world.stream(1, 0, [0, 10, 20], free)
    timeline.add(slow)
    timeline.add(other)
    for world.now in (0, 10, 20):
        timeline.run_due(10)
    assert world.blocked == [slow]
    assert other.stamps == [0, 10, 20]
    assert noted(slow)[0] == [0]  # half of the second piece is not a token written
    world.now = 50
    assert timeline.resume(slow) is False
    tight.room = 100
    world.now = 60
    assert timeline.resume(slow) is True
    timeline.run_due(10)
    assert (slow.stamps, slow.blocked) == ([0, 60, 60], True)
    assert tight.got == b"0 1 2 "
    assert sorted(world.ends) == [(0, End.WHOLE), (1, End.WHOLE)]


@both
def test_a_client_that_is_gone_ends_its_stream_at_the_next_write(kind: Kind) -> None:
    """Whether the socket says so or the server was told before."""
    world = World(kind)
    timeline = world.timeline()
    lost, told = Wire(clock=lambda: world.now), Wire(clock=lambda: world.now)
    first, second = world.stream(0, 0, [0, 10, 20], lost), world.stream(1, 0, [0, 10, 20], told)
    timeline.add(first)
    timeline.add(second)
    timeline.run_due(10)
    lost.gone = True
    second.drop()
    world.now = 10
    timeline.run_due(10)
    assert world.ends == [(0, End.HUNG_UP), (1, End.HUNG_UP)]
    assert [noted(s)[0] for s in (first, second)] == [[0], [0]]
    assert len(timeline) == 0


@both
def test_a_lateness_beyond_what_fits_stays_at_the_most(kind: Kind) -> None:
    """4.29 s and more."""
    world = World(kind, now=10**11)
    timeline = world.timeline()
    late = world.stream(0, 0, [0], Wire(clock=lambda: world.now))
    timeline.add(late)
    timeline.run_due(1)
    assert noted(late)[1] == [2**32 - 1]


@both
@pytest.mark.parametrize("seed", range(6))
def test_over_real_sockets(kind: Kind, seed: int) -> None:
    """Readers at any pace, some of which go away: what each has read is what its stream says it wrote."""
    dice, ends, full = random.Random(seed), dict[int, End](), list[Stream]()
    line = kind.Timeline(monotonic, 0, lambda s, end: ends.setdefault(s.number, end), full.append)
    pairs = [socket.socketpair() for _ in range(12)]
    pieces = tuple(bytes([65 + k]) * dice.choice((1, 300, 40_000)) for k in range(20))
    got = [b""] * len(pairs)
    for number, (ours, theirs) in enumerate(pairs):
        for sock in (ours, theirs):
            sock.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        answer = Answer(pieces, (0,) * len(pieces), (0, *(1,) * (len(pieces) - 1)))
        line.add(kind.Stream(number, monotonic(), answer, ours, None))
    left = set(dice.sample(range(len(pairs)), 3))
    for _ in range(20_000):
        if len(ends) == len(pairs):
            break
        line.run_due(dice.choice((1, 7, 64)))
        number = dice.randrange(len(pairs))
        if number in left and dice.random() < 0.05:
            pairs[number][1].close()
        elif pairs[number][1].fileno() >= 0:
            got[number] += _read(pairs[number][1])
        for stream in full[:]:
            if line.resume(stream):
                full.remove(stream)
    for number, (ours, theirs) in enumerate(pairs):
        if ends[number] is End.WHOLE and theirs.fileno() >= 0:
            assert got[number] + _read(theirs) == b"".join(pieces)
        else:
            assert ends[number] is End.HUNG_UP or number in left
        ours.close()
        theirs.close()


def _read(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 20)
    except BlockingIOError:
        return b""
