"""Files of a run directory as values (JOINTS 5), also of one whose run was killed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.recordfile import frame_of, read_stream


class RunError(Exception):
    """A run directory that cannot be read: what is missing and where."""


def load_records(path: Path, ended: bool) -> tuple[pd.DataFrame, pd.DataFrame | None, str | None]:
    """(records, attempts, why this is only a part of the run)."""
    records, whole = _gathered(path, "records")
    attempts, _ = _gathered(path, "attempts")
    pa.default_memory_pool().release_unused()
    if records is None:
        raise RunError(f"{path}: holds no records (neither records.parquet nor records.arrow)")
    how = "its load had ended, its judging had not" if whole else "it was killed under load"
    incomplete = f"the run did not finish: {how}; {len(records)} records were kept"
    gathered = ended or (path / "records.parquet").exists()
    return records, attempts, None if gathered else incomplete


def _gathered(path: Path, name: str) -> tuple[pd.DataFrame | None, bool]:
    """What there is of ``name``, as one file or as the streams of the load processes, and whether that is
    all of it. None if there is nothing."""
    if (path / f"{name}.parquet").exists():
        return frame_of(pq.read_table(path / f"{name}.parquet")), True
    parts = [read_stream(p) for p in sorted(path.glob(f"{name}*.arrow"))]
    if not parts:
        return None, True
    return frame_of(pa.concat_tables([table for table, _ in parts])), all(whole for _, whole in parts)


def parquet(path: Path) -> pd.DataFrame | None:
    return pd.read_parquet(path) if path.exists() else None


def lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; a last line that was cut off by a kill is left out."""
    rows: list[dict[str, Any]] = []
    text = path.read_text() if path.exists() else ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if line.endswith("\n"):
            rows.append(_parsed(line, f"{path}:{number}"))
    return rows


def json_document(path: Path) -> dict[str, Any] | None:
    """None if there is no such file. Raises RunError for one that holds no object."""
    return _parsed(path.read_text(), str(path)) if path.exists() else None


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RunError(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{where}: expected an object {{..}}")
    return found


def by_id(pairs: pd.DataFrame | None, name: str) -> dict[Any, Any] | None:
    """A file of two columns, ``id`` and ``name``, as a mapping."""
    return None if pairs is None else dict(zip(pairs["id"].tolist(), pairs[name].tolist(), strict=True))


def truth_frame(
    truth: Iterable[Mapping[str, Any]] | pd.DataFrame | None,
) -> pd.DataFrame | None:
    """Rows as the engine gives them: what is no plain value becomes JSON text."""
    if truth is None or isinstance(truth, pd.DataFrame):
        return truth
    rows = [
        {k: v if _flat(v) else json.dumps(v, sort_keys=True, default=str) for k, v in t.items()}
        for t in truth
    ]
    return pd.DataFrame(rows) if rows else None


def _flat(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
