"""Records whose values no column can hold: what a target said may be any number and any text."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pyarrow as pa

from results.record import Record

_FIELDS = {f.name: f for f in fields(Record)}


def storable(record: Record, schema: Any) -> Record:
    """``record`` itself if every value fits; else a copy in which texts are made readable and numbers that
    do not fit are left out, each with the warning ``not_stored:COLUMN``.

    Raises what Arrow raises where a column without a default (id, class) does not fit.
    """
    wrong = [
        (f.name, column)
        for f, column in zip(fields(Record), schema, strict=True)
        if not _fits(getattr(record, f.name), column.type)
    ]
    if not wrong:
        return record
    changes: dict[str, Any] = {}
    left_out: list[str] = []
    for name, column in wrong:
        readable = _readable(getattr(record, name), column.type)
        if readable is not None:
            changes[name] = readable
        else:
            changes |= _left_out(name)
            left_out.append(f"not_stored:{column.name}")
    warnings = changes.get("warnings", record.warnings)
    return replace(record, **changes | {"warnings": [*(warnings or ()), *left_out]})


def _fits(value: Any, type_: Any) -> bool:
    try:
        pa.array([value], type=type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _readable(value: Any, type_: Any) -> Any:
    """Text that UTF-8 cannot hold, with its odd parts escaped; None for what is no text."""
    if pa.types.is_string(type_):
        return str(value).encode("utf-8", "backslashreplace").decode()
    if pa.types.is_list(type_) and pa.types.is_string(type_.value_type) and isinstance(value, list):
        return [str(item).encode("utf-8", "backslashreplace").decode() for item in value]
    return None


def _left_out(name: str) -> dict[str, Any]:
    """Defaults for a column; token events only make sense together."""
    if name == "event_us":
        return {"event_us": [], "event_tokens": None, "single": None}
    field = _FIELDS[name]
    return {name: field.default if field.default_factory is MISSING else field.default_factory()}
