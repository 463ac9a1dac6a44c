"""Answers in OpenAI's shapes, as the bytes that go out: whole, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.api.choices import Part
from engine.api.logprobs import Piece, of_chat, of_completion
from engine.api.openai import Call
from engine.fleet.backend import Ended

DONE = b"data: [DONE]\n\n"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def dump(value: Any) -> bytes:
    """Compact JSON; a lone surrogate, which has no UTF-8 form, becomes its escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """Formats one request's answer. ``created`` is unix time in whole seconds, ``piece`` the bytes of a
    token. Ids and logprobs are there only if the client asked for them."""

    id: int
    created: int
    call: Call
    piece: Piece

    def chunk(self, index: int, part: Part, first: bool) -> bytes:
        """One token-bearing event of choice ``index``. The first of a chat's choice names the role."""
        if self.call.chat:
            role = {"role": "assistant"} if first else {}
            body: dict[str, Any] = {"delta": {**role, "content": part.text}}
        else:
            body = {"text": part.text}
        return self._event([self._choice(index, body, part, None)])

    def finish(self, index: int, reason: str) -> bytes:
        """The event with a choice's finish reason, without text."""
        body: dict[str, Any] = {"delta": {}} if self.call.chat else {"text": ""}
        return self._event([{"index": index, **body, "logprobs": None, "finish_reason": reason}])

    def usage(self, ended: Ended, generated: int) -> bytes:
        """The usage event: no choices, usage and the headrace object."""
        return self._event([], _account(ended, generated))

    def whole(self, choices: Sequence[tuple[Part, str]], ended: Ended, generated: int) -> bytes:
        """Everything at once: the output of each choice and its finish reason."""
        bodies = []
        for index, (part, reason) in enumerate(choices):
            message = {"message": {"role": "assistant", "content": part.text}}
            body = message if self.call.chat else {"text": part.text}
            bodies.append(self._choice(index, body, part, reason))
        return dump({**self._head(chunk=False), "choices": bodies, **_account(ended, generated)})

    def _choice(self, index: int, body: dict[str, Any], part: Part, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **body, "logprobs": self._logprobs(part), "finish_reason": reason}
        if self.call.return_token_ids:
            choice["token_ids"] = list(part.ids)
        return choice

    def _logprobs(self, part: Part) -> dict[str, Any] | None:
        if self.call.sampling.logprobs is None or len(part.logprobs) != len(part.ids):
            return None
        if self.call.chat:
            return of_chat(part.logprobs, self.piece)
        return of_completion(part.logprobs, part.offsets, self.piece)

    def _event(self, choices: list[dict[str, Any]], more: Mapping[str, Any] = _NOTHING) -> bytes:
        return event({**self._head(chunk=True), "choices": choices, **more})

    def _head(self, chunk: bool) -> dict[str, Any]:
        if self.call.chat:
            kind, prefix = ("chat.completion.chunk" if chunk else "chat.completion"), "chatcmpl"
        else:
            kind, prefix = "text_completion", "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.call.model,
        }


def _account(ended: Ended, generated: int) -> dict[str, Any]:
    usage = {
        "prompt_tokens": ended.prompt,
        "completion_tokens": generated,
        "total_tokens": ended.prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(ended.hits.values()),
            "created_cache_tokens": ended.created_cache,
        },
    }
    headrace = {
        "worker": ended.worker,
        "epoch": ended.epoch,
        "attempt": ended.attempt,
        "out_max": ended.out_max,
        "retention": ended.retention,
        "hits": ended.hits,
        "phases": phases(ended.times),
    }
    return {"usage": usage, "headrace": headrace}


def phases(times: dict[str, int | None]) -> dict[str, float | None]:
    """Seconds in each phase of a request's life; None where one of its ends did not happen."""

    def between(start: str, end: str) -> float | None:
        a, b = times.get(start), times.get(end)
        return None if a is None or b is None else (b - a) / 1e9

    return {
        "queue_seconds": between("received", "first_scheduled"),
        "prefill_seconds": between("first_scheduled", "prefill_done"),
        "decode_seconds": between("prefill_done", "finished"),
    }
