"""A foreign endpoint as a scenario describes it."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.targets import AnthropicMessages
from scenarios.load import parse
from scenarios.parts import target_job
from scenarios.schema import UrlTarget


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"headers": {"authorization": "Bearer abc"}}, "key_env"),
        ({"key_env": "sk-abcdef"}, "name of an environment variable"),
        ({"key_header": "a b"}, "key_header"),
        ({"strict": True, "accepts": ("ignore_eos", "min_tokens")}, "ignore_eos and min_tokens"),
        ({"dialect": "anthropic_messages", "accepts": ("token_ids",)}, "no token ids"),
        ({"dialect": "openai_responses", "accepts": ("max_completion_tokens",)}, "max_completion_tokens"),
        ({"temperature": 3.0}, "from 0 to 2"),
        ({"url": "http://me:secret@x"}, "password"),
        ({"url": "ftp://x"}, "http://"),
    ],
)
def test_a_url_target_refuses_what_cannot_be_right(options: dict[str, Any], says: str) -> None:
    """With the remedy, and without the secret that may stand there."""
    with pytest.raises(ValueError, match=says) as caught:
        UrlTarget(**({"url": "http://x", "model": "m"} | options))
    assert not any(secret in str(caught.value) for secret in ("abc", "secret@"))


def test_every_option_reaches_the_dialect(good: str) -> None:
    """What the file says of headers, key, strictness and temperature is what the dialect is made of."""
    target = (
        "target={url: http://x, model: m, dialect: anthropic_messages, key_env: API_KEY, key_header: x-key,"
        " headers: {anthropic-beta: x-1}, strict: true, temperature: null}"
    )
    scenario = parse(good, "s.yaml", [target, "faults=[]", "gates=[]"])
    assert isinstance(scenario.target, UrlTarget)
    assert target_job(scenario.target).make() == AnthropicMessages(
        "m",
        key_env="API_KEY",
        key_header="x-key",
        headers={"anthropic-beta": "x-1"},
        strict=True,
        temperature=None,
    )
