"""Prompts and answers as a file, only for who asks for them (``--keep-text``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from loadgen.observe import Kept


def write_texts(kept: Iterable[Kept], path: Path) -> None:
    """One JSON line a request: ``{id, request_id, messages, answer}``, in order of id."""
    with path.open("w", encoding="utf-8") as file:
        for one in sorted(kept, key=lambda one: one.record.id):
            row = {
                "id": one.record.id,
                "request_id": one.record.request_id,
                "messages": list(one.messages),
                "answer": one.text,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
