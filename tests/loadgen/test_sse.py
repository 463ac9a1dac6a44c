"""The event stream parser, against the HTML standard's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import Event, Parser


def parse(*pieces: bytes) -> list[Event]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.close()


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\ndata:  b\n\n", ["a", " b"]),
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
        (b": comment\n\n\n\ndata: a\n\n", ["a"]),
        (b"id: 1\nretry: 3\nunknown: x\ndata: a\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: \xef\xbb\xbfa\n\n", ["\ufeffa"]),
        ("data: a\u2028b\x85c\n\n".encode(), ["a\u2028b\x85c"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"event: x\n\ndata: a\n\n", ["a"]),
    ],
)
def test_events_are_those_of_the_standard(stream: bytes, data: list[str]) -> None:
    """Line ends are CR, LF and CRLF only; comments, unknown fields and empty events are skipped."""
    assert [event.data for event in parse(stream)] == data


def test_an_event_type_lasts_for_one_event() -> None:
    """`event:` names the event that it stands in, and no other."""
    events = parse(b"event: error\ndata: a\n\ndata: b\n\n")
    assert [event.type for event in events] == ["error", "message"]


def test_an_event_is_complete_at_the_cr_of_its_blank_line() -> None:
    """It is not held back until the LF, which belongs to the same line end."""
    parser = Parser()
    assert [e.data for e in parser.feed(b"data: a\r\n\r")] == ["a"]
    assert parser.feed(b"\n") == []
    assert [e.data for e in parser.feed(b"data: b\r\n\r\n")] == ["b"]


def test_a_last_event_without_its_blank_line_is_given_and_marked() -> None:
    """What a server cut off after its last line still counts, and says so."""
    assert parse(b"data: a\n\ndata: b") == [Event("a"), Event("b", terminated=False)]


LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:\xc3\xa9\xe2\x82\xac", b"data: {}", b": c", b"event: e", b"id: 1", b"", b"", b"x"]
    ),
    max_size=12,
)


@given(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"]), st.booleans(), st.data())
def test_any_split_gives_the_same_events(
    lines: list[bytes], end: bytes, bom: bool, data: st.DataObject
) -> None:
    """Bytes may be cut anywhere: inside a character, inside CRLF, inside the byte order mark."""
    stream = (b"\xef\xbb\xbf" if bom else b"") + end.join(lines) + end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert parse(*pieces) == parse(stream)
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == parse(stream)
