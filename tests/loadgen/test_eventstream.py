"""The shortcut through parsing says exactly what parsing says, and is taken where it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import answer as answers
from loadgen.answer import Answer
from loadgen.eventstream import EventStream
from loadgen.sse import Parser
from loadgen.targets import TARGETS, Dialect, OpenAIChat
from loadgen.targets.reading import ChoiceDelta, Reading
from loadgen.template import Template, template_of

CHAT = OpenAIChat("m")


def by_parsing(dialect: Dialect, reads: list[bytes]) -> Answer:
    """Every read the long way."""
    parser, answer = Parser(), Answer(dialect)
    for t, read in enumerate(reads):
        events = parser.feed(read)
        answer.read(t, events, len(events) == 1 and parser.idle)
    answer.read(len(reads) - 1, parser.close())
    return answer


def by_stream(dialect: Dialect, reads: list[bytes]) -> Answer:
    stream = EventStream(dialect)
    stream.feed_all(enumerate(reads))
    stream.close(len(reads) - 1)
    return stream.answer


def event(payload: Any, end: str = "\n", ascii_only: bool = False, head: str = "") -> bytes:
    data = json.dumps(payload, ensure_ascii=ascii_only, separators=(",", ":"))
    return f"{head}data: {data}{end}{end}".encode(errors="surrogatepass")


def chunk(text: str, key: str = "content", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": {key: text}, "finish_reason": None}], **more}


TEXTS = st.sampled_from(
    [
        *(" the", "a", "", "\n", '"', "\\", "\\n", "é", "\U0001f600", "\u2028", "\x7f", "[DONE]"),
        *("data: x\n\n", "content", "c1", "<~probe~>", '","finish_reason":"stop', "error", "\ud83d"),
        *("\x00", "null", "{}", " "),
    ]
)
PAYLOADS = st.one_of(
    st.builds(chunk, TEXTS, st.sampled_from(["content", "reasoning_content", "reasoning", "refusal"])),
    st.builds(chunk, TEXTS, created=st.integers(0, 2)),
    st.builds(
        lambda text, index: {"choices": [{"index": index, "delta": {"content": text}}]},
        TEXTS,
        st.sampled_from([0, 0, 0, 1, 2, None, "1"]),
    ),
    st.builds(
        lambda text, ids: {"choices": [{"text": text, "token_ids": ids}]}, TEXTS, st.sampled_from([[7], []])
    ),
    st.builds(lambda text, said: {"choices": [{"text": text}], "id": said}, TEXTS, TEXTS),
    st.builds(lambda text, n: chunk(text, usage={"completion_tokens": n}), TEXTS, st.integers(0, 9)),
    st.sampled_from(
        [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f"}}]}}]},
            {"error": {"message": "m", "code": "x"}},
            None,
            7,
        ]
    ),
)
BITS = st.one_of(
    st.builds(
        event,
        PAYLOADS,
        st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"]),
        st.booleans(),
        st.sampled_from(
            ["", "", "", "event: message\n", "event: ping\n", "id: 7\n", ": c\n", "event: error\n"]
        ),
    ),
    st.sampled_from(
        [b": keep-alive\n\n", b"\n", b"data: [DONE]\n\n", b"data: {\n\n", b'data: {"a"\ndata: :1}\n\n']
    ),
    st.binary(max_size=3),
)


@given(st.lists(BITS, max_size=14))
def test_reads_of_one_event_each_give_what_parsing_gives(reads: list[bytes]) -> None:
    """Whatever text stands where, and whatever comes between: times, counts, texts and errors are equal."""
    assert by_stream(CHAT, reads) == by_parsing(CHAT, reads)


@given(st.lists(BITS, max_size=10), st.data())
def test_reads_cut_anywhere_give_what_parsing_gives(bits: list[bytes], data: st.DataObject) -> None:
    """Also several events in a read, and an event in several reads."""
    stream = b"".join(bits)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert by_stream(CHAT, reads) == by_parsing(CHAT, reads)


BLOCK = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}
FORMS: dict[str, Callable[[str], bytes]] = {
    "openai_chat": lambda text: event(chunk(text)),
    "openai_completions": lambda text: event({"choices": [{"index": 0, "text": text}]}),
    "openai_responses": lambda text: event({"type": "response.output_text.delta", "delta": text}),
    "anthropic_messages": lambda text: event(
        {**BLOCK, "delta": {"type": "text_delta", "text": text}}, head="event: content_block_delta\n"
    ),
}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_hundred_events_are_parsed_a_few_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortcut is taken in every dialect, and the text is whole."""
    calls = []
    parsed = answers.parsed
    monkeypatch.setattr(answers, "parsed", lambda text: calls.append(text) or parsed(text))
    dialect = TARGETS[name](model="m")  # type: ignore[call-arg]
    texts = [f" w{k}é" for k in range(100)]
    answer = by_stream(dialect, [FORMS[name](text) for text in texts])
    assert "".join(answer.first.text) == "".join(texts)
    assert answer.token_times == list(range(100))
    assert len(calls) == 1


def test_a_field_that_changes_now_and_then_is_learned_again() -> None:
    """A second's worth of events differs from the next one's in `created`."""
    reads = [event(chunk(f" {k}", created=k // 20)) for k in range(100)]
    assert by_stream(CHAT, reads) == by_parsing(CHAT, reads)


def test_a_text_that_also_stands_elsewhere_is_no_template() -> None:
    """Which of two equal texts is the answer's cannot be seen from the bytes."""
    payload = chunk("c1")
    reading = CHAT.read(payload)
    assert template_of(event(payload), reading) is None


def test_a_hole_that_is_not_the_texts_does_not_hold() -> None:
    """The text was written with an escape, and stands as it is in another field."""
    read = b'data: {"id":" the","choices":[{"index":0,"delta":{"content":"\\u0020the"}}]}\n\n'
    (given,) = CHAT.read(chunk(" the")).choices
    made = template_of(read, Reading((given,)))
    assert made is not None
    assert not made.holds(given, CHAT)


def test_a_template_takes_only_plain_text() -> None:
    """What JSON escapes, what ends a line and what is no UTF-8 goes the long way."""
    made = Template(b'data: {"t":"', b'"}\n\n', 0, False)
    assert made.text(b'data: {"t":"a b"}\n\n') == "a b"
    for odd in (b'a"b', b"a\\b", b"a\nb", b"a\x00b", b"", b"\xff", b"\xed\xa0\xbd"):
        assert made.text(b'data: {"t":"' + odd + b'"}\n\n') is None
    assert made.text(b'data: {"t":"}\n\n') is None


def test_events_that_share_a_read_are_marked() -> None:
    """A read with two token events: the first time is an upper bound; alone means alone in the read."""
    one, finish = event(chunk("a")), event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    answer = by_stream(CHAT, [one, one + one, one, one + finish, one + one[:9], one[9:] + one[:9]])
    assert answer.first.shared == [1, 2, 4, 5, 6]
    assert answer.first.coalesced == 1


def test_a_reading_that_says_more_than_a_text_is_no_template() -> None:
    """Usage, ids, counts, a finish reason: each has to be read each time."""
    more = [
        Reading((ChoiceDelta(content="a"),), usage={}),
        Reading((ChoiceDelta(content="a", ids=(1,), count=1),)),
        Reading((ChoiceDelta(content="a", finish="stop"),)),
        Reading((ChoiceDelta(content="a", reasoning="b"),)),
        Reading((ChoiceDelta(content="a"), ChoiceDelta(1, content="b"))),
        Reading(done=True),
    ]
    assert [template_of(b'"a"', reading) for reading in more] == [None] * len(more)
