"""The words of the four APIs that the reference server speaks."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

Payload = dict[str, Any]

_ID = "reference-1"
_CREATED = 1_700_000_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its type, if it names one, and its JSON or plain text."""

    data: Payload | str
    name: str | None = None

    @property
    def text(self) -> str:
        return self.data if isinstance(self.data, str) else json.dumps(self.data, separators=(",", ":"))


DONE = Event("[DONE]")


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int
    output: int
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What stands beside the last token of a stream. None = it does not."""

    finish: str | None
    usage: Usage | None
    done: bool


def token_text(k: int) -> str:
    """The text of token ``k``, from 0: a space and a letter, one token for most tokenizers."""
    return f" {_LETTERS[k % 26]}"


def text_of(n: int) -> str:
    return "".join(map(token_text, range(n)))


class Wire(Protocol):
    """How one API says it. ``prompt`` = tokens of the prompt."""

    roles: ClassVar[bool]
    """Its prelude says no more than the role, and may be left out."""

    @abstractmethod
    def prelude(self, model: str, prompt: int) -> Sequence[Event]: ...
    @abstractmethod
    def token(self, model: str, k: int) -> Event: ...
    @abstractmethod
    def tail(self, model: str, n: int, ending: Ending) -> Sequence[Event]:
        """What follows the last of ``n`` tokens."""

    @abstractmethod
    def whole(self, model: str, n: int, finish: str, usage: Usage) -> Payload: ...

    def error(self, message: str) -> Event:
        return Event({"error": {"message": message, "type": "server_error", "code": 500}})


@dataclass(frozen=True, slots=True)
class _OpenAI(Wire):
    roles: ClassVar[bool] = True
    object: ClassVar[str] = ""
    chunk: ClassVar[str] = ""

    @abstractmethod
    def _choice(self, text: str, k: int | None, finish: str | None) -> Payload:
        """One entry of ``choices``; ``k`` = None for a whole answer."""

    def token(self, model: str, k: int) -> Event:
        return self._event(model, [self._choice(token_text(k), k, None)])

    def tail(self, model: str, n: int, ending: Ending) -> Sequence[Event]:
        events = []
        if ending.finish is not None:
            events.append(self._event(model, [self._choice("", n, ending.finish)]))
        if ending.usage is not None:
            events.append(self._event(model, [], _openai_usage(ending.usage)))
        return [*events, DONE] if ending.done else events

    def whole(self, model: str, n: int, finish: str, usage: Usage) -> Payload:
        choices = [self._choice(text_of(n), None, finish)]
        return {**self._shell(self.object, model, choices), "usage": _openai_usage(usage)}

    def _event(self, model: str, choices: list[Payload], usage: Payload | None = None) -> Event:
        shell = self._shell(self.chunk, model, choices)
        return Event(shell if usage is None else {**shell, "usage": usage})

    @staticmethod
    def _shell(object_: str, model: str, choices: list[Payload]) -> Payload:
        return {"id": _ID, "object": object_, "created": _CREATED, "model": model, "choices": choices}


@dataclass(frozen=True, slots=True)
class Chat(_OpenAI):
    object: ClassVar[str] = "chat.completion"
    chunk: ClassVar[str] = "chat.completion.chunk"

    def prelude(self, model: str, prompt: int) -> Sequence[Event]:
        delta = {"role": "assistant", "content": ""}
        return [self._event(model, [{"index": 0, "delta": delta, "finish_reason": None}])]

    def _choice(self, text: str, k: int | None, finish: str | None) -> Payload:
        if k is None:
            return {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": finish,
            }
        return {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}


@dataclass(frozen=True, slots=True)
class Completions(_OpenAI):
    object: ClassVar[str] = "text_completion"
    chunk: ClassVar[str] = "text_completion"

    def prelude(self, model: str, prompt: int) -> Sequence[Event]:
        return []

    def _choice(self, text: str, k: int | None, finish: str | None) -> Payload:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


@dataclass(frozen=True, slots=True)
class Messages(Wire):
    """Anthropic's; the prelude carries the prompt's usage."""

    roles: ClassVar[bool] = False

    def prelude(self, model: str, prompt: int) -> Sequence[Event]:
        message: Payload = {
            "id": _ID,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": prompt, "output_tokens": 0},
        }
        block = {"type": "text", "text": ""}
        return [
            _typed("message_start", message=message),
            _typed("content_block_start", index=0, content_block=block),
        ]

    def token(self, model: str, k: int) -> Event:
        return _typed("content_block_delta", index=0, delta={"type": "text_delta", "text": token_text(k)})

    def tail(self, model: str, n: int, ending: Ending) -> Sequence[Event]:
        events = [_typed("content_block_stop", index=0)]
        if ending.finish is not None or ending.usage is not None:
            delta = {"stop_reason": _STOP_REASONS.get(ending.finish or "")}
            usage = {} if ending.usage is None else {"usage": _anthropic_usage(ending.usage)}
            events.append(_typed("message_delta", delta=delta, **usage))
        return [*events, _typed("message_stop")] if ending.done else events

    def whole(self, model: str, n: int, finish: str, usage: Usage) -> Payload:
        return {
            "id": _ID,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": text_of(n)}],
            "stop_reason": _STOP_REASONS[finish],
            "usage": _anthropic_usage(usage),
        }

    def error(self, message: str) -> Event:
        return _typed("error", error={"type": "api_error", "message": message})


@dataclass(frozen=True, slots=True)
class Responses(Wire):
    """OpenAI's responses."""

    roles: ClassVar[bool] = False

    def prelude(self, model: str, prompt: int) -> Sequence[Event]:
        item = {"type": "message", "id": "item-1", "role": "assistant", "status": "in_progress"}
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            _typed("response.created", response=_response(model, "in_progress", [])),
            _typed("response.output_item.added", output_index=0, item={**item, "content": []}),
            _typed("response.content_part.added", **_PLACE, part=part),
        ]

    def token(self, model: str, k: int) -> Event:
        return _typed("response.output_text.delta", **_PLACE, delta=token_text(k))

    def tail(self, model: str, n: int, ending: Ending) -> Sequence[Event]:
        events = [_typed("response.output_text.done", **_PLACE, text=text_of(n))]
        if not ending.done:
            return events
        cut = ending.finish == "length"
        name = "response.incomplete" if cut else "response.completed"
        whole = self._ended(model, n, ending.finish, ending.usage)
        return [*events, _typed(name, response=whole)]

    def whole(self, model: str, n: int, finish: str, usage: Usage) -> Payload:
        return self._ended(model, n, finish, usage)

    def error(self, message: str) -> Event:
        return _typed("error", code="server_error", message=message)

    @staticmethod
    def _ended(model: str, n: int, finish: str | None, usage: Usage | None) -> Payload:
        content = [{"type": "output_text", "text": text_of(n), "annotations": []}]
        item = {"type": "message", "id": "item-1", "role": "assistant", "status": "completed"}
        whole = _response(model, "completed", [{**item, "content": content}])
        if finish == "length":
            whole |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        if usage is not None:
            whole["usage"] = {
                "input_tokens": usage.prompt,
                "output_tokens": usage.output,
                "total_tokens": usage.prompt + usage.output,
            }
            if usage.cached is not None:
                whole["usage"]["input_tokens_details"] = {"cached_tokens": usage.cached}
        return whole


WIRES: dict[str, Wire] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Completions(),
    "/v1/messages": Messages(),
    "/v1/responses": Responses(),
}
"""By path."""

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_PLACE: Payload = {"item_id": "item-1", "output_index": 0, "content_index": 0}


def _typed(type_: str, **fields: Any) -> Event:
    return Event({"type": type_, **fields}, type_)


def _openai_usage(usage: Usage) -> Payload:
    said: Payload = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
    }
    if usage.cached is not None:
        said["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    return said


def _anthropic_usage(usage: Usage) -> Payload:
    """Anthropic's input_tokens leave out what was read from cache."""
    if usage.cached is None:
        return {"input_tokens": usage.prompt, "output_tokens": usage.output}
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _response(model: str, status: str, output: list[Payload]) -> Payload:
    return {
        "id": _ID,
        "object": "response",
        "created_at": _CREATED,
        "model": model,
        "status": status,
        "output": output,
    }
