"""What one event of an answer says, in words that all dialects share.

The dataclasses that are made for every event are not frozen, which would cost three times as much; nobody
changes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ToolDelta:
    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class ChoiceDelta:
    """What an event adds to one choice. ``count`` = tokens that it brings, None if it does not say."""

    index: int = 0
    content: str = ""
    reasoning: str = ""
    refusal: str = ""
    tools: tuple[ToolDelta, ...] = ()
    audio: bool = False
    ids: tuple[int, ...] | None = None
    count: int | None = None
    finish: str | None = None

    @property
    def visible(self) -> bool:
        """Shows something to the user (MEASUREMENT C2)."""
        return bool(self.content or self.refusal or self.audio or self.tools)

    @property
    def bears_tokens(self) -> bool:
        """Carries output by itself, whatever usage says (MEASUREMENT C5): also a token without a text, such
        as a piece of a character, that ids or logprobs tell of."""
        if self.content or self.reasoning or self.refusal or self.audio or self.tools:
            return True
        return bool(self.ids or self.count) and self.finish is None


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error inside a body; ``code`` is the vendor's machine-readable word or number, as text."""

    message: str
    code: str | None = None
    retriable: bool | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


@dataclass(slots=True)
class Reading:
    choices: tuple[ChoiceDelta, ...] = ()
    usage: Mapping[str, Any] | None = None
    """As the server wrote it; results.attribution.usage knows all spellings."""
    timings: Mapping[str, Any] | None = None
    """llama.cpp's, which hold counters too."""
    error: InBandError | None = None
    done: bool = False
    """This event is the dialect's own last one (MEASUREMENT C2)."""


FINISHES: Mapping[str, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "completed": "stop",
    "complete": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}
"""Every vendor's word for an ordinary end, in the words of a scenario's ``checks.finish``."""

FAILURES = ("error", "failed", "abort", "aborted", "cancelled", "canceled", "insufficient_system_resource")
"""Finish reasons that say that the answer broke off."""


def finish_word(value: object) -> str | None:
    """A finish reason in our words; one that nobody knows stays as it is, in lower case.

    SGLang's native form is an object: ``{"type": "stop", "matched": 2}``.
    """
    if isinstance(value, dict):
        value = value.get("type")
    if not isinstance(value, str) or not value:
        return None
    word = value.lower()
    return FINISHES.get(word, word)


def text_of(value: object) -> str:
    """Text of a field that holds a string, a list of text parts, or nothing."""
    if value is None:  # most fields of most events
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = (part.get("text") for part in value if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def arguments_of(value: object) -> str:
    """Arguments of a tool call: JSON as text, or the object itself."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list) or not value:
        return ""
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        return ""


def index_of(value: object) -> int:
    """The number of a choice or a tool call; 0 where a server leaves it out or writes nonsense."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else 0


def string_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def mapping_or_none(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, dict) else None
