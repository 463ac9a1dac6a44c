"""What one event of an answer says, in words that all dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDelta:
    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
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
        """Carries output by itself, whatever usage says (MEASUREMENT C5)."""
        return self.visible or bool(self.reasoning) or bool(self.ids)


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error inside a body; ``code`` is the vendor's machine-readable word or number, as text."""

    message: str
    code: str | None = None
    retriable: bool | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


@dataclass(frozen=True, slots=True)
class Reading:
    choices: tuple[ChoiceDelta, ...] = ()
    usage: Mapping[str, Any] | None = None
    error: InBandError | None = None


def find_error(payload: object, event_type: str = "message") -> InBandError | None:
    """The error in a payload of any vendor's shape, or None.

    Known shapes: ``{"error": {..}}``, ``{"error": ".."}``, ``{"errors": [..]}``, ``{"detail": ..}``,
    ``{"object": "error", ..}``, ``{"type": "error", ..}``, a list that holds one of these, a choice
    with an ``error`` or with ``finish_reason: error``, and anything in an event of type ``error``.
    """
    if isinstance(payload, list):
        return next((found for item in payload if (found := find_error(item, event_type))), None)
    if not isinstance(payload, Mapping):
        return InBandError(str(payload)) if event_type == "error" else None
    for key in ("error", "errors"):
        if payload.get(key):
            return _describe(payload[key], payload)
    if event_type == "error" or "error" in (payload.get("object"), payload.get("type")):
        return _describe(payload, payload)
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return _describe(payload["detail"], payload) if payload.get("detail") else None
    return next((found for choice in choices if (found := _in_choice(choice))), None)


def _in_choice(choice: object) -> InBandError | None:
    if not isinstance(choice, Mapping):
        return None
    if choice.get("error"):
        return _describe(choice["error"], choice)
    return InBandError("finish_reason error", "error") if choice.get("finish_reason") == "error" else None


def _describe(error: object, around: Mapping[str, Any]) -> InBandError:
    if isinstance(error, list) and error:
        error = error[0]
    if not isinstance(error, Mapping):
        code = around.get("code")
        return InBandError(str(error), None if code is None else str(code))
    message = error.get("message") or error.get("msg") or error.get("detail") or error.get("reason")
    code = next((error[key] for key in ("code", "type", "status") if error.get(key) not in (None, "")), None)
    retriable = error.get("retriable")
    return InBandError(
        str(message if message is not None else dict(error)),
        None if code is None else str(code),
        retriable if isinstance(retriable, bool) else None,
    )
