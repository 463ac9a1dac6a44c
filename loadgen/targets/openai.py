"""The two OpenAI dialects: chat completions and completions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loadgen.plan import Shot
from loadgen.targets.base import Payload
from loadgen.targets.reading import ChoiceDelta, Reading, ToolDelta, find_error
from loadgen.text import Message
from loadgen.transport import HttpRequest


@dataclass(frozen=True, slots=True)
class _OpenAI:
    """What both dialects take.

    ``key_env`` names the environment variable that holds the API key; the key itself is read when a
    request is made and stored nowhere. ``ignore_eos``, ``min_tokens`` and ``token_ids`` are sent only
    where the target is said to accept them (MEASUREMENT C14).
    """

    end: ClassVar[re.Pattern[bytes]] = re.compile(
        rb'(?:^|[\r\n])(?:data: ?(?:\[DONE\]|\{"error")|event: ?error)'
    )

    model: str
    own: bool = False
    key_env: str | None = None
    ignore_eos: bool = False
    min_tokens: bool = False
    token_ids: bool = False
    temperature: float | None = 0.0

    def read(self, payload: Payload) -> Reading:
        usage = payload.get("usage")
        choices = payload.get("choices")
        return Reading(
            tuple(_choice(c) for c in choices if isinstance(c, Mapping)) if isinstance(choices, list) else (),
            usage if isinstance(usage, Mapping) else None,
            find_error(payload),
        )

    def _headers(self, shot: Shot, request_id: str) -> tuple[tuple[str, str], ...]:
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream, application/json"),
            ("Accept-Encoding", "identity"),
            ("X-Request-Id", request_id),
        ]
        if self.key_env is not None:
            headers.append(("Authorization", f"Bearer {_key(self.key_env)}"))
        if shot.idempotency_key is not None:
            headers.append(("Idempotency-Key", shot.idempotency_key))
        if self.own:
            headers += [
                ("X-Headrace-Class", shot.class_),
                ("X-Headrace-Tenant", shot.tenant),
                ("X-Headrace-Session", str(shot.session)),
            ]
        return tuple(headers)

    def _params(self, shot: Shot, stream: bool) -> Payload:
        params: Payload = {"model": self.model, "max_tokens": shot.n_out_asked, "stream": stream}
        if stream:
            params["stream_options"] = {"include_usage": True}
        if self.temperature is not None:
            params["temperature"] = self.temperature
        if self.ignore_eos:
            params["ignore_eos"] = True
        if self.min_tokens:
            params["min_tokens"] = shot.n_out_asked
        if self.token_ids:
            params["return_token_ids"] = True
        return params


@dataclass(frozen=True, slots=True)
class OpenAIChat(_OpenAI):
    """`POST /v1/chat/completions`."""

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body = {**self._params(shot, stream), "messages": list(messages)}
        return _post("/v1/chat/completions", self._headers(shot, request_id), body)

    def tokenize(self, messages: Sequence[Message]) -> HttpRequest:
        return _post("/tokenize", _JSON, {"model": self.model, "messages": list(messages)})


@dataclass(frozen=True, slots=True)
class OpenAICompletions(_OpenAI):
    """`POST /v1/completions`: the messages joined into one prompt, one a line."""

    def request(
        self, shot: Shot, messages: Sequence[Message], request_id: str, stream: bool = True
    ) -> HttpRequest:
        body = {**self._params(shot, stream), "prompt": _joined(messages)}
        return _post("/v1/completions", self._headers(shot, request_id), body)

    def tokenize(self, messages: Sequence[Message]) -> HttpRequest:
        return _post("/tokenize", _JSON, {"model": self.model, "prompt": _joined(messages)})


_JSON = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))


def _joined(messages: Sequence[Message]) -> str:
    return "\n".join(message["content"] for message in messages)


def _post(path: str, headers: tuple[tuple[str, str], ...], body: Payload) -> HttpRequest:
    return HttpRequest("POST", path, headers, json.dumps(body, separators=(",", ":")).encode())


def _key(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ValueError(
            f"target.key_env names the environment variable {name}, which is not set; export it first"
        ) from None


def _choice(choice: Mapping[str, Any]) -> ChoiceDelta:
    """One entry of ``choices``, of a chat chunk (delta), a whole chat answer (message) or a completion."""
    part = choice.get("delta") or choice.get("message") or {}
    if not isinstance(part, Mapping):
        part = {}
    ids = choice.get("token_ids")
    return ChoiceDelta(
        index=choice.get("index") or 0,
        content=_text(part.get("content")) or _text(choice.get("text")),
        # Some servers send the same text under both names: it is counted once.
        reasoning=_text(part.get("reasoning_content")) or _text(part.get("reasoning")),
        refusal=_text(part.get("refusal")),
        tools=_tools(part.get("tool_calls")),
        audio=bool(part.get("audio")),
        ids=tuple(ids) if isinstance(ids, list) else None,
        count=_count(choice),
        finish=choice.get("finish_reason") or None,
    )


def _text(value: object) -> str:
    """Text of a field that holds a string, a list of text parts, or nothing."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    return value if isinstance(value, str) else ""


def _tools(calls: object) -> tuple[ToolDelta, ...]:
    """Tool deltas that carry a name or arguments; others are preludes."""
    found = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") or {} if isinstance(call, Mapping) else {}
        name, arguments = function.get("name") or None, _text(function.get("arguments"))
        if name or arguments:
            found.append(ToolDelta(call.get("index") or 0, call.get("id"), name, arguments))
    return tuple(found)


def _count(choice: Mapping[str, Any]) -> int | None:
    """Tokens that the event says it holds: ids first, else logprobs (MEASUREMENT C9)."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, Mapping):
        for key in ("content", "tokens", "token_logprobs"):
            if isinstance(logprobs.get(key), list):
                return len(logprobs[key])
    return None
