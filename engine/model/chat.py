"""Chat messages to prompt text: Hugging Face's Jinja templates in a sandbox, and plain ChatML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

Messages = Sequence[Mapping[str, Any]]


def text_of(content: object) -> str:
    """The text of one message's content: a string, or OpenAI's list of text parts joined by newlines.

    Raises ValueError for anything else, an image part for instance.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = []
        for part in content:
            if not (
                isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
            ):
                raise ValueError(f"content part {part!r} is not {{'type': 'text', 'text': ..}}")
            parts.append(part["text"])
        return "\n".join(parts)
    raise ValueError(f"content must be text or a list of text parts, not {content!r}")


def chatml(messages: Messages) -> str:
    """ChatML without a default system prompt, ready for the assistant's turn. Raises ValueError."""
    turns = []
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ValueError(f"role must be a word, not {role!r}")
        turns.append(f"{IM_START}{role}\n{text_of(message.get('content'))}{IM_END}\n")
    return "".join(turns) + f"{IM_START}assistant\n"


class _Generation(Extension):
    """``{% generation %} .. {% endgeneration %}`` marks what an assistant says, for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A Jinja chat template as Hugging Face tokenizers carry it, rendered in a sandbox.

    It sees ``messages``, ``add_generation_prompt`` (true), the special tokens, ``raise_exception``,
    ``strftime_now``, ``tojson`` and the tag ``generation``, as in transformers. ``now`` feeds
    ``strftime_now`` alone.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template is not valid Jinja: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Messages) -> str:
        """The prompt text. Raises ValueError with the template's own words if it refuses."""
        plain = [_with_plain_content(message) for message in messages]
        try:
            return self._template.render(
                messages=plain, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        except RecursionError as error:
            raise ValueError("the chat template cannot follow messages that are nested so deeply") from error


def _with_plain_content(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    plain = dict(message)
    if content is not None:
        plain["content"] = text_of(content)
    return plain


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
