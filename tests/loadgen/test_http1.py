"""HTTP answers from bytes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.bodies import MOST_LINE, ChunkScanner
from loadgen.http1 import Head, Piece, ResponseParser, encode
from loadgen.transport import HttpRequest

CHUNKED = (
    b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;ext=1\r\nhello\r\nA\r\n, world!!\n\r\n0\r\nTrailer: x\r\n\r\n"
)

chunks = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n"]))
cuts = st.lists(st.integers(0, 400), max_size=30)


def pieces(raw: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges) if a < b]


def scan(reads: Iterable[bytes]) -> tuple[bytes, bool, str, bool]:
    scanner, body = ChunkScanner(), b""
    for read in reads:
        body += scanner.feed(read)
    return body, scanner.over, scanner.broken, scanner.surplus


def slow(raw: bytes) -> tuple[bytes, bool]:
    """(body, whether it is complete) of a chunked body by the grammar, all bytes at hand."""
    body = b""
    while (end := raw.find(b"\r\n")) >= 0:
        size = int(raw[:end].partition(b";")[0], 16)
        if size == 0:
            return body, raw[end:].find(b"\r\n\r\n") >= 0
        body += raw[end + 2 : end + 2 + size]
        raw = raw[end + 2 + size + 2 :]
    return body, False


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=8))
def test_any_split_of_a_chunked_answer_gives_the_same_body(cuts: list[int]) -> None:
    """Interim answers are skipped, chunk sizes and trailers removed, wherever the reads are cut."""
    parser, body, status, complete = ResponseParser(), b"", None, False
    for read in pieces(CHUNKED, cuts):
        piece = parser.feed(read)
        assert not piece.broken
        body += piece.body
        status = piece.head.status if piece.head else status
        complete = piece.complete
    assert (status, body, complete, parser.surplus) == (200, b"hello, world!!\n", True, False)


def test_answers_with_the_same_head_have_nothing_else_in_common() -> None:
    """A head that was understood before is not understood again; where its body stands is each one's own."""
    counted = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    for answer, rest in ((counted, 1), (CHUNKED, 20)):
        first, second = ResponseParser(), ResponseParser()
        assert first.feed(answer[:-rest]) == second.feed(answer[:-rest])
        assert first.feed(answer[-rest:]).complete
        assert second.framing is not None
        assert not second.framing.over


@given(chunks, cuts, st.sampled_from([b"%x\r\n", b"%X\r\n", b"%x;a=b\r\n", b"0%x\r\n", b"%x \r\n"]))
def test_a_scanner_gives_what_the_grammar_says_wherever_it_is_cut(
    chunks: list[bytes], cuts: list[int], size: bytes
) -> None:
    """Reads of exactly one chunk take a short way; its result is that of every other cut."""
    whole = [size % len(chunk) + chunk + b"\r\n" for chunk in chunks]
    raw = b"".join(whole) + b"0\r\n\r\n"
    body, complete = slow(raw)
    assert (body, complete) == (b"".join(chunks), True)
    for reads in (pieces(raw, cuts), [*whole, b"0\r\n\r\n"], [raw], pieces(raw, range(len(raw)))):
        assert scan(reads) == (body, True, "", False)


@given(chunks, cuts, st.integers(0, 300), st.sampled_from(b"\r\n0a;+-_x \xb2"))
def test_a_broken_body_is_as_broken_however_it_is_cut(
    chunks: list[bytes], cuts: list[int], at: int, byte: int
) -> None:
    """One byte changed anywhere: every cut gives the same body, the same end and the same complaint."""
    raw = bytearray(b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")
    raw[at % len(raw)] = byte
    whole = scan([bytes(raw)])
    assert scan(pieces(bytes(raw), range(len(raw)))) == whole
    assert scan(pieces(bytes(raw), cuts)) == whole


@pytest.mark.parametrize("count", [1, 255, 4095, 4096, 70_000])
def test_chunks_of_any_size_arrive(count: int) -> None:
    """Also such as no read holds whole."""
    raw = b"%x\r\n%s\r\n0\r\n\r\n" % (count, b"y" * count)
    assert scan(pieces(raw, range(0, len(raw), 1000))) == (b"y" * count, True, "", False)


@pytest.mark.parametrize("size", [b"", b"-1", b"+5", b"0x5", b"5_5", b"xyz", b"\xb2", b"1" * 16, b"5 5"])
def test_a_size_is_hexadecimal_digits(size: bytes) -> None:
    """What merely looks like a number to Python is none."""
    body, over, broken, _ = scan([size + b"\r\n" + b"z" * 100])
    assert (body, over) == (b"", True)
    assert broken.startswith("chunk size is")


def test_bytes_after_the_end_are_surplus() -> None:
    """They belong to nobody, and the connection is of no more use."""
    assert scan([b"1\r\na\r\n0\r\n\r\nHTTP"]) == (b"a", True, "", True)
    assert scan([b"1\r\na\r\n0\r\n\r\n", b"H"]) == (b"a", True, "", True)


def test_what_came_before_the_break_counts() -> None:
    """Good chunks of the read that breaks are handed over with the complaint."""
    piece = ResponseParser().feed(CHUNKED.partition(b"0\r\nTrailer")[0] + b"zz\r\n")
    assert piece.head is not None
    assert (piece.head.status, piece.complete) == (200, False)
    assert piece.body == b"hello, world!!\n"
    assert piece.broken == "chunk size is b'zz'"


def test_a_body_of_known_length_is_complete_at_its_last_byte() -> None:
    """Content-Length ends the answer; the connection stays."""
    piece = ResponseParser().feed(b"HTTP/1.1 429 Busy\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\n{}")
    assert piece.head is not None
    assert (piece.head.status, piece.head.headers["retry-after"], piece.head.keep_alive) == (429, "7", True)
    assert (piece.body, piece.complete) == (b"{}", True)


@given(st.binary(max_size=50), cuts, st.booleans())
def test_a_counted_body_may_be_cut_anywhere(body: bytes, cuts: list[int], surplus: bool) -> None:
    """Its bytes arrive, and what follows them is surplus."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    parser, seen = ResponseParser(), []
    for read in pieces(raw, cuts):
        seen.append(parser.feed(read))
    if surplus:
        seen.append(parser.feed(b"!"))
    assert b"".join(piece.body for piece in seen) == body
    assert seen[-1].complete
    assert parser.surplus == surplus


def head_of(headers: bytes, version: bytes = b"HTTP/1.1") -> Head:
    piece = ResponseParser().feed(version + b" 200 OK\r\n" + headers + b"\r\n")
    assert piece.head is not None
    return piece.head


@pytest.mark.parametrize(
    ("headers", "version", "keep"),
    [
        (b"Content-Length: 0\r\n", b"HTTP/1.1", True),
        (b"Content-Length: 0\r\nConnection: Close\r\n", b"HTTP/1.1", False),
        (b"Content-Length: 0\r\nConnection: x, close\r\n", b"HTTP/1.1", False),
        (b"Content-Length: 0\r\n", b"HTTP/1.0", False),
        (b"Content-Length: 0\r\nConnection: Keep-Alive\r\n", b"HTTP/1.0", True),
        (b"", b"HTTP/1.1", False),
        (b"Transfer-Encoding: chunked\r\n", b"HTTP/1.1", True),
        (b"Transfer-Encoding: gzip\r\n", b"HTTP/1.1", False),
    ],
)
def test_a_connection_is_kept_if_both_may_keep_it(headers: bytes, version: bytes, keep: bool) -> None:
    """By the version, the Connection header and a body that ends by itself."""
    assert head_of(headers, version).keep_alive is keep


def test_a_body_without_framing_ends_with_its_connection() -> None:
    """Such an answer is complete at the end of the connection and cannot share it."""
    parser = ResponseParser()
    piece = parser.feed(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert piece.head is not None
    assert (piece.body, piece.complete, piece.head.keep_alive, parser.eof()) == (b"abc", False, False, True)


def test_chunks_win_over_a_length() -> None:
    """Transfer-Encoding overrides Content-Length."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
    piece = ResponseParser().feed(raw)
    assert (piece.body, piece.complete) == (b"a", True)


def test_the_end_of_the_connection_inside_a_framed_body_is_no_proper_end() -> None:
    """A chunked or counted answer that stops early was cut off."""
    parser = ResponseParser()
    assert not parser.eof()
    parser.feed(CHUNKED[:-5])
    assert not parser.eof()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * (MOST_LINE + 1),
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused_with_a_reason(answer: bytes) -> None:
    """A broken answer says so instead of waiting forever."""
    piece = ResponseParser().feed(answer)
    assert piece.broken
    assert not piece.complete


def test_an_answer_that_has_not_come_yet_is_no_answer() -> None:
    """Half a head gives nothing."""
    assert ResponseParser().feed(b"HTTP/1.1 200 OK\r\nContent") == Piece(None, b"", False)


def test_a_request_is_encoded_with_its_length_and_host() -> None:
    """Host, own headers, Content-Length, then the body."""
    raw = encode(HttpRequest("POST", "/v1/x", (("A", "b"),), b"{}"), "h:1", "/p")
    assert raw == b"POST /p/v1/x HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"


def test_a_header_with_a_line_break_is_refused() -> None:
    """A value from outside cannot add a header."""
    with pytest.raises(ValueError, match="line break"):
        encode(HttpRequest("GET", "/", (("A", "b\r\nC: d"),), b""), "h")
