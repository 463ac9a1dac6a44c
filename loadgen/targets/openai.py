"""The two older OpenAI dialects: chat completions and completions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loadgen.plan import Shot
from loadgen.targets.base import Payload
from loadgen.targets.errors import find_error
from loadgen.targets.http import JSON, HttpTarget, post
from loadgen.targets.reading import (
    ChoiceDelta,
    Reading,
    ToolDelta,
    arguments_of,
    finish_word,
    index_of,
    mapping_or_none,
    string_or_none,
    text_of,
)
from loadgen.text import Message
from loadgen.transport import HttpRequest

ERROR_LINE = rb'data:[^\r\n]*"errors?"(?! ?: ?(?:null|""|\{\}|\[\]|false))|event: ?error'
"""A line of an event that may be an error: the word stands there by itself, and not for nothing."""


@dataclass(frozen=True, slots=True)
class _OpenAI(HttpTarget):
    end: ClassVar[re.Pattern[bytes]] = re.compile(rb"(?:^|[\r\n])(?:data: ?\[DONE\]|" + ERROR_LINE + rb")")
    hints: ClassVar[tuple[bytes, ...]] = (b"[DONE]", b"error")
    alike: ClassVar[bool] = True

    def read(self, payload: Payload) -> Reading:
        return _usual(payload) or self._read(payload)

    def _read(self, payload: Payload) -> Reading:
        listed = payload.get("choices")
        choices = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
        return Reading(
            tuple([_choice(c) for c in choices]),
            _usage(payload, choices),
            mapping_or_none(payload.get("timings")),
            find_error(payload),
        )

    def _params(self, shot: Shot, stream: bool) -> Payload:
        limit = "max_completion_tokens" if self.max_completion_tokens else "max_tokens"
        params: Payload = {"model": self.model_of(shot), limit: shot.n_out_asked, "stream": stream}
        if stream:
            params["stream_options"] = {"include_usage": True}
        params |= self._greedy() | self._extensions(shot)
        if self.token_ids and not self.strict:
            params["return_token_ids"] = True
        return params


@dataclass(frozen=True, slots=True)
class OpenAIChat(_OpenAI):
    """`POST /v1/chat/completions`."""

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body = {**self._params(shot, stream), "messages": list(messages)}
        return post("/v1/chat/completions", self._headers(shot, request_id), body)


@dataclass(frozen=True, slots=True)
class OpenAICompletions(_OpenAI):
    """`POST /v1/completions`: the messages joined into one prompt, one a line."""

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body = {**self._params(shot, stream), "prompt": _joined(messages)}
        return post("/v1/completions", self._headers(shot, request_id), body)

    def tokenize(self, messages: Sequence[Message]) -> HttpRequest:
        return post("/tokenize", JSON, {"model": self.model, "prompt": _joined(messages)})


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(part for message in messages for part in _written(message))


def _written(message: Message) -> list[str]:
    """A message as lines of a prompt; tool calls stand there as their JSON."""
    text = text_of(message.get("content"))
    calls = message.get("tool_calls") or ()
    called = [f"{call['function']['name']} {call['function']['arguments']}" for call in calls]
    return [text, *called] if text or not called else called


_HEAD = frozenset(
    ("id", "created", "model", "choices", "object", "system_fingerprint", "service_tier", "usage")
)
_CHOICE = frozenset(("index", "delta", "finish_reason", "logprobs", "token_ids", "stop_reason"))


def _usual(payload: Payload) -> Reading | None:
    """What nearly every event of a chat is, read at a third of the cost: a text of one choice and no word
    of anything else. None if there could be more in it."""
    choices = payload.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
        return None
    (choice,) = choices
    delta, index, ids = choice.get("delta"), choice.get("index"), choice.get("token_ids")
    if type(delta) is not dict or len(delta) != 1 or type(index) is not int or choice.get("finish_reason"):
        return None
    content = delta.get("content")
    if type(content) is not str or not payload.keys() <= _HEAD or not choice.keys() <= _CHOICE:
        return None
    if payload.get("usage") is not None or payload.get("object") == "error" or choice.get("logprobs"):
        return None
    if ids is None:
        return Reading((ChoiceDelta(index, content),))
    return Reading((ChoiceDelta(index, content, ids=_ids(ids), count=_count(None, ids)),))


def _usage(payload: Payload, choices: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Groq and Moonshot put the block elsewhere."""
    usage = payload.get("usage")
    if isinstance(usage, dict):
        return usage
    groq = payload.get("x_groq")
    if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
        found: Mapping[str, Any] = groq["usage"]
        return found
    return next((u for c in choices if isinstance(u := c.get("usage"), dict)), None)


def _choice(choice: Mapping[str, Any]) -> ChoiceDelta:
    """One entry of ``choices``, of a chat chunk (delta), a whole chat answer (message) or a completion."""
    part = choice.get("delta")
    if not isinstance(part, dict):
        part = choice.get("message")
    if not isinstance(part, dict):
        part = _NOTHING
    get, content, ids = part.get, part.get("content"), choice.get("token_ids")
    index, finish = choice.get("index"), choice.get("finish_reason")
    return ChoiceDelta(
        index if type(index) is int else index_of(index),
        content if type(content) is str and content else text_of(content) or text_of(choice.get("text")),
        # Some servers send the same text under both names: it is counted once.
        text_of(get("reasoning_content")) or text_of(get("reasoning")) or _thinking(content),
        text_of(get("refusal")),
        _tools(get("tool_calls"), get("function_call")),
        _sounds(get("audio")),
        None if ids is None else _ids(ids),
        _count(choice.get("logprobs"), ids),
        None if finish is None else finish_word(finish),
    )


_NOTHING: dict[str, Any] = {}


def _sounds(audio: object) -> bool:
    """Its id and when it expires are no output."""
    return bool(audio.get("data") or audio.get("transcript")) if isinstance(audio, dict) else bool(audio)


def _thinking(content: object) -> str:
    """Mistral's reasoning: parts of the content."""
    if not isinstance(content, list):
        return ""
    return "".join(text_of(part.get("thinking")) for part in content if isinstance(part, dict))


def _tools(calls: object, old: object) -> tuple[ToolDelta, ...]:
    """Tool deltas that carry a name or arguments; others are preludes. ``old``: the field before there were
    several."""
    if not calls and not old:
        return ()
    listed = list(calls) if isinstance(calls, list) else []
    if isinstance(old, dict):
        listed.append({"function": old})
    return tuple([delta for call in listed if isinstance(call, dict) and (delta := _tool(call))])


def _tool(call: Mapping[str, Any]) -> ToolDelta | None:
    function = call.get("function") or call.get("custom")
    if not isinstance(function, dict):
        return None
    name, arguments = string_or_none(function.get("name")), arguments_of(function.get("arguments"))
    arguments = arguments or arguments_of(function.get("input"))
    if not name and not arguments:
        return None
    return ToolDelta(index_of(call.get("index")), string_or_none(call.get("id")), name, arguments)


def _ids(ids: object) -> tuple[int, ...] | None:
    if not isinstance(ids, list):
        return None
    return tuple([i for i in ids if isinstance(i, int) and not isinstance(i, bool)])


def _count(logprobs: object, ids: object) -> int | None:
    """Tokens that the event says it holds: ids first, else logprobs (MEASUREMENT C9)."""
    if isinstance(ids, list):
        return len(ids)
    if isinstance(logprobs, dict):
        for key in ("content", "tokens", "token_logprobs"):
            if isinstance(logprobs.get(key), list) and logprobs[key]:  # empty, it says nothing
                return len(logprobs[key])
    return None
