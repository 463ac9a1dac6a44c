"""JSON as servers write it: quickly where it is proper, patiently where it is not."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import orjson


class NotJson(Enum):
    """What there is in place of a value; ``null`` is a value."""

    NOT_JSON = "not JSON"


NOT_JSON = NotJson.NOT_JSON


def parsed(text: str | bytes) -> Any:
    """The value, or NOT_JSON. NaN, lone surrogates and broken UTF-8, which the fast parser refuses, are
    taken as Python's own takes them, broken bytes as U+FFFD."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _patiently(text)


def _patiently(text: str | bytes) -> Any:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return NOT_JSON


def readable(text: str) -> str:
    """``text`` without lone surrogates: the halves of a character that a server cut in two are joined, a
    half without its other half is U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
