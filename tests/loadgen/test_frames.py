"""What a load process and its clerk hand to each other arrives as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import native
from loadgen.frames import Splitter, framed, pack_closed, unpack_closed, unpacked
from loadgen.log import log_of
from loadgen.outcomes import Cut
from loadgen.raw import Closed, Raw

TIME = st.integers(0, 2**62)
READS = st.lists(st.tuples(TIME, TIME, st.binary(max_size=50)), max_size=8)


@given(READS, st.one_of(st.none(), TIME), st.sampled_from([None, Cut("plan"), Cut("timeout", "total")]))
def test_a_closed_exchange_survives_the_way(
    reads: list[tuple[int, int, bytes]], sent: int | None, cut: Cut | None
) -> None:
    """Every stamp, byte and border of a read."""
    users, reals, chunks = ([row[k] for row in reads] for k in range(3))
    log = log_of(users, reals, chunks)  # type: ignore[arg-type]
    raw = Raw(5, True, sent, 7, 8, 200, {"a": "b"}, log, "eof", "why")
    closed = Closed(3, 10, 11, 12, 99, raw, cut, 2, 4, False)
    frame = framed(pack_closed(closed))
    assert unpack_closed(unpacked(frame[4:])) == closed
    with pytest.MonkeyPatch.context() as patch:  # the other kind of log says the same
        patch.setattr(native, "extension", None)
        raw.reads = log_of(users, reals, chunks)  # type: ignore[arg-type]
        assert framed(pack_closed(closed)) == frame
        assert unpack_closed(unpacked(frame[4:])) == closed


@given(st.lists(st.binary(max_size=30), max_size=10), st.lists(st.integers(1, 40), min_size=1, max_size=10))
def test_frames_come_out_whole_however_the_bytes_arrive(bodies: list[bytes], sizes: list[int]) -> None:
    """One frame for each that was sent, in order."""
    stream = b"".join(framed(("x", body)) for body in bodies)
    splitter, found, at, turn = Splitter(), [], 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += [unpacked(body)[1] for body in splitter.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == bodies
