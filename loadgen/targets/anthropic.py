"""Anthropic's dialect: messages, in content blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loadgen.plan import Shot
from loadgen.targets.base import Payload
from loadgen.targets.calls import calls_of
from loadgen.targets.errors import find_error
from loadgen.targets.http import Headers, HttpTarget, post
from loadgen.targets.openai import ERROR_LINE
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

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnthropicMessages(HttpTarget):
    """`POST /v1/messages`. System messages stand apart; neighbours of one role are one message."""

    key_place: ClassVar[str] = "x-api-key"
    version: ClassVar[Headers] = (("anthropic-version", "2023-06-01"),)
    end: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"(?:^|[\r\n])(?:data: ?\[DONE\]|event: ?message_stop|data:[^\r\n]*\"type\" ?: ?\"message_stop\"|%s)"
        % ERROR_LINE
    )
    hints: ClassVar[tuple[bytes, ...]] = (b"message_stop", b"error", b"[DONE]")
    alike: ClassVar[bool] = False

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body: Payload = {
            "model": self.model_of(shot),
            "max_tokens": shot.n_out_asked,
            "stream": stream,
            **_system(messages),
            "messages": _turns(messages),
            **_tools(messages),
            **self._greedy(),
            **self._extensions(shot),
        }
        return post("/v1/messages", self._headers(shot, request_id), body)

    def read(self, payload: Payload) -> Reading:
        match payload.get("type"):
            case "content_block_delta":
                return Reading(_delta(payload))
            case "content_block_start":
                return Reading(_begun(payload))
            case "message_start":
                message = payload.get("message")
                return Reading(usage=_usage(message) if isinstance(message, dict) else None)
            case "message_delta":
                return Reading(_finished(payload.get("delta")), _usage(payload), error=find_error(payload))
            case "message_stop":
                return Reading(usage=_usage(payload), done=True)
            case "message":
                return _whole(payload)
        return Reading(error=find_error(payload))


# --- what is sent


def _system(messages: Sequence[Message]) -> Payload:
    texts = [text_of(m.get("content")) for m in messages if m["role"] in ("system", "developer")]
    blocks = [_text_block(text) for text in texts if text]
    return {"system": blocks[0]["text"] if len(blocks) == 1 else blocks} if blocks else {}


def _turns(messages: Sequence[Message]) -> list[Payload]:
    turns: list[Payload] = []
    for message in messages:
        if message["role"] in ("system", "developer") or not (blocks := _blocks(message)):
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return [{**turn, "content": _short(turn["content"])} for turn in turns]


def _blocks(message: Message) -> list[Block]:
    text = text_of(message.get("content"))
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": text}]
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
        for call in calls_of(message)
    ]
    return ([_text_block(text)] if text else []) + calls


def _text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def _short(blocks: list[Block]) -> list[Block] | str:
    """A lone text may stand by itself, which every server understands."""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks


def _tools(messages: Sequence[Message]) -> Payload:
    """A conversation with calls is refused unless it names the tools that they call; there shall be no
    further calls, for nobody would answer them."""
    names = dict.fromkeys(call.name for message in messages for call in calls_of(message))
    if not names:
        return {}
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    return {"tools": tools, "tool_choice": {"type": "none"}}


# --- what comes back


def _usage(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return mapping_or_none(part.get("usage"))


def _delta(payload: Payload) -> tuple[ChoiceDelta, ...]:
    delta = payload.get("delta")
    if not isinstance(delta, dict):
        return ()
    if text := text_of(delta.get("text")):
        return (ChoiceDelta(content=text),)
    if thinking := text_of(delta.get("thinking")):
        return (ChoiceDelta(reasoning=thinking),)
    if arguments := text_of(delta.get("partial_json")):
        return (ChoiceDelta(tools=(ToolDelta(index_of(payload.get("index")), arguments=arguments),)),)
    return ()  # signatures, citations


def _begun(payload: Payload) -> tuple[ChoiceDelta, ...]:
    block = payload.get("content_block")
    if not isinstance(block, dict):
        return ()
    choice = _choice([(index_of(payload.get("index")), block)])
    return (choice,) if choice.bears_tokens else ()


def _choice(blocks: Sequence[tuple[int, Mapping[str, Any]]], finish: str | None = None) -> ChoiceDelta:
    tools = [tool for index, block in blocks if (tool := _tool(index, block)) is not None]
    return ChoiceDelta(
        content="".join(text_of(block.get("text")) for _, block in blocks),
        reasoning="".join(text_of(block.get("thinking")) for _, block in blocks),
        tools=tuple(tools),
        finish=finish,
    )


def _tool(index: int, block: Mapping[str, Any]) -> ToolDelta | None:
    name = string_or_none(block.get("name"))
    if not str(block.get("type")).endswith("tool_use") or name is None:
        return None
    return ToolDelta(index, string_or_none(block.get("id")), name, arguments_of(block.get("input")))


def _finished(delta: object) -> tuple[ChoiceDelta, ...]:
    finish = finish_word(delta.get("stop_reason")) if isinstance(delta, dict) else None
    return (ChoiceDelta(finish=finish),) if finish is not None else ()


def _whole(message: Payload) -> Reading:
    """An answer in one piece."""
    listed = message.get("content")
    blocks = [(i, block) for i, block in enumerate(listed if isinstance(listed, list) else [])]
    known = [(i, block) for i, block in blocks if isinstance(block, dict)]
    choice = _choice(known, finish_word(message.get("stop_reason")))
    return Reading((choice,), _usage(message), error=find_error(message), done=True)
