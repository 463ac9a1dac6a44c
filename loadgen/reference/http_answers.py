"""HTTP answers in one piece."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any


def error_body(message: str, code: int, kind: str = "server_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}


def json_answer(status: int, payload: Any, fields: dict[str, str] | None = None) -> bytes:
    return whole_answer(status, "application/json", json.dumps(payload).encode(), fields)


def whole_answer(status: int, kind: str, body: bytes, fields: dict[str, str] | None = None) -> bytes:
    """An answer of known length."""
    about = {"Content-Type": kind, "Content-Length": str(len(body)), **(fields or {})}
    return http_head(status, about) + body


def http_head(status: int, fields: dict[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Error"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
