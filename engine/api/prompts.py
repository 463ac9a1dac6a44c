"""Prompts to token ids, and where in them each chat message's content lies."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.api.errors import ApiError, invalid
from engine.api.openai import Prompt
from engine.model.chat import text_of
from engine.model.tokenizer import Tokenizer
from engine.request import Tokens


def tokenise(tokenizer: Tokenizer, prompt: Prompt) -> Tokens[int]:
    """Ids of a prompt. Raises ApiError 400 for ids outside the vocabulary, messages that the chat
    template refuses, and prompts without tokens."""
    ids = prompt.ids
    if ids is None:
        ids = array("I", _encoded(tokenizer, rendered(tokenizer, prompt)))
        if not ids:
            raise _invalid("the prompt has no tokens")
    if (largest := max(ids)) >= tokenizer.vocabulary:
        raise _invalid(f"prompt: id {largest} is not below {tokenizer.vocabulary}, the model's vocabulary")
    return ids


def check_salt(salt: str | None) -> None:
    """Raises ApiError 400 for text that has no UTF-8 form: no namespace could be made of it."""
    try:
        (salt or "").encode()
    except UnicodeEncodeError:
        raise invalid("cache_salt: it is not Unicode text", "cache_salt") from None


def rendered(tokenizer: Tokenizer, prompt: Prompt) -> str:
    """The text that the model sees. Raises ApiError 400 if the chat template refuses the messages."""
    if prompt.messages is None:
        assert prompt.text is not None
        return prompt.text
    try:
        return tokenizer.render_chat(prompt.messages)
    except ValueError as error:
        raise ApiError(400, "invalid_messages", str(error), param="messages") from error


@dataclass(frozen=True, slots=True)
class Component:
    """One message of a chat: its content's first token and how many tokens touch its characters."""

    path: str
    role: str
    start: int
    tokens: int


def components(tokenizer: Tokenizer, prompt: Prompt) -> tuple[Tokens[int], tuple[Component, ...]]:
    """Ids, and the chat messages in them; a content that the template changed beyond recognition has no
    component. Raises ApiError 400."""
    text = rendered(tokenizer, prompt)
    try:
        ids, spans = tokenizer.encode_with_offsets(text)
    except ValueError as error:
        raise _invalid(f"the prompt cannot be tokenised: {error}") from error
    found, at = [], 0
    for index, message in enumerate(prompt.messages or ()):
        content = _as_rendered(message, text, at)
        if content is None:
            continue
        start, end = content
        first = bisect_right(spans, start, key=lambda span: span[1])
        after = bisect_left(spans, end, key=lambda span: span[0])
        found.append(Component(f"messages[{index}]", str(message["role"]), first, max(0, after - first)))
        at = end
    return array("I", ids), tuple(found)


def _as_rendered(message: Mapping[str, Any], text: str, at: int) -> tuple[int, int] | None:
    """Span of characters of a message's content in the rendered text; templates may trim it."""
    content = text_of(message.get("content"))
    for candidate in (content, content.strip()):
        if candidate and (start := text.find(candidate, at)) >= 0:
            return start, start + len(candidate)
    return None


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer.encode(text)
    except ValueError as error:
        raise _invalid(f"the prompt cannot be tokenised: {error}") from error


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid_value", message, param="prompt")
