"""Recorded texts: looked up where they stand, never copied into a plan."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from loadgen import recorded
from loadgen.recorded import RecordedError, estimated_tokens, is_recorded, key_of, text_of

RECORD = json.dumps({"turns": ["Grüezi", "two"]}, ensure_ascii=False).encode()


def write(path: Path, raw: bytes, *, packed: bool = False) -> str:
    """The key of the second text of RECORD, which stands behind ``raw``."""
    path.write_bytes(gzip.compress(raw + RECORD) if packed else raw + RECORD)
    return key_of(path, len(raw), RECORD, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_key_finds_its_text(tmp_path: Path, packed: bool) -> None:
    """Behind other bytes, in a path with odd characters, packed or not."""
    key = write(tmp_path / "a#b+c.d é.jsonl", "äöü\n".encode(), packed=packed)
    assert is_recorded(key)
    assert text_of(key) == "two"
    assert text_of(key.removesuffix("1") + "0") == "Grüezi"
    assert text_of(f"{key}+burst.4") == "two"


def test_a_changed_or_missing_file_is_an_error(tmp_path: Path) -> None:
    """What is sent is what was planned, or nothing."""
    path = tmp_path / "x.jsonl"
    key = write(path, b"")
    path.write_bytes(RECORD.replace(b"two", b"TWO"))
    with pytest.raises(RecordedError, match="not the file of the plan any more"):
        text_of(key)
    path.unlink()
    with pytest.raises(RecordedError, match=r"x\.jsonl: recorded texts cannot be read"):
        text_of(key)


def test_neighbouring_texts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turns of a conversation stand in one object, which stays at hand."""
    key = write(tmp_path / "once.jsonl", b"")
    assert text_of(key) == "two"
    monkeypatch.setattr(recorded, "_bytes", None)
    assert text_of(key.removesuffix("1") + "0") == "Grüezi"


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 1), ("abcd", 1), ("abcde", 2), ("é" * 4, 2), ("漢" * 4, 3)]
)
def test_tokens_are_estimated_from_bytes(text: str, tokens: int) -> None:
    """One for each 4 bytes of UTF-8, begun ones counted, at least one."""
    assert estimated_tokens(text) == tokens
