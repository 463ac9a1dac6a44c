"""What is sent to a target: its words, its headers, its key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan import Part, Shot
from loadgen.targets import (
    TARGETS,
    AnthropicMessages,
    Dialect,
    OpenAIChat,
    OpenAICompletions,
    OpenAIResponses,
)
from loadgen.targets.http import header_fault, option_fault, post
from loadgen.text import Message

SHOT = Shot(
    3,
    "chat",
    "window",
    5,
    0,
    (Part("user", 4, "k"),),
    4,
    16,
    due_ns=0,
    tenant="acme",
    rank=2,
    idempotency_key="once",
)
MESSAGES: list[Message] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hé"}]
NAMES = sorted(TARGETS)


def made(name: str, **options: Any) -> Dialect:
    return TARGETS[name](model="m", **options)  # type: ignore[call-arg]


@dataclass(frozen=True)
class OpenAIOptions:
    """What a scenario says of a target, without its model."""

    url: str = "http://h"
    dialect: str = "openai_chat"
    key_env: str | None = None
    key_header: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    temperature: float | None = 0.0
    accepts: Sequence[str] = ()


def sent(
    dialect: Dialect, messages: Sequence[Message] = MESSAGES, shot: Shot = SHOT, **options: Any
) -> tuple[str, dict[str, str], dict[str, Any]]:
    request = dialect.request(shot, messages, "run-3", **options)
    return request.path, dict(request.headers), json.loads(request.body)


@pytest.mark.parametrize("name", NAMES)
def test_every_dialect_asks_for_a_stream_and_plain_bytes(name: str) -> None:
    """C8: identity encoding, an id of our own; greedy, and no more tokens than asked."""
    path, headers, body = sent(made(name))
    assert path.startswith("/v1/")
    assert headers["Accept-Encoding"] == "identity"
    assert (headers["X-Request-Id"], headers["Idempotency-Key"]) == ("run-3", "once")
    assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0.0)
    assert body.get("max_tokens", body.get("max_output_tokens")) == 16
    assert sent(made(name), stream=False)[2]["stream"] is False
    assert "temperature" not in sent(made(name, temperature=None))[2]


@pytest.mark.parametrize("name", ["openai_chat", "openai_completions"])
def test_usage_is_asked_for_where_it_has_to_be(name: str) -> None:
    """C8: by dialect; only a stream has options."""
    assert sent(made(name))[2]["stream_options"] == {"include_usage": True}
    assert "stream_options" not in sent(made(name), stream=False)[2]


@pytest.mark.parametrize("name", NAMES)
def test_extensions_go_only_to_targets_that_accept_them(name: str) -> None:
    """C14: a foreign target gets neither our headers nor fields that it may refuse."""
    _, headers, body = sent(made(name))
    assert not {h for h in headers if h.startswith("X-Headrace")}
    assert not {"ignore_eos", "min_tokens", "return_token_ids"} & set(body)
    _, headers, body = sent(made(name, own=True, ignore_eos=True, min_tokens=True, token_ids=True))
    assert (body["ignore_eos"], body["min_tokens"]) == (True, 16)
    assert body.get("return_token_ids") == (True if name in ("openai_chat", "openai_completions") else None)
    assert "priority" not in body
    assert sent(made(name, priority=True))[2]["priority"] == 2
    tags = [headers[f"X-Headrace-{key}"] for key in ("Class", "Tenant", "Session")]
    assert tags == ["chat", "acme", "5"]


DOCUMENTED = {
    "openai_chat": {"model", "messages", "max_tokens", "stream", "stream_options", "temperature"},
    "openai_completions": {"model", "prompt", "max_tokens", "stream", "stream_options", "temperature"},
    "openai_responses": {"model", "input", "max_output_tokens", "stream", "temperature"},
    "anthropic_messages": {"model", "system", "messages", "max_tokens", "stream", "temperature"},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_body_has_documented_fields_only(name: str) -> None:
    """Whatever else is set: servers that answer 422 to an unknown field must be served."""
    body = sent(made(name, strict=True, ignore_eos=True, min_tokens=True, token_ids=True, priority=True))[2]
    assert set(body) == DOCUMENTED[name]


def test_newer_models_take_another_limit() -> None:
    """OpenAI's reasoning models refuse max_tokens."""
    body = sent(OpenAIChat("m", max_completion_tokens=True))[2]
    assert body["max_completion_tokens"] == 16
    assert "max_tokens" not in body


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_is_asked_for_as_a_model(name: str) -> None:
    """The way in which servers name adapters."""
    shot = Shot(0, "chat", "window", 0, 0, (Part("user", 4, "k"),), 4, 16, due_ns=0, adapter="lora-7")
    dialect = made(name)
    assert sent(dialect, shot=shot)[2]["model"] == dialect.model_of(shot) == "lora-7"
    assert dialect.model_of(SHOT) == "m"


# --- the key


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("openai_chat", "Authorization", "Bearer s3cret"),
        ("openai_completions", "Authorization", "Bearer s3cret"),
        ("openai_responses", "Authorization", "Bearer s3cret"),
        ("anthropic_messages", "x-api-key", "s3cret"),
    ],
)
def test_the_key_is_read_from_the_environment_and_never_kept(
    name: str, header: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the variable's name is part of the dialect; it goes where the dialect puts it."""
    dialect = made(name, key_env="HR_TEST_KEY")
    monkeypatch.delenv("HR_TEST_KEY", raising=False)
    with pytest.raises(ValueError, match="HR_TEST_KEY, which is not set"):
        sent(dialect)
    monkeypatch.setenv("HR_TEST_KEY", " ")
    with pytest.raises(ValueError, match="HR_TEST_KEY, which is empty"):
        sent(dialect)
    monkeypatch.setenv("HR_TEST_KEY", "s3cret\n")
    assert sent(dialect)[1][header] == value
    assert (header, value) in dialect.access()
    assert "s3cret" not in repr(dialect)
    assert "s3cret" not in repr([getattr(dialect, f.name) for f in fields(dialect)])  # type: ignore[arg-type]


def test_a_key_that_no_header_can_hold_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("HR_TEST_KEY", "s3c\r\nret")
    with pytest.raises(ValueError, match="HR_TEST_KEY holds characters") as caught:
        sent(OpenAIChat("m", key_env="HR_TEST_KEY"))
    assert "s3c" not in str(caught.value)


def test_the_key_may_go_into_another_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's `api-key`; vLLM wants a bearer for messages too."""
    monkeypatch.setenv("HR_TEST_KEY", "s3cret")
    assert ("api-key", "s3cret") in OpenAIChat("m", key_env="HR_TEST_KEY", key_header="api-key").access()
    bearer = AnthropicMessages("m", key_env="HR_TEST_KEY", key_header="Authorization").access()
    assert bearer == (("anthropic-version", "2023-06-01"), ("Authorization", "Bearer s3cret"))


def test_a_scenarios_own_headers_are_sent() -> None:
    """With every request, beside those of the dialect."""
    dialect = AnthropicMessages("m", headers={"anthropic-beta": "x-1", "X-Route": "a"})
    headers = sent(dialect)[1]
    assert (headers["anthropic-version"], headers["anthropic-beta"]) == ("2023-06-01", "x-1")
    assert headers["X-Route"] == "a"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        *[
            (name, "key_env")
            for name in (
                *("Authorization", "x-api-key", "Cookie", "api-key", "Proxy-Authorization", "X-Auth-Token"),
                *("x-goog-api-key", "ApiKey", "X-Amz-Security-Token", "X-Client-Secret", "api_key", "X-PAT"),
                *("Ocp-Apim-Subscription-Key", "X-Key", "key", "x_key", "AccessKey", "X-Authorisation"),
            )
        ],
        *[(name, "the client itself") for name in ("Host", "content-length", "X-Request-Id", "Accept")],
        ("X-Headrace-Class", "the client itself"),
        ("a b", "no name of a header"),
        ("", "no name of a header"),
        ("a:", "no name of a header"),
        ("X-Fine", None),
        ("OpenAI-Organization", None),
    ],
)
def test_headers_that_a_scenario_may_not_set(header: str, why: str | None) -> None:
    """Secrets come from the environment, and some headers only the client can send rightly."""
    fault = header_fault(header, "v")
    assert (fault is None) if why is None else (fault is not None and why in fault)
    assert header_fault("X-Fine", "a\r\nCookie: x") is not None


@pytest.mark.parametrize("name", ["Content-Length", "host", "X-Request-Id", "X-Headrace-Class"])
def test_a_key_does_not_go_into_a_header_of_the_clients_own(name: str) -> None:
    """Such a request could not be sent rightly."""
    fault = option_fault(OpenAIOptions(key_env="K", key_header=name))
    assert fault is not None
    assert "the client itself" in fault
    assert option_fault(OpenAIOptions(key_env="K", key_header="api-key")) is None


def test_a_key_in_the_place_of_its_headers_name_is_not_shown() -> None:
    """The error says where it belongs."""
    fault = option_fault(OpenAIOptions(key_header="sk-abcdef0123456789"))
    assert fault is not None
    assert "key_env" in fault
    assert "abcdef" not in fault


# --- conversations

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
TALK: list[Message] = [
    {"role": "system", "content": "s1"},
    {"role": "system", "content": "s2"},
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": "a1", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "r1"},
    {"role": "user", "content": "u2"},
    {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c2"}, {**CALL, "id": "c3"}]},
    {"role": "tool", "tool_call_id": "c2", "content": "r2"},
    {"role": "tool", "tool_call_id": "c3", "content": "r3"},
]


def test_prompts_are_messages_or_one_text() -> None:
    """Chat sends the messages as they are, completions their contents, one a line."""
    assert sent(OpenAIChat("m"))[2]["messages"] == MESSAGES
    assert sent(OpenAIChat("m"), TALK)[2]["messages"] == TALK
    assert sent(OpenAICompletions("m"))[2]["prompt"] == "be kind\nhé"
    lines = sent(OpenAICompletions("m"), TALK)[2]["prompt"].split("\n")
    call = 'look {"a": 1}'
    assert lines == ["s1", "s2", "u1", "a1", call, "r1", "u2", call, call, "r2", "r3"]


def test_a_conversation_in_responses() -> None:
    """Calls and their results are items of their own."""

    def call(id: str) -> dict[str, str]:
        return {"type": "function_call", "call_id": id, "name": "look", "arguments": '{"a": 1}'}

    def result(id: str, output: str) -> dict[str, str]:
        return {"type": "function_call_output", "call_id": id, "output": output}

    body = sent(OpenAIResponses("m"), TALK)[2]
    assert body["input"] == [
        {"role": "system", "content": "s1"},
        {"role": "system", "content": "s2"},
        {"role": "user", "content": "u1"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a1", "annotations": []}],
        },
        call("c1"),
        result("c1", "r1"),
        {"role": "user", "content": "u2"},
        call("c2"),
        call("c3"),
        result("c2", "r2"),
        result("c3", "r3"),
    ]
    assert body["store"] is False


def test_a_conversation_in_messages() -> None:
    """System apart; calls and results are blocks; roles take turns; the tools that are called are named."""

    def use(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "look", "input": {"a": 1}}

    def result(id: str, content: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id, "content": content}

    def text(said: str) -> dict[str, str]:
        return {"type": "text", "text": said}

    body = sent(AnthropicMessages("m"), TALK)[2]
    assert body["system"] == [text("s1"), text("s2")]
    assert body["messages"] == [
        {"role": "user", "content": "u1"},
        {"role": "assistant", "content": [text("a1"), use("c1")]},
        {"role": "user", "content": [result("c1", "r1"), text("u2")]},
        {"role": "assistant", "content": [use("c2"), use("c3")]},
        {"role": "user", "content": [result("c2", "r2"), result("c3", "r3")]},
    ]
    assert body["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
    plain = sent(AnthropicMessages("m"))[2]
    assert (plain["system"], plain["messages"]) == ("be kind", [{"role": "user", "content": "hé"}])
    assert "tools" not in plain


def test_a_message_without_content_is_no_turn() -> None:
    """Anthropic refuses empty text; arguments that are no object become an empty one."""
    odd = {"id": "c", "function": {"name": "f", "arguments": "[1"}}
    talk: list[Message] = [
        {"role": "user", "content": ""},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [odd]},
    ]
    turns = sent(AnthropicMessages("m"), talk)[2]["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert turns[1]["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]


# --- what is read


def test_odd_choices_are_read_without_failing() -> None:
    """Nulls and missing keys are what servers send."""
    reading = OpenAIChat("m").read(
        {"choices": [{"delta": None}, {"index": 1, "text": "x"}, None], "usage": 3}
    )
    assert [choice.content for choice in reading.choices] == ["", "x"]
    assert reading.usage is None


def test_token_ids_count_even_when_their_text_is_not_there_yet() -> None:
    """Half a character is a token already, but nothing to see."""
    choice = {"index": 0, "delta": {"content": ""}, "finish_reason": None, "token_ids": [7, 8]}
    (read,) = OpenAIChat("m").read({"choices": [choice]}).choices
    assert (read.bears_tokens, read.visible, read.count, read.ids) == (True, False, 2, (7, 8))


@given(st.text(), st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_bodies_say_what_they_are_to_say(text: str, number: float) -> None:
    """Any text and number, half a surrogate and more than 64 bits too."""
    for said in (text, text + "\ud800"):
        body = post("/x", (), {"text": said, "number": number}).body
        assert json.loads(body) == {"text": said, "number": number}
