"""From the runs of a sweep to its result: bracket, knee, safe point, verdict, exit code. Pure.

The question of a sweep is "is there a safe operating point, and where". So with several cells (crossed
axes) one that has a safe point is enough to pass; it fails only if every cell fails at its lowest value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from results.exits import FAILED, OK, OPEN, TARGET
from results.sweep import phrases
from results.sweep.knee import Safe, knee, safe_point
from results.sweep.points import NOT_THE_TARGET, Decision
from results.sweep.search import Kind, ask, found
from results.sweep.spec import PointRun, SweepSpec, decisive, history, of_cell

SCHEMA_VERSION = 2


def conclude(
    spec: SweepSpec, runs: Sequence[PointRun], *, interrupted: bool = False, error: str | None = None
) -> dict[str, Any]:
    """The whole of sweep.json. ``error``: why the target is gone."""
    cells = [cell_result(spec, i, of_cell(runs, i)) for i in range(len(spec.cells))]
    complete = all(cell["complete"] for cell in cells)
    verdict, code, reason = _ending(cells, interrupted, error)
    return {
        "schema": SCHEMA_VERSION,
        "sweep": spec.as_dict(),
        "complete": complete,
        "cells": cells,
        "best": _best(cells),
        "notes": phrases.notes(spec, runs),
        "runs": [run.as_dict() for run in runs],
        "client": _worst_client(runs),
        "interrupted": interrupted,
        "error": error,
        "verdict": verdict,
        "exit": code,
        "reason": reason,
    }


def cell_result(spec: SweepSpec, cell: int, runs: Sequence[PointRun]) -> dict[str, Any]:
    """What is known of one cell so far."""
    result = _one_point(runs) if spec.space is None else _searched(spec, runs)
    result = {"at": spec.cells[cell], "runs": len(runs), **result}
    return result | {"words": phrases.of_cell(spec, result)}


def _one_point(runs: Sequence[PointRun]) -> dict[str, Any]:
    """A cell of a sweep that searches nothing: one point, one verdict."""
    last = runs[-1] if runs else None
    open_ = last is None or last.decision is Decision.LONGER
    return {
        "complete": not open_,
        "kind": None if last is None or open_ else last.decision.value,
        "why": [] if last is None else list(last.why),
    }


def _searched(spec: SweepSpec, runs: Sequence[PointRun]) -> dict[str, Any]:
    space, seen = spec.space, history(runs)
    assert space is not None
    now = found(space, seen)
    tested = ((run.value, run.over_saturated) for run in decisive(runs) if run.value is not None)
    bend = knee(tested)
    safe = Safe(None, reason=NOT_THE_TARGET)
    if now.kind is not Kind.CLIENT:
        safe = safe_point(now, bend, spec.headroom, whole=space.whole)
    text = None if spec.searched is None or safe.value is None else spec.searched.text(safe.value)
    return {
        "complete": ask(space, seen) is None,
        "kind": now.kind.value,
        "bracket": {
            "pass": now.passes,
            "fail": now.fails,
            "pass_confirmed": now.passes_confirmed,
            "fail_confirmed": now.fails_confirmed,
        },
        "undecided": list(now.undecided),
        "disagreed": list(now.disagreed),
        "knee": asdict(bend) | {"contradicted": list(bend.contradicted)},
        "safe": asdict(safe) | {"text": text, "headroom": spec.headroom},
    }


def _ending(cells: Sequence[dict[str, Any]], interrupted: bool, error: str | None) -> tuple[str, int, str]:
    """3, then what was cut short, then whether some cell has a safe point."""
    if error is not None:
        return "error", TARGET, error
    if interrupted:
        return "inconclusive", OPEN, "interrupted; `--resume` goes on from here"
    if any(_holds(cell) for cell in cells):
        return "pass", OK, phrases.of_cells(cells, _best(cells), sum(_holds(cell) for cell in cells))
    failed = sum(_fails(cell) for cell in cells)
    if failed == len(cells):
        return "fail", FAILED, "no cell holds its objectives" if failed > 1 else cells[0]["words"]
    if all(cell["kind"] == Kind.CLIENT for cell in cells):
        return "inconclusive", OPEN, NOT_THE_TARGET
    return "inconclusive", OPEN, "no cell was seen to hold" if len(cells) > 1 else cells[0]["words"]


def _holds(cell: dict[str, Any]) -> bool:
    if "safe" in cell:
        return cell["safe"]["value"] is not None and cell["kind"] != Kind.CLIENT
    return bool(cell["kind"] == Decision.PASS)


def _fails(cell: dict[str, Any]) -> bool:
    if "safe" in cell:
        return bool(cell["kind"] == Kind.LOW_FAILS and cell["bracket"]["fail_confirmed"])
    return bool(cell["kind"] == Decision.FAIL)


def _best(cells: Sequence[dict[str, Any]]) -> list[int]:
    """Indices of the cells with the largest safe point; several if they are equal."""
    values = {i: cell["safe"]["value"] for i, cell in enumerate(cells) if "safe" in cell and _holds(cell)}
    most = max(values.values(), default=None)
    return [i for i, value in values.items() if value == most]


def _worst_client(runs: Sequence[PointRun]) -> str | None:
    order = ("valid", "degraded", "invalid")
    return max((run.client for run in runs), key=order.index, default=None)
