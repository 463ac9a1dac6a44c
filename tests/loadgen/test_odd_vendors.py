"""Errors, counters and heads as some servers and gateways write them, off the usual path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.body import looks_streamed
from loadgen.http1 import ResponseParser
from loadgen.log import log_of
from loadgen.raw import Raw
from loadgen.targets import AnthropicMessages, Dialect, OpenAIChat
from loadgen.targets.http import header_fault, url_fault
from loadgen.timeline import Exchange, Timeline
from results.record import Outcome, Record

CHAT = OpenAIChat("m")
DONE = b"data: [DONE]\n\n"
ERROR = b'{"error":{"code":500,"message":"slot died"}}'


def event(payload: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()


def choice(delta: Any, finish: Any = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


A, STOP = event(choice({"content": "a"})), event(choice({}, "stop"))


def closed(*reads: bytes, dialect: Dialect = CHAT) -> Exchange:
    raw = Raw(conn=0, sent=0, headers_at=0, status=200, headers={}, ending="eof")
    raw.reads = log_of(range(1, len(reads) + 1), [0] * len(reads), reads)
    timeline = Timeline(dialect)
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN, start=0), 0)


def usage(**counts: Any) -> bytes:
    return event({"choices": [], "usage": counts})


# --- errors without the field `data`


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b""])
@pytest.mark.parametrize("lead", [b"error: ", b"error:", b""])
def test_an_error_that_is_not_in_a_data_line_is_one(lead: bytes, end: bytes) -> None:
    """llama.cpp's field of its own, and an object by itself, cut anywhere, also when the stream goes on."""
    line = lead + ERROR + end
    for reads in ([A, line], [A, *[line[k : k + 1] for k in range(len(line))]]):
        record = closed(*reads).record
        assert (record.outcome, record.error) == ("in_band_error", "500: slot died")
        assert len(record.event_us) == 1
        if end:
            assert closed(*reads, DONE).record.outcome == "in_band_error"


def test_a_line_that_is_an_object_and_no_error_is_nothing() -> None:
    """The standard ignores it, and so do we."""
    for line in (b'{"ping":1}\n\n', b"{\n\n", b'{"error":null}\n', b'{"choices":[]}\n\n'):
        record = closed(A, line, STOP, DONE).record
        assert (record.outcome, record.warnings, len(record.event_us)) == ("completed", [], 1)


# --- errors in other shapes


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"error": True, "message": "m"}, "m"),
        ({"error": True, "message": "m", "code": "busy"}, "busy: m"),
        ({"error": 503, "message": "m"}, "503: m"),
        ({"error": 503}, "503"),
        ({"success": False, "message": "m"}, "m"),
        ({"errorCode": "E1", "errorMessage": "m"}, "E1: m"),
        ({"errorMessage": "m", "errorType": "Runtime"}, "Runtime: m"),
        (choice({}, "network_error"), "network_error: finish_reason network_error"),
        (choice({}, {"type": "abort", "message": "no memory"}), "abort: no memory"),
    ],
)
def test_what_a_vendor_says_of_an_error_is_kept(payload: Any, text: str) -> None:
    """C23: any vendor shape, with its message and its code."""
    record = closed(A, event(payload), DONE).record
    assert (record.outcome, record.error) == ("in_band_error", text)


@pytest.mark.parametrize("fine", [{"error": False}, {"error": 0}, {"success": True, "message": "queued"}])
def test_a_flag_that_says_that_all_is_well_is_no_error(fine: dict[str, Any]) -> None:
    """Beside the answer, or by itself."""
    assert closed(event({**choice({"content": "a"}), **fine}), STOP, DONE).record.outcome == "completed"
    assert closed(A, event(fine), STOP, DONE).record.outcome == "completed"


# --- counters


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    """JSON has no integers: 12 and 12.0 are the same number."""
    record = closed(
        A,
        STOP,
        usage(prompt_tokens=12.0, completion_tokens=1.0, prompt_tokens_details={"cached_tokens": 4.0}),
        DONE,
    ).record
    assert (record.n_in, record.n_out, record.n_out_source, record.cache_read) == (12, 1, "usage", 4)
    assert type(record.n_in) is int


@pytest.mark.parametrize("odd", [-1, "unknown", 1.5, False, {}, []])
def test_what_is_no_count_does_not_take_the_place_of_one(odd: Any) -> None:
    """C9: the last value that says something."""
    said = {**choice({"content": "a"}), "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    record = closed(event(said), STOP, usage(prompt_tokens=odd, completion_tokens=odd), DONE).record
    assert (record.n_in, record.n_out, record.n_out_source) == (9, 1, "usage")


def test_the_only_choice_is_the_first_whatever_its_number() -> None:
    """Its times are the request's; where there is a choice 0, that one's are."""
    one = [event(choice({"content": "a"}, index=1)), event(choice({}, "stop", index=1))]
    record = closed(*one, DONE).record
    assert (record.first_token, record.finish, record.outcome) == (1, "stop", "completed")
    record = closed(one[0], A, one[1], STOP, DONE).record
    assert (record.first_token, record.warnings) == (2, ["several_choices"])


def test_usage_may_come_with_anthropics_last_event() -> None:
    """Some gateways hold it back until then."""
    reads = [
        event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        event({"type": "message_stop", "usage": {"input_tokens": 3, "output_tokens": 1}}),
    ]
    record = closed(*reads, dialect=AnthropicMessages("m")).record
    assert (record.outcome, record.n_in, record.n_out) == ("completed", 3, 1)


def test_a_token_without_text_counts_where_logprobs_tell_of_it() -> None:
    """A piece of a character; the event that ends the answer, or that tells of none, is no token."""

    def told(text: str, n: int, finish: str | None = None) -> bytes:
        one = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return event({"choices": [one | {"logprobs": {"content": [{"token": "x"}] * n}}]})

    record = closed(told("", 0), told("", 1), told("é", 1), told("", 1, "stop"), DONE).record
    assert (record.n_out, record.n_out_source, record.event_tokens) == (2, "ids", [1, 1])
    assert (record.first_token, record.first_visible, record.last_token) == (2, 3, 3)


# --- heads and bodies


@pytest.mark.parametrize("blanks", [b"\n" * 300, b" \n" * 5_000])
def test_keep_alive_blanks_before_a_body_are_no_body(blanks: bytes) -> None:
    """DeepSeek sends empty lines for as long as a request waits; it may be minutes."""
    assert looks_streamed(blanks) is None
    whole = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}).encode()
    for body, streamed in ((whole, False), (A + STOP + DONE, True)):
        for reads in ([blanks + body], [blanks[:7], blanks[7:], body]):
            record = closed(*reads).record
            assert (record.outcome, record.streamed) == ("completed", streamed)


@pytest.mark.parametrize("digits", [19, 5_000])
def test_a_length_of_many_digits_is_a_broken_head(digits: int) -> None:
    """It is said, not raised."""
    piece = ResponseParser().feed(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * digits + b"\r\n\r\n")
    assert piece.broken.startswith("content-length is '9999")


def test_a_header_that_goes_on_in_the_next_line_is_one() -> None:
    """RFC 9112 5.2: the break is a space."""
    raw = b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\n\td\r\nContent-Length: 2\r\n\r\nok"
    for size in (1, 7, len(raw)):
        parser, heads, body = ResponseParser(), [], b""
        for k in range(0, len(raw), size):
            piece = parser.feed(raw[k : k + size])
            heads += [piece.head] if piece.head else []
            body += piece.body
        (head,) = heads
        assert (head.headers["x-a"], body) == ("b c d", b"ok")
    broken = ResponseParser().feed(b"HTTP/1.1 200 OK\r\n X-A: b\r\n\r\n")
    assert not broken.head or "x-a" in broken.head.headers


# --- addresses and headers that a scenario may not have


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h:99999", "Port out of range"),
        ("http://h:0", "must look like"),
        ("http://h:x", "must look like"),
        ("http://[::1", "must look like"),
        ("http:///v1", "must look like"),
        ("http://h h", "must look like"),
        ("http://u:s3cret@h:x", "user name or password"),
        ("http://h/v1?api-key=s3cret", "query"),
        ("http://h/#s3cret", "query or a fragment"),
        ("http://h/v1/chat/completions", "remove /v1/chat/completions"),
        ("http://h/openai/v1/responses/", "remove /v1/responses/"),
        ("http://h/v1/messages", "remove /v1/messages"),
        ("http://h/sk-abcdef0123456789/v1", "a key in its path"),
        ("http://h/%73k-abcdef0123456789/v1", "a key in its path"),
        ("http://h/v1\n", "without blanks"),
        ("http://h\r\n/v1", "without blanks"),
        (" http://h", "without blanks"),
        ("http://h/a b", "without blanks"),
        ("http://h/\x7f", "without blanks"),
        ("http://h/\xa0", "without blanks"),
        ("http://1.2.3.999", "must look like"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, says: str) -> None:
    """Before anything is sent, with a remedy, and without showing a secret."""
    fault = url_fault(url)
    assert fault is not None
    assert says in fault
    assert "s3cret" not in fault
    assert "k-abc" not in fault


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "http://h/task-abcdef0123456789/v1",
        "http://1.2.3.4.sslip.io",
        "https://h/openai/v1/",
        "http://[::1]:80/v1",
        "http://a_b.c:1/messages-api",
    ],
)
def test_an_address_as_it_should_be(url: str) -> None:
    """With and without port and prefix."""
    assert url_fault(url) is None


KEYS = (
    *("Bearer abc", "basic dTpw", " Bearer abc", "sk-abcdef0123456789", "Token sk-abcdef0123456789"),
    *(" sk-abcdef0123456789", "key=sk-abcdef0123456789", "token 0123456789abcdef", "gsk_abcdef0123456789"),
    *("ghp_abcdef0123456789", "github_pat_11ABCDEF0_abc", "glpat-abcdef-0123456", "hf_abcdefABCDEF0123456"),
    *("xai-abcdefABCDEF0123456", "AIzaSyA-abcdef0123456789", "AKIAABCDEFGH01234567"),
    "eyJhbGciOiJIUzI1NiJ9.e30.abc",
)


@pytest.mark.parametrize("value", KEYS)
def test_a_value_that_is_a_key_is_refused_under_any_name(value: str) -> None:
    """A scenario file holds no key."""
    fault = header_fault("X-Gate", value)
    assert fault is not None
    assert "key_env" in fault
    assert value not in fault
    assert header_fault("Accept-Language", "sk-SK") is None
    named = header_fault(value.replace(" ", "-"), "v")
    assert named is None or value not in named


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("X-Tag", value) for value in ("task-abcdef0123456789", "desk-lamp-and-table", "eyJhIjoxfQ==")],
        *[("X-Model", value) for value in ("xai-grok-4-fast-reasoning", "pplx-70b-online", "hf_small")],
        *[(name, "batch") for name in ("X-Request-Priority", "X-Tenant", "X-Trace-Id", "traceparent")],
        *[(name, "a") for name in ("X-Author", "X-Authority", "X-Max-Tokens", "X-Tokenizer", "X-Keyboard")],
        *[(name, "a") for name in ("X-Path", "X-Monkey", "X-Pattern", "X-Cache-Key", "X-Routing-Key")],
        *[(name, "a") for name in ("X-Token-Budget", "X-Keep", "anthropic-beta", "HTTP-Referer")],
    ],
)
def test_an_ordinary_header_is_not_taken_for_a_secret(name: str, value: str) -> None:
    """Words of which a part is key, token or auth."""
    assert header_fault(name, value) is None
