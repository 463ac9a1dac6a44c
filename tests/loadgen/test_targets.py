"""What is sent to a target, and how its answers are understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.plan import Part, Shot
from loadgen.targets import TARGETS, Dialect, OpenAIChat, OpenAICompletions
from loadgen.targets.errors import find_error

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
    idempotency_key="once",
)
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hé"}]


def sent(dialect: Dialect, **options: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    request = dialect.request(SHOT, MESSAGES, "run-3", **options)
    return request.path, dict(request.headers), json.loads(request.body)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_dialect_asks_for_a_stream_with_usage_and_plain_bytes(name: str) -> None:
    """C8: identity encoding, include_usage, an id of our own; greedy, and no more tokens than asked."""
    path, headers, body = sent(TARGETS[name](model="m"))  # type: ignore[call-arg]
    assert path.startswith("/v1/")
    assert headers["Accept-Encoding"] == "identity"
    assert (headers["X-Request-Id"], headers["Idempotency-Key"]) == ("run-3", "once")
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 16, 0.0)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_extensions_go_only_to_targets_that_accept_them(name: str) -> None:
    """C14: a foreign target gets neither our headers nor fields that it may refuse."""
    _, headers, body = sent(TARGETS[name](model="m"))  # type: ignore[call-arg]
    assert not {h for h in headers if h.startswith("X-Headrace")}
    assert not {"ignore_eos", "min_tokens", "return_token_ids"} & set(body)
    ours = TARGETS[name](model="m", own=True, ignore_eos=True, min_tokens=True, token_ids=True)  # type: ignore[call-arg]
    _, headers, body = sent(ours)
    assert (body["ignore_eos"], body["min_tokens"], body["return_token_ids"]) == (True, 16, True)
    tags = [headers[f"X-Headrace-{key}"] for key in ("Class", "Tenant", "Session")]
    assert tags == ["chat", "acme", "5"]


def test_prompts_are_messages_or_one_text() -> None:
    """Chat sends the messages, completions their contents, one a line."""
    assert sent(OpenAIChat("m"))[2]["messages"] == MESSAGES
    assert sent(OpenAICompletions("m"))[2]["prompt"] == "be kind\nhé"
    assert "stream_options" not in sent(OpenAIChat("m"), stream=False)[2]


def test_the_key_is_read_from_the_environment_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the variable's name is part of the dialect; a missing one is named."""
    dialect = OpenAIChat("m", key_env="HR_TEST_KEY")
    with pytest.raises(ValueError, match="HR_TEST_KEY, which is not set"):
        sent(dialect)
    monkeypatch.setenv("HR_TEST_KEY", "s3cret")
    assert sent(dialect)[1]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(dialect)


@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ({"error": {"message": "m", "type": "server_error", "code": "worker_lost"}}, "worker_lost", "m"),
        ({"error": {"message": "m", "type": "overloaded_error"}}, "overloaded_error", "m"),
        ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, "429", "m"),
        ({"error": "m", "code": 7}, "7", "m"),
        ({"error": {"code": "x"}}, "x", "{'code': 'x'}"),
        ({"errors": [{"message": "m", "code": "x"}]}, "x", "m"),
        ({"object": "error", "message": "m", "code": 40001}, "40001", "m"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "overloaded_error", "m"),
        ([{"error": {"code": 503, "message": "m"}}], "503", "m"),
        ({"detail": "m"}, None, "m"),
        ({"detail": [{"msg": "m", "type": "missing"}]}, "missing", "m"),
        ({"choices": [{"error": {"message": "m", "code": 502}}]}, "502", "m"),
        ({"choices": [{"delta": {}, "finish_reason": "error"}]}, "error", "finish_reason error"),
    ],
)
def test_an_error_in_any_vendors_shape_is_found(payload: Any, code: str | None, message: str) -> None:
    """C23: status 200 does not make it a success; code and words are kept."""
    found = find_error(payload)
    assert found is not None
    assert (found.code, found.message) == (code, message)


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [{"delta": {"content": "error"}, "finish_reason": None}]},
        {"choices": [], "usage": {"prompt_tokens": 1}, "error": None},
        {"object": "chat.completion.chunk", "choices": [None]},
        "text",
        None,
    ],
)
def test_ordinary_payloads_hold_no_error(payload: Any) -> None:
    """Neither text that says `error` nor an empty error field is one."""
    assert find_error(payload) is None


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
