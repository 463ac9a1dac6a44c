"""The order and the stamps of writes, on a clock and sockets that are made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadgen.reference.answers import Answer, End
from loadgen.reference.streams import Stream, Timeline

GAP = 10


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

    cost: int = 0
    now: int = 0
    ends: list[tuple[int, End]] = field(default_factory=list)
    blocked: list[Stream] = field(default_factory=list)

    def clock(self) -> int:
        self.now += self.cost
        return self.now

    def timeline(self) -> Timeline:
        return Timeline(
            self.clock, GAP, lambda s, end: self.ends.append((s.number, end)), self.blocked.append
        )


def stream(number: int, base: int, offsets: list[int], wire: Wire, end: End = End.WHOLE) -> Stream:
    pieces = tuple(b"%d " % k for k in range(len(offsets)))
    answer = Answer(pieces, tuple(offsets), (1,) * len(offsets), end=end)
    return Stream(number, base, answer, wire, None)  # type: ignore[arg-type]


OFFSETS = st.lists(st.sampled_from([0, GAP, GAP, GAP, 3, 25]), min_size=1, max_size=12).map(
    lambda gaps: [sum(gaps[: k + 1]) for k in range(len(gaps))]
)


@given(st.lists(st.tuples(st.integers(0, 40), OFFSETS), min_size=1, max_size=8), st.integers(0, 3))
def test_every_piece_goes_out_once_in_order_and_never_early(
    streams: list[tuple[int, list[int]]], cost: int
) -> None:
    """Regular and irregular gaps mixed: by due time, at it or after, and on it if the clock stands still."""
    world = World(cost)
    timeline, made = world.timeline(), []
    for number, (base, offsets) in enumerate(sorted(streams)):
        made.append(stream(number, base, offsets, Wire(clock=lambda: world.now)))
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
    assert len(written) == sum(len(offsets) for _, offsets in streams) == timeline.writes
    assert all(stamp >= due for due, stamp in written)
    if cost == 0:
        assert all(stamp == due for due, stamp in written)
    assert sorted(world.ends) == [(number, End.WHOLE) for number in range(len(streams))]
    for s in made:
        stamps, late = s.written()
        assert stamps.tolist() == s.stamps
        assert late.tolist() == [t - s.base - offset for t, offset in zip(s.stamps, s.offsets, strict=True)]


def test_a_full_socket_takes_its_stream_off_the_line() -> None:
    """What is left goes out when there is room, stamped then; the rest follows late, the others on time."""
    world = World()
    timeline = world.timeline()
    tight, free = Wire(room=3, clock=lambda: world.now), Wire(clock=lambda: world.now)
    slow, other = stream(0, 0, [0, 10, 20], tight), stream(1, 0, [0, 10, 20], free)
    timeline.add(slow)
    timeline.add(other)
    for world.now in (0, 10, 20):
        timeline.run_due(10)
    assert world.blocked == [slow]
    assert other.stamps == [0, 10, 20]
    assert slow.written()[0].tolist() == [0]  # half of the second piece is not a token written
    world.now = 50
    assert timeline.resume(slow) is False
    tight.room = 100
    world.now = 60
    assert timeline.resume(slow) is True
    timeline.run_due(10)
    assert (slow.stamps, slow.blocked) == ([0, 60, 60], True)
    assert tight.got == b"0 1 2 "
    assert sorted(world.ends) == [(0, End.WHOLE), (1, End.WHOLE)]


def test_a_client_that_is_gone_ends_its_stream_at_the_next_write() -> None:
    """Whether the socket says so or the server was told before."""
    world = World()
    timeline = world.timeline()
    lost, told = Wire(clock=lambda: world.now), Wire(clock=lambda: world.now)
    first, second = stream(0, 0, [0, 10, 20], lost), stream(1, 0, [0, 10, 20], told)
    timeline.add(first)
    timeline.add(second)
    timeline.run_due(10)
    lost.gone = True
    second.drop()
    world.now = 10
    timeline.run_due(10)
    assert world.ends == [(0, End.HUNG_UP), (1, End.HUNG_UP)]
    assert [s.written()[0].tolist() for s in (first, second)] == [[0], [0]]
    assert len(timeline) == 0


def test_a_lateness_beyond_what_fits_stays_at_the_most() -> None:
    """4.29 s and more."""
    world = World(now=10**11)
    timeline = world.timeline()
    late = stream(0, 0, [0], Wire(clock=lambda: world.now))
    timeline.add(late)
    timeline.run_due(1)
    assert late.written()[1].tolist() == [2**32 - 1]
