"""Answers in OpenAI's shapes, as the bytes that go out: whole, or as server-sent events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.fleet.backend import Ended

DONE = b"data: [DONE]\n\n"


def dump(value: Any) -> bytes:
    """Compact JSON; a lone surrogate, which has no UTF-8 form, becomes its escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """Formats one request's answer. ``created`` is unix time in whole seconds."""

    id: int
    created: int
    model: str
    chat: bool

    def chunk(self, text: str, ids: tuple[int, ...] | None, first: bool) -> bytes:
        """One token-bearing event; ``ids`` only if the client asked for them. The first of a chat names
        the role."""
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": text} if first else {"content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": None}
        if ids is not None:
            choice["token_ids"] = list(ids)
        return event({**self._head(chunk=True), "choices": [choice]})

    def finish(self, reason: str) -> bytes:
        """The event with the finish reason, without text."""
        choice: dict[str, Any] = {"index": 0, "delta": {}} if self.chat else {"index": 0, "text": ""}
        choice |= {"logprobs": None, "finish_reason": reason}
        return event({**self._head(chunk=True), "choices": [choice]})

    def usage(self, ended: Ended, generated: int) -> bytes:
        """The usage event: no choices, usage and the headrace object."""
        return event({**self._head(chunk=True), "choices": [], **_account(ended, generated)})

    def whole(
        self, text: str, ids: tuple[int, ...] | None, reason: str, ended: Ended, generated: int
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": reason}
        if ids is not None:
            choice["token_ids"] = list(ids)
        return dump({**self._head(chunk=False), "choices": [choice], **_account(ended, generated)})

    def _head(self, chunk: bool) -> dict[str, Any]:
        if self.chat:
            kind, prefix = ("chat.completion.chunk" if chunk else "chat.completion"), "chatcmpl"
        else:
            kind, prefix = "text_completion", "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def _account(ended: Ended, generated: int) -> dict[str, Any]:
    usage = {
        "prompt_tokens": ended.prompt,
        "completion_tokens": generated,
        "total_tokens": ended.prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": ended.cached,
            "created_cache_tokens": ended.created_cache,
        },
    }
    headrace = {
        "worker": ended.worker,
        "epoch": ended.epoch,
        "attempt": ended.attempt,
        "out_max": ended.out_max,
        "hits": {"device": ended.cached},
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
