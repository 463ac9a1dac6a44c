"""Answers in OpenAI's shapes, as the bytes that go out: whole, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.api.choices import Part
from engine.api.logprobs import Piece, of_chat, of_completion
from engine.api.openai import Call
from engine.fleet.backend import Ended

DONE = b"data: [DONE]\n\n"
_CHAT = "chat.completion", "chat.completion.chunk", "chatcmpl"
_TEXT = "text_completion", "text_completion", "cmpl"
"""What answers and their chunks are called, and what their ids begin with."""


def dump(value: Any) -> bytes:
    """Compact JSON; a lone surrogate, which has no UTF-8 form, becomes its escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


class Answer:
    """Formats one request's answer. ``created`` is unix time in whole seconds, ``piece`` the bytes of a
    token. Ids and logprobs are there only if the client asked for them, miss reasons with ``reasons``."""

    def __init__(self, id: int, created: int, call: Call, piece: Piece, reasons: bool = False) -> None:
        self.id = id
        self._call = call
        self._piece = piece
        self._reasons = reasons
        self._whole, chunk, prefix = _CHAT if call.chat else _TEXT
        # Made once: there is a chunk for nearly every token.
        self._head = {"id": f"{prefix}-{id}", "object": chunk, "created": created, "model": call.model}

    def chunk(self, index: int, part: Part, first: bool) -> bytes:
        """One token-bearing event of choice ``index``. The first of a chat's choice names the role."""
        if self._call.chat:
            delta = {"role": "assistant", "content": part.text} if first else {"content": part.text}
            body: dict[str, Any] = {"delta": delta}
        else:
            body = {"text": part.text}
        return event({**self._head, "choices": [self._choice(index, body, part, None)]})

    def finish(self, index: int, reason: str) -> bytes:
        """The event with a choice's finish reason, without text."""
        body: dict[str, Any] = {"delta": {}} if self._call.chat else {"text": ""}
        choice = {"index": index, **body, "logprobs": None, "finish_reason": reason}
        return event({**self._head, "choices": [choice]})

    def usage(self, ended: Ended, generated: int) -> bytes:
        """The usage event: no choices, usage and the headrace object."""
        return event({**self._head, "choices": [], **_account(ended, generated, self._reasons)})

    def whole(self, choices: Sequence[tuple[Part, str]], ended: Ended, generated: int) -> bytes:
        """Everything at once: the output of each choice and its finish reason."""
        bodies = []
        for index, (part, reason) in enumerate(choices):
            message = {"message": {"role": "assistant", "content": part.text}}
            body = message if self._call.chat else {"text": part.text}
            bodies.append(self._choice(index, body, part, reason))
        head = {**self._head, "object": self._whole}
        return dump({**head, "choices": bodies, **_account(ended, generated, self._reasons)})

    def _choice(self, index: int, body: dict[str, Any], part: Part, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, **body, "logprobs": self._logprobs(part), "finish_reason": reason}
        if self._call.return_token_ids:
            choice["token_ids"] = list(part.ids)
        return choice

    def _logprobs(self, part: Part) -> dict[str, Any] | None:
        if self._call.sampling.logprobs is None or len(part.logprobs) != len(part.ids):
            return None
        if self._call.chat:
            return of_chat(part.logprobs, self._piece)
        return of_completion(part.logprobs, part.offsets, self._piece)


def _account(ended: Ended, generated: int, reasons: bool) -> dict[str, Any]:
    usage = {
        "prompt_tokens": ended.prompt,
        "completion_tokens": generated,
        "total_tokens": ended.prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": ended.cached,
            "created_cache_tokens": ended.created_cache,
        },
    }
    headrace: dict[str, Any] = {
        "worker": ended.worker,
        "epoch": ended.epoch,
        "config_id": ended.config_id,
        "attempt": ended.attempt,
        "out_max": ended.out_max,
        "retention": ended.retention,
        "hits": ended.hits,
        "phases": phases(ended.times),
    }
    if reasons:
        headrace["misses"] = [asdict(miss) for miss in ended.misses]
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
