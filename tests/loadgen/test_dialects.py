"""How the streams and whole answers of each dialect are understood: times, tokens, usage, ends, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.endwatch import EndWatch
from loadgen.log import log_of
from loadgen.outcomes import Cut
from loadgen.raw import Raw
from loadgen.targets import TARGETS, Dialect
from loadgen.timeline import Exchange, Timeline
from loadgen.transport import Ending
from results.record import Outcome, Record

MS = 1_000_000
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


def dialect(name: str) -> Dialect:
    return TARGETS[name](model="m")  # type: ignore[call-arg]


def named(payload: dict[str, Any]) -> bytes:
    return f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode()


def bare(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def understood(
    name: str,
    reads: list[bytes],
    headers: dict[str, str] = EVENTS,
    ending: Ending | None = "complete",
    cut: Cut | None = None,
    status: int = 200,
) -> Exchange:
    """The exchange whose k-th read came k ms after its send."""
    raw = Raw(conn=0, sent=0, headers_at=0, status=status, headers=headers, ending=ending)
    raw.reads = log_of([(k + 1) * MS for k in range(len(reads))], [0] * len(reads), reads)
    timeline = Timeline(dialect(name))
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "chat", "window", Outcome.UNKNOWN, start=0), 0, cut)


# --- Responses

R_USAGE = {
    "input_tokens": 36,
    "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 4},
    "output_tokens": 87,
    "output_tokens_details": {"reasoning_tokens": 64},
    "total_tokens": 123,
}


def response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "error": None, "output": [], **more}


def r_event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 1, **more}


R_START = [r_event("created", response=response("in_progress", usage=None)), r_event("in_progress")]
R_REASONING = [
    r_event("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs", "summary": []}),
    r_event("reasoning_text.delta", delta="hm"),
    r_event("reasoning_summary_text.delta", delta=" so"),
    r_event("reasoning_text.done", text="hm"),
]
R_TEXT = [
    r_event(
        "output_item.added", output_index=1, item={"type": "message", "role": "assistant", "content": []}
    ),
    r_event("content_part.added", part={"type": "output_text", "text": ""}),
    r_event("output_text.delta", delta="Hel"),
    r_event("output_text.delta", delta="lo"),
    r_event("output_text.done", text="Hello"),
    r_event(
        "output_item.done", item={"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}
    ),
]
R_END = [r_event("completed", response=response("completed", usage=R_USAGE))]


@pytest.mark.parametrize("write", [named, bare])
def test_a_stream_of_responses(write: Any) -> None:
    """With and without `event:` lines: deltas are tokens, the rest repeats them, the last event ends it."""
    exchange = understood("openai_responses", [write(e) for e in R_START + R_REASONING + R_TEXT + R_END])
    record = exchange.record
    assert (record.outcome, record.finish, record.warnings) == (Outcome.COMPLETED, "stop", [])
    assert (exchange.text, exchange.reasoning) == ("Hello", "hm so")
    assert (record.first_event, record.first_token, record.first_visible) == (1 * MS, 4 * MS, 9 * MS)
    assert (record.last_reasoning, record.last_token, record.terminal) == (5 * MS, 10 * MS, 13 * MS)
    assert (record.n_in, record.n_out, record.n_out_source, record.n_reasoning) == (36, 87, "usage", 64)
    assert (record.prompt_total, record.cache_read, record.cache_write) == (36, 32, 4)


def test_a_function_call_of_responses() -> None:
    """Its name comes with the item, its arguments in deltas; the finish is tool_calls."""
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": ""}
    events = [
        r_event("output_item.added", output_index=0, item=call),
        r_event("function_call_arguments.delta", output_index=0, delta='{"a"'),
        r_event("function_call_arguments.delta", output_index=0, delta=":1}"),
        r_event("function_call_arguments.done", output_index=0, arguments='{"a":1}'),
        r_event("completed", response=response("completed", output=[call], usage=R_USAGE)),
    ]
    exchange = understood("openai_responses", [named(e) for e in events])
    assert exchange.tool_calls == [{"index": 0, "id": "call_1", "name": "look", "arguments": '{"a":1}'}]
    assert exchange.record.finish == "tool_calls"
    assert (exchange.record.first_token, exchange.record.last_token) == (1 * MS, 3 * MS)


def test_a_call_that_comes_whole_is_one_event() -> None:
    """transformers serve sends name and arguments with the item."""
    call = {"type": "function_call", "id": "f", "call_id": "f", "name": "look", "arguments": '{"a":1}'}
    done = r_event("completed", response=response("completed", output=[call]))
    exchange = understood("openai_responses", [bare(r_event("output_item.added", item=call)), bare(done)])
    assert exchange.tool_calls[0]["arguments"] == '{"a":1}'
    assert exchange.record.event_us == [0]


@pytest.mark.parametrize(
    ("last", "outcome", "finish", "error"),
    [
        (r_event("completed", response=response("completed")), "completed", "stop", None),
        (
            r_event(
                "incomplete",
                response=response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            ),
            "completed",
            "length",
            None,
        ),
        (
            r_event(
                "incomplete", response=response("incomplete", incomplete_details={"reason": "content_filter"})
            ),
            "completed",
            "content_filter",
            None,
        ),
        (r_event("incomplete", response=response("incomplete")), "completed", "length", None),
        (
            r_event("failed", response=response("failed", error={"code": "server_error", "message": "m"})),
            "in_band_error",
            None,
            "server_error: m",
        ),
        (
            r_event("failed", response=response("failed")),
            "in_band_error",
            None,
            "failed: the response has failed",
        ),
        (
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow down", "param": None},
            "in_band_error",
            None,
            "rate_limit_exceeded: slow down",
        ),
        (
            {"type": "error", "error": {"type": "too_much", "message": "m"}},
            "in_band_error",
            None,
            "too_much: m",
        ),
        (r_event("failed", response=None), "in_band_error", None, "failed: the response has failed"),
        (r_event("completed", response=None), "completed", "stop", None),
    ],
)
def test_every_end_of_responses(
    last: dict[str, Any], outcome: str, finish: str | None, error: str | None
) -> None:
    """The last event says how it went; finish reasons are in our words."""
    record = understood("openai_responses", [named(e) for e in [*R_TEXT, last]]).record
    assert (record.outcome, record.finish, record.error) == (outcome, finish, error)


def test_a_refusal_and_sound_are_visible() -> None:
    """C2: what the user would see or hear."""
    for kind in ("refusal.delta", "audio.delta", "audio.transcript.delta"):
        record = understood("openai_responses", [named(r_event(kind, delta="x"))], ending=None).record
        assert (record.first_token, record.first_visible) == (1 * MS, 1 * MS)


def test_a_whole_response() -> None:
    """Not streamed: text, reasoning, calls and counts, and no token times."""
    output = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    ]
    body = json.dumps(response("completed", output=output, usage=R_USAGE)).encode()
    exchange = understood("openai_responses", [body[:40], body[40:]], JSON)
    record = exchange.record
    assert (record.outcome, record.finish, record.streamed) == (Outcome.COMPLETED, "tool_calls", False)
    assert (exchange.text, exchange.reasoning, exchange.tool_calls[0]["name"]) == ("Hello", "hm", "look")
    assert (record.n_in, record.n_out, record.terminal, record.last_token) == (36, 87, 2 * MS, 2 * MS)
    assert (record.first_token, record.event_us, record.warnings) == (None, [], [])


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("failed", "in_band_error"), ("cancelled", "in_band_error"), ("in_progress", "truncated")],
)
def test_a_whole_response_that_is_no_answer(status: str, outcome: str) -> None:
    """Status 200 and a JSON body are not enough."""
    assert (
        understood("openai_responses", [json.dumps(response(status)).encode()], JSON).record.outcome
        == outcome
    )


# --- Anthropic

A_START = {
    "type": "message_start",
    "message": {
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "usage": {
            "input_tokens": 50,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 50,
            "output_tokens": 1,
        },
    },
}


def a_block(index: int, kind: str, *deltas: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    start = {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}
    middle = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [start, *middle, {"type": "content_block_stop", "index": index}]


def a_end(reason: str | None, **usage: Any) -> list[dict[str, Any]]:
    delta = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    return [delta, {"type": "message_stop"}]


A_THINKING = a_block(
    0,
    "thinking",
    {"type": "thinking_delta", "thinking": "hm"},
    {"type": "signature_delta", "signature": "xyz"},
    thinking="",
)
A_TEXT = a_block(
    1, "text", {"type": "text_delta", "text": "Hel"}, {"type": "text_delta", "text": "lo"}, text=""
)


@pytest.mark.parametrize("write", [named, bare])
def test_a_stream_of_messages(write: Any) -> None:
    """Usage comes in two parts; thinking is reasoning; signatures, pings and block ends are nothing."""
    events = [A_START, {"type": "ping"}, *A_THINKING, *A_TEXT, *a_end("end_turn", output_tokens=15)]
    exchange = understood("anthropic_messages", [write(e) for e in events])
    record = exchange.record
    assert (record.outcome, record.finish, record.warnings) == (Outcome.COMPLETED, "stop", [])
    assert (exchange.text, exchange.reasoning) == ("Hello", "hm")
    assert (record.n_in, record.n_out, record.n_out_source) == (1000, 15, "usage")
    assert (record.prompt_total, record.cache_read, record.cache_write) == (1000, 900, 50)
    assert (record.first_token, record.first_visible, record.last_token) == (4 * MS, 8 * MS, 9 * MS)
    assert (record.last_reasoning, record.terminal) == (4 * MS, 12 * MS)
    assert record.event_us == [0, 4000, 5000]


def test_a_tool_use_of_messages() -> None:
    """The block's start names the tool; its input comes as pieces of JSON."""
    block = a_block(
        0,
        "tool_use",
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"a":'},
        {"type": "input_json_delta", "partial_json": "1}"},
        id="toolu_1",
        name="look",
        input={},
    )
    events = [A_START, *block, *a_end("tool_use", output_tokens=9)]
    exchange = understood("anthropic_messages", [named(e) for e in events])
    assert exchange.tool_calls == [{"index": 0, "id": "toolu_1", "name": "look", "arguments": '{"a":1}'}]
    assert exchange.record.finish == "tool_calls"
    assert len(exchange.record.event_us) == 3


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_every_stop_reason_of_messages(reason: str, finish: str) -> None:
    """In our words; one that we have none for stays."""
    record = understood("anthropic_messages", [named(e) for e in [*A_TEXT, *a_end(reason)]]).record
    assert (record.outcome, record.finish) == (Outcome.COMPLETED, finish)


def test_an_error_in_a_stream_of_messages() -> None:
    """C23: in-band, with the vendor's word."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    record = understood("anthropic_messages", [named(e) for e in [A_START, *A_TEXT, error]]).record
    assert (record.outcome, record.error) == (Outcome.IN_BAND_ERROR, "overloaded_error: Overloaded")
    assert record.terminal is None


def test_a_whole_message() -> None:
    """Not streamed: blocks become text, reasoning and calls."""
    body = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}},
        ],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 12, "output_tokens": 7},
    }
    exchange = understood("anthropic_messages", [json.dumps(body).encode()], JSON)
    record = exchange.record
    assert (record.outcome, record.finish, record.n_in, record.n_out) == ("completed", "length", 12, 7)
    assert (exchange.text, exchange.reasoning) == ("Hello", "hm")
    assert exchange.tool_calls[0] == {"index": 2, "id": "t", "name": "look", "arguments": '{"a":1}'}
    assert record.cache_read is None, "not reported is not zero"


def test_a_whole_error_of_messages() -> None:
    """Also with status 200."""
    body = b'{"type":"error","error":{"type":"api_error","message":"m"}}'
    assert understood("anthropic_messages", [body], JSON).record.outcome is Outcome.IN_BAND_ERROR


# --- usage dialects of OpenAI-compatible servers, at the level of a record

CHAT_TEXT = bare({"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]})
CHAT_STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
LLAMA = {"prompt_n": 12, "cache_n": 30, "predicted_n": 2, "prompt_ms": 5.5}


@pytest.mark.parametrize(
    ("more", "n_in", "n_out", "n_reasoning", "read", "write"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 2}}, 9, 2, None, None, None),
        (  # vLLM, and SGLang with its report on
            {
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 8},
                }
            },
            9,
            2,
            None,
            8,
            None,
        ),
        (  # vLLM with its report off
            {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}},
            9,
            2,
            None,
            None,
            None,
        ),
        (  # llama.cpp
            {"usage": {"prompt_tokens": 42, "completion_tokens": 2}, "timings": LLAMA},
            42,
            2,
            None,
            30,
            None,
        ),
        (  # DeepSeek
            {
                "usage": {
                    "prompt_tokens": 100,
                    "completion_tokens": 20,
                    "prompt_cache_hit_tokens": 64,
                    "prompt_cache_miss_tokens": 36,
                    "completion_tokens_details": {"reasoning_tokens": 7},
                    "total_tokens": 120,
                }
            },
            100,
            20,
            7,
            64,
            None,
        ),
        (  # Gemini and xAI count reasoning apart: prompt + completion + reasoning = total
            {
                "usage": {
                    "prompt_tokens": 32,
                    "completion_tokens": 9,
                    "completion_tokens_details": {"reasoning_tokens": 94},
                    "total_tokens": 135,
                }
            },
            32,
            103,
            94,
            None,
            None,
        ),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 5, "reasoning_tokens": 3}}, 9, 5, 3, None, None),
        ({"x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}}, 9, 2, None, None, None),
    ],
)
def test_usage_dialects(
    more: dict[str, Any], n_in: int, n_out: int, n_reasoning: int | None, read: int | None, write: int | None
) -> None:
    """A6, C9, C10: cached tokens inside the prompt, reasoning inside the output, absent is not zero."""
    reads = [CHAT_TEXT, bare({**CHAT_STOP, **more}), b"data: [DONE]\n\n"]
    record = understood("openai_chat", reads).record
    assert (record.n_in, record.n_out, record.n_reasoning) == (n_in, n_out, n_reasoning)
    assert (record.prompt_total, record.cache_read, record.cache_write) == (n_in, read, write)


def test_usage_inside_a_choice() -> None:
    """Moonshot puts it there."""
    stop = {
        "index": 0,
        "delta": {},
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 9, "cached_tokens": 8},
    }
    record = understood("openai_chat", [CHAT_TEXT, bare({"choices": [stop]})]).record
    assert (record.n_in, record.cache_read) == (9, 8)


def test_mistrals_reasoning_is_part_of_the_content() -> None:
    """A list of parts, some of which are thinking."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Hello"},
    ]
    exchange = understood("openai_chat", [bare({"choices": [{"delta": {"content": parts}}]})])
    assert (exchange.text, exchange.reasoning) == ("Hello", "hm")


# --- several choices (C13)


def test_every_choice_has_a_timeline_of_its_own() -> None:
    """The record is the first choice's; usage counts them all, which is flagged."""

    def said(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": finish}

    reads = [
        bare({"choices": [said(1, "B1")]}),
        bare({"choices": [said(0, "A1")]}) + bare({"choices": [said(1, "B2")]}),
        bare({"choices": [said(0, "A2"), said(1, "B3")]}),
        bare({"choices": [said(0, "", "stop")]}),
        bare({"choices": [said(1, "", "length")]}),
        bare({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}),
        b"data: [DONE]\n\n",
    ]
    exchange = understood("openai_chat", reads)
    record = exchange.record
    assert (exchange.text, record.finish, record.outcome) == ("A1A2", "stop", Outcome.COMPLETED)
    assert (record.first_token, record.last_token, record.event_us) == (2 * MS, 3 * MS, [0, 1000])
    assert (record.coalesced, record.single) == (0, [False, True])
    assert (record.n_out, record.event_tokens, record.warnings) == (5, None, ["several_choices"])


def test_an_answer_is_whole_only_with_the_finish_of_every_choice() -> None:
    """C23: EOF while one choice still speaks is truncated."""
    one = {"choices": [{"index": k, "delta": {"content": "x"}, "finish_reason": None} for k in (0, 1)]}
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    assert understood("openai_chat", [bare(one), bare(stop)], ending="eof").record.outcome == "truncated"


# --- the words that the send path looks for


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("openai_chat", b"data: [DONE]"),
        ("openai_chat", b"data:[DONE]"),
        ("openai_chat", b'data: {"error": {"message": "m"}}'),
        ("openai_chat", b'data: { "id": 1, "error" : "m"}'),
        ("openai_chat", b'data: {"type":"error"}'),
        ("openai_chat", b'data: {"choices":[{"finish_reason":"error"}]}'),
        ("openai_chat", b"event: error"),
        ("openai_completions", b"data: [DONE]"),
        *[
            ("openai_responses", prefix + f"response.{how}".encode() + suffix)
            for how in ("completed", "incomplete", "failed")
            for prefix, suffix in ((b"event: ", b""), (b'data: {"type":"', b'","x":1}'))
        ],
        ("openai_responses", b'data: {"sequence_number": 3, "type": "response.completed"}'),
        ("openai_responses", b'data: {"type":"error","code":"x"}'),
        ("anthropic_messages", b"event: message_stop"),
        ("anthropic_messages", b'data: {"type":"message_stop"}'),
        ("anthropic_messages", b'data: {"type": "error", "error": {}}'),
    ],
)
def test_the_end_of_a_stream_is_found_by_its_bytes(name: str, line: bytes) -> None:
    """Where a line begins, after any line end; and by a hint that is in the line."""
    speaks = dialect(name)
    for before in (b"", b"\n", b"data: x\n\n", b"\r", b"\r\n\r\n"):
        found = speaks.end.search(before + line + b"\n")
        assert found is not None
        assert found.start() in (len(before), len(before) - 1)
    assert any(hint in line for hint in speaks.hints)


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}',
        b'data: {"choices":[{"delta":{"content":"\\"error\\""}}],"error":null}',
        b'data: {"type":"x","delta":"\\"type\\":\\"message_stop\\""}',
        b'data: {"delta":"event: response.completed"}',
        b": data: [DONE]",
        b"xdata: [DONE]",
        b'data: {"error":null, "type":"response.created"}',
    ],
)
def test_an_end_inside_a_text_is_none(name: str, line: bytes) -> None:
    """Quotes in a text are escaped, and a line begins only once."""
    assert dialect(name).end.search(b"\n" + line + b"\n\n") is None


@pytest.mark.parametrize(
    ("name", "before", "last"),
    [
        ("openai_responses", R_START + R_REASONING + R_TEXT, R_END[0]),
        ("openai_responses", R_START + R_TEXT, {"type": "error", "code": "x", "message": "m"}),
        ("openai_responses", R_START, r_event("failed", response=response("failed"))),
        (
            "anthropic_messages",
            [A_START, *A_THINKING, *A_TEXT, *a_end("end_turn")[:1]],
            {"type": "message_stop"},
        ),
        ("anthropic_messages", [A_START], {"type": "error", "error": {"type": "x", "message": "m"}}),
    ],
)
@pytest.mark.parametrize("write", [named, bare])
@pytest.mark.parametrize("size", [1, 7, 64, 1000, 100_000])
def test_the_send_path_sees_every_end(
    name: str, before: list[dict[str, Any]], last: dict[str, Any], write: Any, size: int
) -> None:
    """In the read that completes it, however the stream is cut, and nowhere before."""
    head, watch = b"".join(write(event) for event in before), EndWatch(dialect(name))
    whole = head + write(last)
    seen = [watch.feed(0, whole[at : at + size]) for at in range(0, len(whole), size)]
    assert seen.index(True) == len(seen) - 1
