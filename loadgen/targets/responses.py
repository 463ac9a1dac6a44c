"""OpenAI's newer dialect: responses, a stream of typed events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loadgen.plan import Shot
from loadgen.targets.base import Payload
from loadgen.targets.calls import calls_of
from loadgen.targets.errors import find_error
from loadgen.targets.http import HttpTarget, post
from loadgen.targets.openai import ERROR_LINE
from loadgen.targets.reading import (
    ChoiceDelta,
    InBandError,
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

_ENDS = ("completed", "incomplete", "failed", "cancelled", "done")
_LAST = tuple(f"response.{how}" for how in _ENDS)
_LAST_LINE = rb"response\.(?:%s)" % "|".join(_ENDS).encode()


@dataclass(frozen=True, slots=True)
class OpenAIResponses(HttpTarget):
    """`POST /v1/responses`. Messages become input items, their tool calls and results items of their own."""

    end: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"(?:^|[\r\n])(?:data: ?\[DONE\]|event: ?%s|data:[^\r\n]*\"type\" ?: ?\"%s\"|%s)"
        % (_LAST_LINE, _LAST_LINE, ERROR_LINE)
    )
    hints: ClassVar[tuple[bytes, ...]] = (*[word.encode() for word in _LAST], b"error", b"[DONE]")
    alike: ClassVar[bool] = False

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body: Payload = {
            "model": self.model_of(shot),
            "input": [item for message in messages for item in _items(message)],
            "max_output_tokens": shot.n_out_asked,
            "stream": stream,
            **self._greedy(),
            **self._extensions(shot),
        }
        if not self.strict:
            body["store"] = False  # else the provider keeps every answer of the load for a month
        return post("/v1/responses", self._headers(shot, request_id), body)

    def read(self, payload: Payload) -> Reading:
        type_ = payload.get("type")
        if not isinstance(type_, str):
            return _whole(payload)
        if type_.endswith(".delta"):
            return Reading(_delta(type_, payload))
        if type_ == "response.output_item.added":
            return Reading(_item_added(payload))
        if type_ in _LAST:
            response = payload.get("response")
            return _ended(type_.removeprefix("response."), response if isinstance(response, dict) else {})
        return Reading(error=find_error(payload))


def _items(message: Message) -> list[dict[str, Any]]:
    role, text = message["role"], text_of(message.get("content"))
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": text}]
    calls = [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in calls_of(message)
    ]
    if role != "assistant":
        return [{"role": role, "content": text}]
    # Not every server takes an assistant's text in the short form.
    part = {"type": "output_text", "text": text, "annotations": []}
    said = [{"type": "message", "role": role, "content": [part]}] if text or not calls else []
    return [*said, *calls]


def _delta(type_: str, payload: Payload) -> tuple[ChoiceDelta, ...]:
    """``response.KIND.delta``: text, reasoning, a refusal, audio, or the arguments of some call."""
    kind, delta = type_.removeprefix("response.").removesuffix(".delta"), payload.get("delta")
    if isinstance(delta, dict):
        delta = delta.get("text")  # the older form of a summary's delta
    if not isinstance(delta, str) or not delta:
        return ()
    if kind == "output_text":
        return (ChoiceDelta(content=delta, count=_count(payload.get("logprobs"))),)
    if kind.startswith("reasoning"):
        return (ChoiceDelta(reasoning=delta),)
    if kind == "refusal":
        return (ChoiceDelta(refusal=delta),)
    if "audio" in kind:
        return (ChoiceDelta(audio=True),)
    return (ChoiceDelta(tools=(ToolDelta(index_of(payload.get("output_index")), arguments=delta),)),)


def _count(logprobs: object) -> int | None:
    return len(logprobs) if isinstance(logprobs, list) and logprobs else None


def _item_added(payload: Payload) -> tuple[ChoiceDelta, ...]:
    """The beginning of a call names its tool; some servers give the arguments with it."""
    item = payload.get("item")
    tool = _tool(index_of(payload.get("output_index")), item) if isinstance(item, dict) else None
    return (ChoiceDelta(tools=(tool,)),) if tool is not None else ()


def _tool(index: int, item: Mapping[str, Any]) -> ToolDelta | None:
    if not str(item.get("type")).endswith("_call"):
        return None
    name = string_or_none(item.get("name"))
    arguments = arguments_of(item.get("arguments")) or arguments_of(item.get("input"))
    id_ = string_or_none(item.get("call_id")) or string_or_none(item.get("id"))
    return ToolDelta(index, id_, name, arguments) if name or arguments else None


def _ended(how: str, response: Mapping[str, Any]) -> Reading:
    """The last event: it repeats the answer, which is here already, and adds usage and why it ended."""
    error = _error(how, response)
    choices = () if error is not None else (ChoiceDelta(finish=_finish(how, response)),)
    return Reading(choices, mapping_or_none(response.get("usage")), error=error, done=True)


def _whole(response: Payload) -> Reading:
    """An answer in one piece."""
    status, output = response.get("status"), response.get("output")
    usage = mapping_or_none(response.get("usage"))
    if not isinstance(output, list):
        return Reading(usage=usage, error=find_error(response))
    how = status if isinstance(status, str) else "completed"
    error = _error(how, response)
    if error is not None or how in ("in_progress", "queued"):
        return Reading(usage=usage, error=error)
    items = [item for item in output if isinstance(item, dict)]
    tools = [tool for index, item in enumerate(items) if (tool := _tool(index, item)) is not None]
    choice = ChoiceDelta(
        content="".join(_part(item, "output_text") for item in items if item.get("type") == "message"),
        reasoning="".join(_reasoning(item) for item in items if item.get("type") == "reasoning"),
        refusal="".join(_part(item, "refusal", "refusal") for item in items),
        tools=tuple(tools),
        finish=_finish(how, response),
    )
    return Reading((choice,), usage, done=True)


def _part(item: Mapping[str, Any], type_: str, key: str = "text") -> str:
    parts = item.get("content")
    listed = parts if isinstance(parts, list) else []
    return "".join(text_of(p.get(key)) for p in listed if isinstance(p, dict) and p.get("type") == type_)


def _reasoning(item: Mapping[str, Any]) -> str:
    return text_of(item.get("content")) or text_of(item.get("summary"))


def _finish(how: str, response: Mapping[str, Any]) -> str | None:
    """Why it ended, in our words: a completed response with a call in it waits for the tool."""
    if how == "incomplete" or response.get("status") == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return finish_word(reason) or "length"
    output = response.get("output")
    items = output if isinstance(output, list) else []
    called = any(isinstance(item, dict) and item.get("type") == "function_call" for item in items)
    return "tool_calls" if called else "stop"


def _error(how: str, response: Mapping[str, Any]) -> InBandError | None:
    error = response.get("error")
    if error:
        return find_error({"error": error})
    status = response.get("status")
    word = next((w for w in (how, status) if w in ("failed", "cancelled")), None)
    return InBandError(f"the response has {word}", str(word)) if word is not None else None
