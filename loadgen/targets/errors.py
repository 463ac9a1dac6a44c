"""Errors inside bodies, in the shapes of all vendors: status 200 does not make one a success (C23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.targets.reading import FAILURES, InBandError, finish_word

_CODES = (
    *("code", "type", "status", "error_code", "error_type", "status_code", "errcode", "name"),
    *("errorCode", "errorType"),
)
_MESSAGES = (
    *("message", "msg", "detail", "reason", "error_msg", "error_message", "status_msg", "errmsg"),
    *("errorMessage", "errorMsg"),
)
_NO_CODE = (None, "", "None", "null")
MOST_TEXT = 1_000
"""Characters that are kept of what a server says of an error."""
MOST_READ = 64 * MOST_TEXT
"""The same before a key that the server repeats is taken out: no cut may go through it."""
_FINE = (*_NO_CODE, 0, "0", 200, "200", "ok", "success")


def find_error(payload: object, event_type: str = "message") -> InBandError | None:
    """The error in a payload of any vendor's shape, or None.

    Known shapes: ``{"error": {..}}``, ``{"error": ".."}``, ``{"errors": [..]}``, ``{"fault": {..}}``,
    ``{"..Exception": {..}}``, ``{"detail": ..}``, ``{"object": "error", ..}``, ``{"type": "error", ..}``,
    ``{"base_resp": {"status_code": 1004, ..}}``, ``{"error": true, "message": ..}``, a bare ``{"code": ..,
    "message": ..}`` or ``{"success": false, "message": ..}``, a list that holds one of these, a choice with
    an ``error`` or with a finish reason of failure, and anything in an event of type ``error``.
    """
    if isinstance(payload, list):
        items = (item for item in payload if isinstance(item, dict))
        return next((found for item in items if (found := find_error(item, event_type))), None)
    if not isinstance(payload, dict):
        return InBandError(_shown(payload)) if event_type == "error" else None
    found = _in_mapping(payload)
    return found or (_describe(payload, payload) if event_type == "error" else None)


def _in_mapping(payload: Mapping[str, Any]) -> InBandError | None:
    for key in ("error", "errors", "fault"):
        if _says_something(payload.get(key)):
            return _describe(payload[key], payload)
    if "error" in (payload.get("object"), payload.get("type")):
        return _describe(payload, payload)
    choices = payload.get("choices")
    if isinstance(choices, list):
        found = next((found for choice in choices if (found := _in_choice(choice))), None)
        return found or _in_base(payload)
    return _in_base(payload) or _bare(payload)


def _says_something(error: object) -> bool:
    """Some servers fill in the form of an error with each event: empty words and no code."""
    return any(error.values()) if isinstance(error, dict) else bool(error)


def _in_choice(choice: object) -> InBandError | None:
    if not isinstance(choice, dict):
        return None
    if _says_something(choice.get("error")):
        return _describe(choice["error"], choice)
    said = choice.get("finish_reason")
    word = finish_word(said)
    if word is None or not (word in FAILURES or "error" in word):
        return None
    why = said.get("message") if isinstance(said, dict) else None
    return InBandError(_shown(why) if why else f"finish_reason {word}", word)


def _in_base(payload: Mapping[str, Any]) -> InBandError | None:
    """MiniMax says how it went in every answer: status_code 0 is fine."""
    base = payload.get("base_resp")
    return _describe(base, payload) if isinstance(base, dict) and base.get("status_code") else None


def _bare(payload: Mapping[str, Any]) -> InBandError | None:
    """Shapes without a word that names them as errors; only where no answer is in the payload."""
    if any(payload.get(key) for key in ("usage", "output", "content", "delta", "response")):
        return None
    if payload.get("detail"):
        return _describe(payload["detail"], payload)
    for key, value in payload.items():
        if key.endswith("Exception"):
            return InBandError(_message(value), key)
    if "type" in payload or "object" in payload or not any(payload.get(key) for key in _MESSAGES):
        return None
    return _describe(payload, payload) if _says_failed(payload) else None


def _says_failed(payload: Mapping[str, Any]) -> bool:
    status = payload.get("status")
    if (isinstance(status, int) and status >= 400) or status in ("error", "failed", "fail"):
        return True
    if payload.get("success") is False:
        return True
    return any(
        payload.get(key) not in _FINE for key in ("code", "error_code", "errcode", "errorCode", "errorType")
    )


def _describe(error: object, around: Mapping[str, Any]) -> InBandError:
    if isinstance(error, list) and error:
        error = error[0]
    if not isinstance(error, dict):
        if not isinstance(error, str | list) and any(around.get(key) for key in _MESSAGES):
            # A flag or a number: what happened is said beside it.
            number = None if isinstance(error, bool) else _shown(error)
            return InBandError(_message(around), _code(around) or number)
        return InBandError(_shown(error), _code(around, ("code", "error_code", "error_type")))
    retriable = error.get("retriable")
    return InBandError(_message(error), _code(error), retriable if isinstance(retriable, bool) else None)


def _message(error: object) -> str:
    if not isinstance(error, dict):
        return _shown(error)
    return _shown(next((error[key] for key in _MESSAGES if error.get(key)), error))


def _code(error: Mapping[str, Any], keys: tuple[str, ...] = _CODES) -> str | None:
    found = next((error[key] for key in keys if error.get(key) not in _NO_CODE), None)
    return None if found is None else _shown(found)


def _shown(value: object) -> str:
    """Whatever a server wrote, as text of a length that can be searched."""
    try:
        return str(value)[:MOST_READ]
    except RecursionError:
        return "an object nested too deeply to be shown"
