"""Recorded texts: named by where they stand in a file, read when a prompt is made.

A plan holds keys, never the texts: ``@/path/to/file.json#1200+345.9f3a12bc#3`` is text 3 of the object that
stands in the (unpacked) file at byte 1200, is 345 bytes long, and has this digest.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

_MARK = "@"
_GZIP = b"\x1f\x8b"


class RecordedError(Exception):
    """A recorded text that is no longer where it was."""


def is_recorded(key: str) -> bool:
    """Whether a ``Part.text_key`` names a recorded text. Lengths of such prompts are estimates."""
    return key.startswith(_MARK)


def key_of(path: Path, offset: int, raw: bytes, index: int) -> str:
    """The key of text ``index`` of the object ``raw`` at byte ``offset``."""
    return f"{_MARK}{path}#{offset}+{len(raw)}.{_digest(raw)}#{index}"


def text_of(key: str) -> str:
    """The text that ``key`` names. Raises RecordedError if the file is gone or was changed.

    What stands behind a ``+`` is passed over: who wants other text, as a burst does, gets the same, for
    there is no other.
    """
    path, place, index = key.removeprefix(_MARK).rsplit("#", 2)
    return _texts(path, place)[int(index.partition("+")[0])]


def estimated_tokens(text: str) -> int:
    """About how many tokens ``text`` is: one for each 4 bytes of UTF-8, at least 1."""
    return max(1, -(-len(text.encode()) // 4))


def texts_in(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts of one object of a known format, in its order."""
    if "conversations" in record:  # ShareGPT
        return tuple(turn["value"] for turn in record["conversations"])
    if "turns" in record:  # MT-bench
        return tuple(record["turns"])
    return tuple(message_text(message) for message in record["history"])  # SWE-agent


def message_text(message: Mapping[str, Any]) -> str:
    """What is said and, a line each, the calls that are made."""
    calls = (call["function"] for call in message.get("tool_calls") or ())
    return "\n".join([message["content"], *(f"{call['name']} {call['arguments']}" for call in calls)])


def _digest(raw: bytes) -> str:
    return blake2b(raw, digest_size=4).hexdigest()


@lru_cache(maxsize=64)
def _texts(path: str, place: str) -> tuple[str, ...]:
    span, digest = place.rsplit(".", 1)
    offset, size = (int(n) for n in span.split("+"))
    raw = _bytes(path, offset, size)
    if _digest(raw) != digest:
        raise RecordedError(f"{path} is not the file of the plan any more (byte {offset:,}): plan again")
    return texts_in(json.loads(raw))


def _bytes(path: str, offset: int, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            if file.read(2) != _GZIP:
                file.seek(offset)
                return file.read(size)
        return _unpacked(path)[offset : offset + size]
    except OSError as error:
        raise RecordedError(f"{path}: recorded texts cannot be read: {error}") from error


@lru_cache(maxsize=1)
def _unpacked(path: str) -> bytes:
    """A gzip file cannot be entered in the middle: it is kept unpacked."""
    with cast(BinaryIO, gzip.open(path)) as file:
        return file.read()
