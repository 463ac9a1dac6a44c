"""Seeing on the send path that a stream is over, without understanding it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.endwatch import EndWatch, token_in
from loadgen.targets import OpenAIChat

CHAT = OpenAIChat("m")


def token(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def ended_at(stream: bytes, cuts: list[int]) -> int | None:
    """Offset up to which a cut stream had been fed when the watch said that it is over."""
    watch, edges = EndWatch(CHAT), sorted({0, len(stream), *(c % len(stream) for c in cuts)})
    for begin, end in pairwise(edges):
        if watch.feed(0, stream[begin:end]):
            return end
    return None


CUTS = st.lists(st.integers(0, 5000), max_size=30)
NEWLINES = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(CUTS, NEWLINES, st.sampled_from([b"data: [DONE]", b"data:[DONE]"]))
def test_the_terminal_event_is_seen_in_the_read_that_completes_it(
    cuts: list[int], end: bytes, last: bytes
) -> None:
    """Whatever the cuts and line ends; not before its blank line, and never missed."""
    body = (token("a") + token("[DONE] error")).replace(b"\n", end)
    stream = body + last + end + end
    whole = len(body) + len(last) + len(end) + len(end[:1])  # complete at the CR of its blank line
    found = ended_at(stream, cuts)
    assert found is not None
    assert found >= whole
    edges = sorted({len(stream), *(c % len(stream) for c in cuts)})
    assert found == next(edge for edge in edges if edge >= whole)


@given(CUTS, st.text(max_size=50))
def test_what_a_model_says_never_ends_its_stream(cuts: list[int], said: str) -> None:
    """`[DONE]`, errors and `data:` inside the text of a token are text."""
    texts = [said, "[DONE]", "data: [DONE]\n\n", '{"error": 1}', 'data: {"error"', "\nevent: error\n"]
    assert ended_at(b"".join(token(text) for text in texts), cuts) is None


@given(CUTS)
def test_an_error_event_ends_a_stream(cuts: list[int]) -> None:
    """In either framing; an event that only looks like one does not."""
    for error in (b'data: {"error": {"message": "m"}}\n\n', b'event: error\ndata: {"message": "m"}\n\n'):
        assert ended_at(token("a") + error, cuts) is not None
    assert ended_at(token("a") + b'data: {"error": null}\n\n' + token("b"), cuts) is None


def test_after_a_false_alarm_the_end_is_still_seen() -> None:
    """The watch goes on behind an event that ended nothing."""
    stream = b'data: {"error": null}\n\ndata: [DONE]\n\n'
    for cut in range(1, len(stream)):
        assert ended_at(stream, [cut]) == len(stream)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_last_token_is_found_from_the_end(size: int) -> None:
    """Comments after it are no progress, in any cut; no token at all is None."""
    tail = b": keep-alive\n\n" * 400
    stream = token("a") * 30 + tail
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert token_in(chunks, CHAT) == (30 * len(token("a")) - 1) // size
    assert token_in([tail[at : at + size] for at in range(0, len(tail), size)], CHAT) is None
    assert token_in([], CHAT) is None
