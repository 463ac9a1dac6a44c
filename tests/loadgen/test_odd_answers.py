"""What servers, gateways and proxies send besides answers: one outcome each, and nothing ever raises."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.body import looks_streamed
from loadgen.log import log_of
from loadgen.outcomes import Cut
from loadgen.payload import NOT_JSON, parsed, readable
from loadgen.raw import Raw
from loadgen.retryafter import retry_after
from loadgen.sse import BARE, Parser
from loadgen.targets import TARGETS, AnthropicMessages, Dialect, OpenAIChat, OpenAIResponses
from loadgen.targets.errors import MOST_TEXT, find_error
from loadgen.timeline import Exchange, Timeline
from loadgen.transport import Ending
from results.record import Outcome, Record

CHAT = OpenAIChat("m")
DONE = b"data: [DONE]\n\n"
DIALECTS = [cls(model="m") for cls in TARGETS.values()]  # type: ignore[call-arg]


def event(payload: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()


def choice(delta: Any, finish: Any = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


HELLO, STOP = event(choice({"content": "Hello"})), event(choice({}, "stop"))


def closed(
    *reads: bytes,
    dialect: Dialect = CHAT,
    status: int | None = 200,
    kind: str | None = "text/event-stream",
    ending: Ending | None = "complete",
    cut: Cut | None = None,
    **headers: str,
) -> Exchange:
    """The exchange in which read k came at k + 1."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    if kind is not None:
        named["content-type"] = kind
    raw = Raw(conn=0, sent=0, headers_at=0, status=status, headers=named, ending=ending)
    raw.reads = log_of(range(1, len(reads) + 1), [0] * len(reads), reads)
    timeline = Timeline(dialect)
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN, start=0), 0, cut)


def outcome(*reads: bytes, **how: Any) -> str:
    return closed(*reads, **how).record.outcome.value


# --- the table of fleet case C9, in every dialect


def block(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def r_completed(**more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": [], **more}}


TOKENS = {
    "openai_chat": [event(choice({"content": text})) for text in "abcde"],
    "openai_completions": [event({"choices": [{"index": 0, "text": text}]}) for text in "abcde"],
    "openai_responses": [event({"type": "response.output_text.delta", "delta": text}) for text in "abcde"],
    "anthropic_messages": [event(block(text), "content_block_delta") for text in "abcde"],
}
FINISH = {
    "openai_chat": STOP,
    "openai_completions": event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}),
    "anthropic_messages": event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
}
TERMINAL = {
    "openai_chat": DONE,
    "openai_completions": DONE,
    "openai_responses": event(r_completed(), "response.completed"),
    "anthropic_messages": event({"type": "message_stop"}, "message_stop"),
}
LAST = ("between_tokens", 30)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_stream_without_a_terminal_event(name: str) -> None:
    """Fleet C9: after five tokens, each way to stop has its outcome, and nothing else counts as ok."""
    dialect, tokens, end = TARGETS[name](model="m"), TOKENS[name], TERMINAL[name]  # type: ignore[call-arg]
    silent = Cut("timeout", "between_tokens")

    def seen(*more: bytes, **how: Any) -> tuple[str, list[str]]:
        record = closed(*tokens, *more, dialect=dialect, **how).record
        assert len(record.event_us) == 5
        return record.outcome.value, record.warnings

    whole = [FINISH[name]] if name in FINISH else []
    assert seen(*whole, end) == ("completed", [])
    assert seen(ending="reset") == ("reset", [])
    assert seen() == ("truncated", [])
    assert seen(ending="eof") == ("truncated", [])
    assert seen(event({"error": {"code": "worker_lost", "message": "m"}})) == ("in_band_error", [])
    assert seen(ending=None, cut=silent) == ("client_timeout", [])
    assert seen(b": keep-alive\n\n", b": keep-alive\n\n", ending=None, cut=silent) == ("client_timeout", [])
    if name in FINISH:
        assert seen(FINISH[name]) == ("completed", ["missing_done"])
        assert seen(end) == ("completed", ["missing_finish_reason"])
        assert seen(FINISH[name], ending="reset") == ("completed", ["missing_done"])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("status", [200, 201])
def test_an_empty_body_is_no_answer(dialect: Dialect, status: int) -> None:
    """200 with nothing, with blanks, with comments only."""
    for reads in ((), (b"",), (b"\n\n",), (b": hi\n\n", b": hi\n\n"), (b"{}",), (b"[]",)):
        assert outcome(*reads, dialect=dialect, status=status) == "truncated"


def test_only_tokens_are_progress() -> None:
    """Comments, pings and preludes are not: the client's limits count from the last token."""
    timeline = Timeline(CHAT)
    timeline.headers(1, 200, {})
    for t, read in ((2, b": hi\n\n"), (3, b"event: ping\ndata: x\n\n"), (4, event(choice({"role": "x"})))):
        timeline.data(t, read)
        timeline.advance()
        assert timeline.answer.last_token is None
    timeline.data(5, HELLO)
    timeline.data(6, b": hi\n\n")
    timeline.data(7, event({"choices": [{"index": 1, "delta": {"content": "other"}}]}))
    timeline.data(8, STOP)
    assert (timeline.tokens(), timeline.answer.last_token) == (2, 7)


# --- where an event does not say what its dialect says


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": {}},
        {"choices": "x"},
        {"choices": [None, 3, "x", []]},
        {"choices": [{}]},
        choice(None),
        choice("x"),
        choice([]),
        choice({"content": None}),
        choice({"content": 7}),
        choice({"content": {"text": "x"}}),
        choice({"content": [{"type": "image"}, 3, None]}),
        choice({"tool_calls": None}),
        choice({"tool_calls": {}}),
        choice({"tool_calls": [None, 3, {}, {"function": None}, {"function": "f"}, {"function": {}}]}),
        choice({"tool_calls": [{"function": {"name": "", "arguments": ""}}]}),
        choice({"role": "assistant"}),
        choice({"reasoning_content": None, "reasoning": None}),
        choice({}, ""),
        choice({}, 0),
        choice({}, {}),
        choice({}, []),
        choice({}, None, logprobs={"content": None}),
        {"usage": None},
        {"usage": []},
        {"usage": "x"},
        {"id": "c1"},
        {},
        [],
        [[]],
        None,
        0,
        True,
        "x",
    ],
)
def test_odd_events_are_nothing(odd: Any) -> None:
    """They bear no token, end nothing and harm nothing."""
    record = closed(event(odd), HELLO, event(odd), STOP, DONE).record
    assert (record.outcome, record.first_token, len(record.event_us)) == ("completed", 2, 1)
    assert (record.finish, record.warnings) == ("stop", [])


@pytest.mark.parametrize("index", [0, None, "0", "x", -0, True, 0.0, [], "9" * 5000])
def test_an_index_that_is_missing_or_odd_is_the_first(index: Any) -> None:
    """Servers with one choice do not always number it."""
    exchange = closed(
        event({"choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": "stop"}]}), DONE
    )
    assert (exchange.text, exchange.record.finish) == ("x", "stop")


@pytest.mark.parametrize(
    ("delta", "calls"),
    [
        ({"tool_calls": [{"index": "1", "id": 3, "function": {"name": "f"}}]}, [(1, None, "f", "")]),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
            [(0, None, "f", '{"a":[1]}')],
        ),
        ({"function_call": {"name": "f", "arguments": "{}"}}, [(0, None, "f", "{}")]),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, [(0, None, None, "{}")]),
    ],
)
def test_odd_tool_calls(delta: dict[str, Any], calls: list[Any]) -> None:
    """Arguments as an object, the field of old, no name, no index: still tokens."""
    exchange = closed(event(choice(delta)), STOP, DONE)
    assert [tuple(call.values()) for call in exchange.tool_calls] == calls
    assert len(exchange.record.event_us) == 1


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("eos", "stop"),
        ("function_call", "tool_calls"),
        ({"type": "length", "length": 8}, "length"),
        ("recitation", "recitation"),
    ],
)
def test_finish_reasons_are_in_our_words(said: Any, finish: str) -> None:
    """An unknown one is kept as it is, in lower case."""
    assert closed(HELLO, event(choice({}, said)), DONE).record.finish == finish


@pytest.mark.parametrize("said", ["error", "abort", "insufficient_system_resource", "cancelled", "failed"])
def test_a_finish_reason_of_failure_is_an_error(said: str) -> None:
    """DeepSeek, vLLM and SGLang end broken answers so, with [DONE] and all."""
    record = closed(HELLO, event(choice({}, said)), DONE).record
    assert (record.outcome, record.error) == ("in_band_error", f"{said}: finish_reason {said}")


def test_what_comes_after_the_end_is_not_read() -> None:
    """Not tokens, not usage, not errors."""
    usage = event({"choices": [], "usage": {"completion_tokens": 99}})
    exchange = closed(HELLO, STOP, DONE, HELLO, usage, event({"error": "late"}), b"data: {")
    assert (exchange.text, exchange.record.outcome, exchange.record.n_out) == ("Hello", "completed", 1)
    assert exchange.record.terminal == 3


def test_usage_that_comes_twice_counts_once() -> None:
    """The final block on the finish event and again by itself."""
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    record = closed(
        HELLO, event({**choice({}, "stop"), **usage}), event({"choices": [], **usage}), DONE
    ).record
    assert (record.n_in, record.n_out, len(record.event_us)) == (3, 1, 1)


@pytest.mark.parametrize(
    "last",
    [
        *(b"data:[DONE]\n\n", b"data: [DONE] \n\n", b"data: [DONE]\r\n\r\n", b"data: [DONE]"),
        *(b"event: done\ndata: [DONE]\n\n", b"data: [DONE]\n", b"id: 3\ndata: [DONE]\n\n"),
    ],
)
def test_every_spelling_of_done(last: bytes) -> None:
    """With and without the space, with a type, without the blank line."""
    record = closed(HELLO, STOP, last).record
    assert record.outcome == "completed"
    assert "missing_done" not in record.warnings


@pytest.mark.parametrize(
    "text", ["[DONE]", "data: [DONE]", "data: [DONE]\n\n", '{"error": "x"}', "event: error\ndata: x\n\n"]
)
def test_text_that_looks_like_the_protocol_is_text(text: str) -> None:
    """A model may say anything."""
    exchange = closed(event(choice({"content": text})), STOP, DONE)
    assert (exchange.text, exchange.record.outcome) == (text, "completed")


@pytest.mark.parametrize("nothing", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"event: ping\n\n"])
def test_events_without_data_are_keep_alives(nothing: bytes) -> None:
    """They are neither errors nor progress."""
    record = closed(nothing, HELLO, nothing, STOP, DONE).record
    assert (record.outcome, record.first_event) == ("completed", 2)


def test_pings_need_not_be_json() -> None:
    """A type says what they are; without one they are no stream of ours."""
    assert outcome(b"event: ping\ndata: 2026-03-04\n\n", HELLO, STOP, DONE) == "completed"
    assert outcome(b"data: 2026 ping\n\n", HELLO, STOP, DONE) == "in_band_error"


def test_an_event_cut_off_in_its_json_is_none() -> None:
    """What was complete before it counts."""
    exchange = closed(HELLO, HELLO[:-20], ending="eof")
    assert (exchange.text, exchange.record.outcome) == ("Hello", "truncated")


def test_halves_of_a_character_are_joined() -> None:
    """Python servers with escapes may cut a pair of surrogates in two; a lone half is U+FFFD."""
    halves = [event(choice({"content": half})) for half in ("\ud83d", "\ude00", "a\ud83d")]
    exchange = closed(*halves, STOP, DONE)
    assert exchange.text == "\U0001f600a\ufffd"
    assert exchange.record.outcome == "completed"


# --- errors in all shapes, in a stream and as the whole body

ERRORS = [
    ({"error": {"message": "m", "type": "server_error", "code": "worker_lost"}}, "worker_lost: m"),
    ({"error": {"message": "m", "type": "overloaded_error", "code": None}}, "overloaded_error: m"),
    ({"error": "m"}, "m"),
    ({"error": "m", "error_type": "overloaded"}, "overloaded: m"),
    ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, "429: m"),
    ({"errors": [{"message": "m", "code": 1}]}, "1: m"),
    ({"error": {"detail": [{"msg": "m"}]}}, "[{'msg': 'm'}]"),
    ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "400: m"),
    ({"type": "error", "error": {"type": "api_error", "message": "m"}}, "api_error: m"),
    ({"detail": "m"}, "m"),
    ({"detail": [{"loc": ["body"], "msg": "m", "type": "missing"}]}, "missing: m"),
    ({"error_code": 336, "error_msg": "m"}, "336: m"),
    ({"code": "InvalidParameter", "message": "m", "request_id": "r"}, "InvalidParameter: m"),
    ({"status": 503, "message": "m"}, "503: m"),
    ({"base_resp": {"status_code": 1004, "status_msg": "m"}, "choices": None}, "1004: m"),
    ({"fault": {"faultstring": "x", "message": "m"}}, "m"),
    ({"internalServerException": {"message": "m"}}, "internalServerException: m"),
    ([{"error": {"code": 503, "message": "m"}}], "503: m"),
    ({"choices": [{"index": 0, "error": {"code": 502, "message": "m"}}]}, "502: m"),
]


@pytest.mark.parametrize(
    ("payload", "text", "dialect"),
    [
        (payload, text, dialect)
        for payload, text in ERRORS
        for dialect in DIALECTS
        if "choices" not in payload or dialect == CHAT
    ],
)
def test_an_error_of_any_vendor_is_one(payload: Any, text: str, dialect: Dialect) -> None:
    """C23: 200, then an error: as an event, typed or not, alone or after tokens, or as the body."""
    body = json.dumps(payload).encode()
    tokens = TOKENS["openai_chat"] if dialect == CHAT else []
    for reads, kind in (
        ([*tokens, event(payload)], "text/event-stream"),
        ([event(payload, "error")], "text/event-stream"),
        ([body], "application/json"),
        ([body[:9], body[9:]], "text/plain"),
    ):
        record = closed(*reads, dialect=dialect, kind=kind).record
        assert (record.outcome, record.error) == ("in_band_error", text)
        assert record.terminal is None


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [], "error": None, "usage": {}},
        {"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}},
        {"code": 0, "message": "ok"},
        {"type": "ping", "message": "m", "code": 3},
        {"id": "c", "object": "chat.completion.chunk", "detail": None},
        {"message": "queued"},
        {"status": "queued", "message": "position 3"},
    ],
)
def test_what_is_no_error(payload: Any) -> None:
    """Empty error fields, and statuses that say that all is well."""
    assert find_error(payload) is None


def test_an_expired_deadline_is_its_own_outcome() -> None:
    """In the stream, as the body of a 504, and framed as an event there; another 504 is http_error."""
    late = {"error": {"code": "deadline_exceeded", "message": "m"}}
    assert outcome(HELLO, event(late)) == "expired"
    assert outcome(json.dumps(late).encode(), status=504, kind="application/json") == "expired"
    assert outcome(event(late), status=504) == "expired"
    assert outcome(b"gateway timeout", status=504, kind="text/plain") == "http_error"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (500, b"<html>oops</html>", "<html>oops</html>"),
        (503, b"", None),
        (429, b'{"error":{"code":"rate_limited","message":"m"}}', "rate_limited: m"),
        (
            422,
            b'{"detail":"Unexpected fields in the request: {\'x\'}"}',
            "Unexpected fields in the request: {'x'}",
        ),
        (400, event({"error": "m"}), "m"),
        (401, b"\xff\xfe", "\ufffd\ufffd"),
        (500, b"x" * 5_000_000, "x" * 300),
    ],
)
def test_a_status_of_failure_is_http_error_with_its_words(
    status: int, body: bytes, error: str | None
) -> None:
    """Whatever the body is; of a long one the beginning is kept."""
    record = closed(body, status=status, kind="text/html").record
    assert (record.outcome, record.http_status, record.error) == ("http_error", status, error)
    assert record.n_out is None


@pytest.mark.parametrize("status", [301, 302, 307, 304])
def test_a_redirect_is_no_answer(status: int) -> None:
    """It is not followed; the record says so."""
    record = closed(b"moved", status=status, kind="text/html").record
    assert (record.outcome, record.error) == ("truncated", f"status {status}: redirects are not followed")


def test_an_html_page_with_status_200_is_no_answer() -> None:
    """A captive portal, a proxy's error page."""
    record = closed(b"<!DOCTYPE html><html>Bad gateway", kind="text/html").record
    assert record.outcome == "truncated"
    assert record.error == "no answer is in this body: <!DOCTYPE html><html>Bad gateway"


# --- content types lie

WHOLE = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
).encode()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain", None])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n"])
def test_the_bytes_decide_what_a_body_is(kind: str | None, before: bytes) -> None:
    """A stream that calls itself JSON, and JSON that calls itself a stream, also cut into bytes."""
    for body, streamed in ((HELLO + STOP + DONE, True), (WHOLE, False)):
        full = before + body
        for reads in ([full], [full[k : k + 1] for k in range(len(full))]):
            exchange = closed(*reads, kind=kind)
            assert (exchange.text, exchange.record.outcome) == ("Hello", "completed")
            assert exchange.record.streamed is streamed


def test_a_json_body_that_breaks_off_is_truncated() -> None:
    """And reset if that is how it broke off."""
    assert outcome(WHOLE[:-5], kind="application/json") == "truncated"
    assert outcome(WHOLE[:-5], kind="application/json", ending="reset") == "reset"
    assert outcome(b'{"a":1}\n{"b":2}\n', kind="application/x-ndjson") == "truncated"


def test_a_whole_answer_without_finish_reason_is_completed_with_a_warning() -> None:
    """C25: its end is the end of the body."""
    body = json.dumps({"choices": [{"message": {"content": "x"}}]}).encode()
    record = closed(body, kind="application/json").record
    assert (record.outcome, record.warnings) == ("completed", ["missing_finish_reason"])


@pytest.mark.parametrize("body", [HELLO + STOP + DONE, WHOLE])
def test_a_compression_that_nobody_asked_for_is_undone(body: bytes) -> None:
    """C8 asks for identity; some proxies do not listen. Said in a warning."""
    bare = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    for coding, packed in (
        ("gzip", gzip.compress(body)),
        ("gzip, identity", gzip.compress(body[:9]) + gzip.compress(body[9:])),
        ("deflate", zlib.compress(body)),
        ("deflate", bare.compress(body) + bare.flush()),
    ):
        for reads in ([packed], [packed[k : k + 1] for k in range(len(packed))]):
            exchange = closed(*reads, content_encoding=coding)
            assert (exchange.text, exchange.record.outcome) == ("Hello", "completed")
            assert exchange.record.warnings == ["compressed"]


def test_a_coding_that_is_not_known_or_broken_is_no_answer() -> None:
    """Never an exception."""
    record = closed(b"\x1b\x2f\x00", content_encoding="br").record
    assert record.outcome == "truncated"
    assert record.error is not None
    assert "(content-encoding br)" in record.error
    assert outcome(HELLO, STOP, DONE, content_encoding="gzip") == "completed"
    assert outcome(b"\x1f\x8b\x08\x00junk", content_encoding="gzip") == "truncated"


# --- Retry-After

NOW = "Wed, 04 Mar 2026 09:15:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Wed, 04 Mar 2026 09:15:30 GMT", "date": NOW}, 30.0),
        ({"retry-after": "Wed, 04 Mar 2026 09:14:00 GMT", "date": NOW}, 0.0),
        ({"retry-after": "Wed, 04 Mar 2026 09:15:30 -0000", "date": NOW}, 30.0),
        ({"retry-after": "Wed, 04 Mar 2026 09:15:30 GMT"}, None),
        ({"retry-after": "Wed, 04 Mar 2026 09:15:30 GMT", "date": "now"}, None),
        *[
            ({"retry-after": odd, "date": NOW}, None)
            for odd in (
                "",
                "-1",
                "nan",
                "inf",
                "1e400",
                "soon",
                "9" * 40,
                "Wed, 99 Xyz 2026",
                "1_0",
                "\u0667",
            )
        ],
        ({}, None),
    ],
)
def test_retry_after_is_seconds_a_date_or_nothing(headers: dict[str, str], seconds: float | None) -> None:
    """The date form counts from the server's own Date."""
    assert retry_after(headers) == seconds


# --- secrets


def test_a_key_that_a_server_repeats_is_in_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the error, not in the text."""
    monkeypatch.setenv("HR_TEST_KEY", "s3cret-key-of-ours")
    dialect = OpenAIChat("m", key_env="HR_TEST_KEY")
    said = "wrong key s3cret-key-of-ours"
    for reads, status in (
        ([event({"error": {"message": said, "code": "s3cret-key-of-ours"}})], 200),
        ([json.dumps({"error": {"message": said}}).encode()], 401),
        ([said.encode()], 403),
        ([said.encode()], 200),
        ([event(choice({"content": said})), STOP, DONE], 200),
    ):
        exchange = closed(*reads, dialect=dialect, status=status)
        assert "s3cret-key-of-ours" not in f"{exchange} {exchange.record}"
        assert "[HR_TEST_KEY]" in (exchange.record.error or exchange.text)


def test_a_key_that_is_a_mere_word_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers without keys are given EMPTY or the like; an answer with that word stays as it is."""
    monkeypatch.setenv("HR_TEST_KEY", "EMPTY")
    dialect = OpenAIChat("m", key_env="HR_TEST_KEY")
    assert closed(event(choice({"content": "EMPTY"})), STOP, DONE, dialect=dialect).text == "EMPTY"
    assert closed(event({"error": "EMPTY"}), dialect=dialect).record.error == "[HR_TEST_KEY]"


# --- anything at all

KEYS = (
    *("choices", "delta", "message", "content", "text", "reasoning", "tool_calls", "function", "name"),
    *("arguments", "index", "finish_reason", "usage", "prompt_tokens", "completion_tokens", "input_tokens"),
    *("output_tokens", "error", "type", "code", "response", "output", "status", "item", "content_block"),
    *("partial_json", "stop_reason", "logprobs", "token_ids", "timings", "detail", "audio"),
)
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["error", "stop", "text", "response.completed", "message_delta", "message"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.lists(ANY_JSON, max_size=4), st.sampled_from(DIALECTS), st.sampled_from([200, 204, 302, 500]))
def test_any_json_gives_one_outcome(payloads: list[Any], dialect: Dialect, status: int) -> None:
    """As events and as bodies; every text of the exchange can be written."""
    texts = [json.dumps(payload) for payload in payloads]
    for reads in ([f"data: {text}\n\n".encode() for text in texts], [text.encode() for text in texts]):
        exchange = closed(*reads, dialect=dialect, status=status)
        assert exchange.record.outcome is not Outcome.UNKNOWN
        said = [exchange.text, exchange.reasoning, exchange.record.error or ""]
        "".join(said + [call["arguments"] for call in exchange.tool_calls]).encode()


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from([HELLO, STOP, DONE, b"data: ", b"\n", b"\r", b'{"error":', b"["]),
        max_size=8,
    ),
    st.sampled_from(DIALECTS),
    st.sampled_from(["complete", "eof", "reset", "aborted", None]),
    st.sampled_from(["text/event-stream", "application/json", "\x00", None]),
    st.sampled_from(["identity", "gzip", "deflate", "br", ""]),
)
def test_any_bytes_give_one_outcome(
    reads: list[bytes], dialect: Dialect, ending: Ending | None, kind: str | None, coding: str
) -> None:
    """Nothing raises, whatever comes."""
    record = closed(*reads, dialect=dialect, ending=ending, kind=kind, content_encoding=coding).record
    assert record.outcome is not Outcome.UNKNOWN


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"error":', b'{"usage":', b'{"choices":[{"error":'])
@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_deep_nesting_does_no_harm(dialect: Dialect, opening: bytes, depth: int) -> None:
    """Of any depth, as an event and as the body."""
    closing = opening.count(b"{") * b"}" + opening.count(b"[") * b"]"
    deep = opening * depth + b"1" + (closing[::-1] if len(closing) == 1 else b"}]}") * depth
    for body in (b"data: " + deep + b"\n\n", deep):
        assert closed(body, dialect=dialect).record.outcome in ("truncated", "in_band_error")


def test_long_errors_are_cut() -> None:
    """A record holds the beginning."""
    record = closed(event({"error": {"message": "x" * 1_000_000}})).record
    assert len(record.error or "") <= MOST_TEXT


def test_what_orjson_refuses_python_takes() -> None:
    """NaN, lone surrogates, broken UTF-8, huge numbers; and what neither takes is not JSON."""
    assert str(parsed('{"a": NaN}')["a"]) == "nan"
    assert parsed('"\\ud83d"') == "\ud83d"
    assert parsed(b'"\xff"') == "\ufffd"
    assert parsed("null") is None
    for odd in ("", "{", "{'a': 1}", "[" * 100_000, "1" * 5000 + "x", "data"):
        assert parsed(odd) is NOT_JSON


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_readable_text_can_be_written(text: str) -> None:
    """And what could be written stays as it is."""
    made = readable(text)
    made.encode()
    assert made == text or any("\ud800" <= character <= "\udfff" for character in text)


@given(st.binary(max_size=12))
def test_what_looks_streamed_holds_no_json_object(head: bytes) -> None:
    """A body that is taken for JSON has no event in its first line."""
    if looks_streamed(head) is False:
        parser = Parser()
        assert [event for event in parser.feed(head + b"\n\n") if event.type != BARE] == []


def test_dialects_do_not_mix() -> None:
    """An answer in another dialect is none."""
    assert outcome(*TOKENS["anthropic_messages"], TERMINAL["anthropic_messages"]) == "truncated"
    assert outcome(HELLO, STOP, dialect=AnthropicMessages("m")) == "truncated"
    assert outcome(HELLO, STOP, dialect=OpenAIResponses("m")) == "truncated"
