"""HTTP answers from bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.http1 import ProtocolError, ResponseParser, encode
from loadgen.transport import HttpRequest

CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;ext=1\r\nhello\r\nA\r\n, world!!\n\r\n0\r\nTrailer: x\r\n\r\n"
)


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=8))
def test_any_split_of_a_chunked_answer_gives_the_same_body(cuts: list[int]) -> None:
    """Interim answers are skipped, chunk sizes and trailers removed, wherever the reads are cut."""
    edges = [0, *sorted(cuts), len(CHUNKED)]
    parser, body, status, complete = ResponseParser(), b"", None, False
    for a, b in pairwise(edges):
        piece = parser.feed(CHUNKED[a:b])
        body += piece.body
        status = piece.head.status if piece.head else status
        complete = piece.complete
    assert (status, body, complete, parser.surplus) == (200, b"hello, world!!\n", True, False)


def test_a_body_of_known_length_is_complete_at_its_last_byte() -> None:
    """Content-Length ends the answer; the connection stays."""
    piece = ResponseParser().feed(b"HTTP/1.1 429 Busy\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\n{}")
    assert piece.head is not None
    assert (piece.head.status, piece.head.headers["retry-after"], piece.head.keep_alive) == (429, "7", True)
    assert (piece.body, piece.complete) == (b"{}", True)


def test_a_body_without_framing_ends_with_its_connection() -> None:
    """Such an answer is complete at the end of the connection and cannot share it."""
    parser = ResponseParser()
    piece = parser.feed(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert piece.head is not None
    assert (piece.body, piece.complete, piece.head.keep_alive, parser.eof()) == (b"abc", False, False, True)


def test_the_end_of_the_connection_inside_a_framed_body_is_no_proper_end() -> None:
    """A chunked or counted answer that stops early was cut off."""
    parser = ResponseParser()
    parser.feed(CHUNKED[:-5])
    assert not parser.eof()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused_with_a_reason(answer: bytes) -> None:
    """A broken answer raises ProtocolError instead of waiting forever."""
    with pytest.raises(ProtocolError, match=r".+"):
        ResponseParser().feed(answer)


def test_a_request_is_encoded_with_its_length_and_host() -> None:
    """Host, own headers, Content-Length, then the body."""
    raw = encode(HttpRequest("POST", "/v1/x", (("A", "b"),), b"{}"), "h:1", "/p")
    assert raw == b"POST /p/v1/x HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"


def test_a_header_with_a_line_break_is_refused() -> None:
    """A value from outside cannot add a header."""
    with pytest.raises(ValueError, match="line break"):
        encode(HttpRequest("GET", "/", (("A", "b\r\nC: d"),), b""), "h")
