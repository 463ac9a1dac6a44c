"""The short way of a read leads to the same raw exchange as the long one."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import native
from loadgen.connection import Connection, Exchange
from loadgen.endwatch import EndWatch, Habit
from loadgen.flight import Flight
from loadgen.http1 import Head, ResponseParser
from loadgen.lane import LAST_EVENT, Lane, make_lane
from loadgen.log import Log, make_log
from loadgen.plan import PlannedCancel, Shot
from loadgen.raw import Raw
from loadgen.route import Route
from loadgen.sockets import Channel
from loadgen.targets import AnthropicMessages, OpenAIChat, OpenAICompletions, OpenAIResponses

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SHOT = Shot(0, "chat", "window", 0, 0, (), 8, 50, due_ns=0)


class Wire:
    """A channel that goes nowhere, and the pool that it belongs to."""

    lane: Lane | None = None

    def __init__(self, head: Head | None = None) -> None:
        self.head = head

    def use(self, lane: Lane | None) -> None:
        self.lane = lane

    def dial(self, connection: Connection, route: Route) -> Channel:
        return self

    def released(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...
    def write(self, data: bytes) -> None: ...
    def look(self) -> None: ...
    def close(self) -> None: ...


def event(text: str, end: str) -> bytes:
    delta = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}]}
    return f"data: {json.dumps(delta)}{end}{end}".encode()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def seen(
    reads: list[bytes],
    short: bool,
    shot: Shot = SHOT,
    habit: Habit | None = None,
    before: bytes | None = None,
) -> tuple[Raw, list[int], int]:
    """What a flight saw of an answer, when it ended, and how many reads the short way took. ``before``: the
    head of the answer before it."""
    ends: list[int] = []
    dialect = OpenAIChat("m")

    def ended(flight: Flight, t: int) -> None:
        ends.append(t)
        flight.end()

    flight = Flight(shot, 1, (0, 0, 0), dialect, habit or Habit(), True, ended, lambda _, t: None)
    wire, taken = Wire(ResponseParser().feed(before).head if before else None), 0
    connection = Connection(wire, lambda: 0, Exchange(b"", flight, lambda: 0))
    connection.dial(Route.literal("127.0.0.1", 1))  # type: ignore[arg-type]
    connection.opened(0)
    for t, read in enumerate(reads, 1):
        if short and wire.lane is not None and wire.lane.take(t, read, t):
            taken += 1
            if wire.lane.over:
                connection.ended(t)
        else:
            connection.received(t, read, t)
    flight.end()
    return flight.raw, ends, taken


def known(raw: Raw) -> tuple[object, ...]:
    """All that is known of an exchange; logs are of two kinds."""
    return raw.users, raw.reals, raw.chunks, replace(raw, reads=Log())


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(at % (len(stream) + 1) for at in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


TEXTS = st.lists(st.text(max_size=300), min_size=1, max_size=12)


def habit(begin: bytes) -> Habit:
    """What an earlier stream has left."""
    made = Habit()
    made.begin = begin or made.begin
    return made


BEGINS = st.sampled_from([b"", b'data: {"id": "ch', b'data: {"id": "xy', b'data: {"object":'])
ODD = [
    ": PROCESSING",
    'data: {"object": "error", "message": "no"}',
    'data: {"id": "chat", "error": {"code": 500}}',
]


HEADS = st.sampled_from(
    [
        HEAD,
        HEAD.replace(b"\r\n\r\n", b"\r\nDate: today\r\n\r\n"),
        HEAD.replace(b"event-stream", b"json"),
        HEAD.replace(b"200 OK", b"503 Busy"),
        HEAD[:-2] + b"Connection: close\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD,
    ]
)
ENDS = st.sampled_from(
    [b"0\r\n\r\n", b"0\r\n\r\nHTTP/1.1 408", b"0\r\nx: y\r\n\r\n", b"00\r\n\r\n", b"", b"G\r\n"]
)


@given(
    TEXTS,
    st.sampled_from(["\n", "\r\n"]),
    st.one_of(st.none(), st.lists(st.integers(0, 9999), max_size=6)),
    st.booleans(),
    BEGINS,
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ODD)), max_size=2),
    HEADS,
    st.one_of(st.none(), HEADS),
    ENDS,
)
def test_both_ways_see_the_same(
    texts: list[str],
    end: str,
    cuts: list[int] | None,
    whole: bool,
    begin: bytes,
    odd: list[tuple[int, str]],
    head: bytes,
    before: bytes | None,
    last: bytes,
) -> None:
    """Any heads, events, line ends and cuts; also several events in a chunk, text that looks like framing,
    and errors; whatever streams before it were like."""
    texts = [*texts, "[DONE]", "data: [DONE]\n\n", "a3\r\ndata: x\n\n\r\n"]
    events = [event(text, end) for text in texts]
    for at, line in odd:
        events.insert(at, f"{line}{end}{end}".encode())
    body = b"".join(events) if whole else b""
    pieces = [chunk(body) if body else b""] if whole else [*map(chunk, events)]
    tail = chunk(f"data: [DONE]{end}{end}".encode()) + last
    if cuts is None:  # as most servers send: an event each, and the end with the last one
        reads = [head, *pieces[:-1], pieces[-1] + tail]
    else:
        reads = cut(head + b"".join(pieces) + tail, cuts)
    long = seen(reads, False)
    short = seen(reads, True, habit=habit(begin), before=before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        python = seen(reads, True, habit=habit(begin), before=before)
    for raw, ends, taken in (short, python):
        assert (known(raw), ends) == (known(long[0]), long[1])
        assert taken == short[2]


def test_reads_of_the_usual_kind_take_the_short_way() -> None:
    """One event, one chunk, one read: all but the first; sizes of two and three digits."""
    events = [chunk(event("x" * n, "\n")) for n in (1, 5, 80, 200, 400, 3)]
    raw, ends, taken = seen([HEAD, *events, chunk(b"data: [DONE]\n\n")], True)
    assert taken == 5
    assert ends == [8]
    assert raw.users == list(range(2, 9))


def test_a_stream_like_the_one_before_it_takes_the_short_way_from_the_first_event_on() -> None:
    """Its head goes the long way where none came before, and an end in parts; one that begins otherwise is
    learned anew, and back."""
    events, known = [chunk(event("x" * n, "\n")) for n in (1, 5, 80)], Habit()
    others = [read.replace(b"chatcmpl", b"cmpl-new") for read in events]
    taken = [
        seen([HEAD, *body, chunk(b"data: [DONE]\n\n")], True, habit=known)[2]
        for body in (events, events, others, others, events)
    ]
    assert taken == [2, 3, 2, 3, 2]


def test_all_of_an_answer_like_the_one_before_it_takes_the_short_way() -> None:
    """With its head, alone or with the first event, and its end; also if it has but one event."""
    events = [chunk(event("x" * n, "\n")) for n in (1, 5, 80)]
    end = chunk(event("", "\n")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    for reads in ([HEAD, *events, end], [HEAD + events[0], *events[1:], end], [HEAD, end], [HEAD + end]):
        raw, ends, taken = seen(reads, True, habit=habit(b'data: {"id": "ch'), before=HEAD)
        assert taken == len(reads)
        assert ends == [len(reads)]
        assert (raw.headers_at, raw.headers_real, raw.status) == (1, 1, 200)
        assert known(raw) == known(seen(reads, False)[0])


def test_every_dialect_hears_of_the_last_event() -> None:
    """Which lanes take for the end of an answer, whatever else its dialect knows."""
    for dialect in (OpenAIChat("m"), OpenAICompletions("m"), OpenAIResponses("m"), AnthropicMessages("m")):
        for answer in (LAST_EVENT, b": hm" + LAST_EVENT, LAST_EVENT[2:]):
            assert EndWatch(dialect).feed(1, answer)


def test_a_wrong_size_is_no_usual_read() -> None:
    """Framing that does not fit is the scanner's business."""
    lane, body = make_lane(b'data: {"id": "ch', (b"error",), log := make_log()), event("hello", "\n")
    for size in (len(body) - 1, len(body) + 1):
        assert not lane.take(1, b"%x\r\n%s\r\n" % (size, body), 0)
    assert not lane.take(1, b"", 0)
    assert not lane.take(1, b"\r", 0)
    assert lane.take(1, chunk(body), 7)
    assert (log.users, log.reals, log.chunks) == ([1], [7], [body])


def test_an_answer_that_is_to_be_cancelled_at_a_token_goes_the_long_way() -> None:
    """Its tokens are counted as they come."""
    shot = replace(SHOT, cancel=PlannedCancel("decode", 3))
    events = [chunk(event("x", "\n")) for _ in range(6)]
    assert seen([HEAD, *events], True, shot)[2] == 0


def test_an_error_that_is_all_there_is_ends_a_stream_at_once() -> None:
    """It may begin as the events of other streams do; also where it was cut, and after a comment."""
    known = Habit()
    for error in ('{"object":"error","message":"no"}', '{"id": "chatcmpl-1", "error": {"code": 500}}'):
        usual, line = f"data: {error[:10]}..\n\n".encode(), f"data: {error}\n\n".encode()
        for reads in ([chunk(line)], [chunk(b": hm\n\n"), chunk(line)], cut(chunk(line), [25])):
            known.begin = line[:16]
            assert seen([HEAD, *reads], True, habit=known)[1:] == seen([HEAD, *reads], False)[1:]
            assert seen([HEAD, chunk(usual)], True, habit=known)[2] == 1
