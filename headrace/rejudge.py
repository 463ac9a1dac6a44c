"""Judging and explaining run directories that are there already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.attributing import ATTRIBUTED, attribute_again, ideal_again
from headrace.errors import UsageFailed
from headrace.verdict import Outcome, conclude
from results.attribution.explain import explain
from results.attribution.verdict import read_parquet
from results.gates import GateError, parse_gate
from results.run import Run, RunData, RunError

LARGEST = 5


def rejudge(
    folder: Path,
    *,
    strict: bool = False,
    allow_inconclusive: bool = False,
    draw: bool = False,
    gates: Sequence[str] | None = None,
) -> Outcome:
    """Judge a run again, with other ``gates`` if given; with ``draw`` write summary and report anew.

    Raises UsageFailed for a folder that is no run, or a gate that cannot be.
    """
    data = _load(folder)
    truth = None if data.truth is None else _rows(data)
    if data.attribution is None:
        data.attribution = attribute_again(folder, truth)
    if data.ideal is None:  # of a run that was killed, or made before this was known
        data.ideal = ideal_again(folder, truth)
    judging = replace(data.judging, strict=strict, allow_inconclusive=allow_inconclusive)
    if gates is not None:
        judging = replace(judging, gates=tuple(gates))
        _check(gates, data)
    data.judging = judging
    return conclude(data, write=draw)


def explain_run(folder: Path, request: int | None) -> list[dict[str, Any]]:
    """Why tokens of one request were not cached, or of the requests that missed most.

    Raises UsageFailed if the run was not attributed or has no such request.
    """
    data = _load(folder)
    if not (folder / ATTRIBUTED).exists():
        raise UsageFailed(f"{folder}: its prompt tokens were not attributed; only the built-in engine's are")
    known = dict(zip(data.records["request_id"].astype(str), data.records["id"].astype(int), strict=True))
    verdicts = [a for a in read_parquet(folder / ATTRIBUTED) if a.id in known]
    if request is None:
        missed = sorted((a for a in verdicts if a.is_miss), key=lambda a: -(a.missed or 0))
        chosen = missed[:LARGEST]
    else:
        chosen = [a for a in verdicts if known[a.id] == request]
        if not chosen:
            raise UsageFailed(f"{folder}: request {request} was not sent, or not answered")
    return [{"id": known[a.id], "outcome": str(a.outcome), "lines": explain(a)} for a in chosen]


def _load(folder: Path) -> RunData:
    try:
        return Run.load(folder)
    except RunError as error:
        raise UsageFailed(str(error)) from error
    except (OSError, ValueError) as error:
        raise UsageFailed(f"{folder}: cannot be read: {error}") from error


def _check(gates: Sequence[str], data: RunData) -> None:
    faults = {str(fault["id"]) for fault in data.faults}
    errors = []
    for text in gates:
        try:
            parse_gate(text, tuple(data.judging.classes), faults)
        except GateError as error:
            errors.append(f"  {error}")
    if errors:
        raise UsageFailed("these gates cannot be judged:", *errors)


def _rows(data: RunData) -> list[dict[str, Any]]:
    """Truth rows as the engine gave them: what was JSON text becomes a value again."""
    assert data.truth is not None
    return [
        {str(key): _value(value) for key, value in row.items()}
        for row in data.truth.to_dict(orient="records")
    ]


def _value(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return json.loads(value)
    return None if isinstance(value, float) and value != value else value
