"""The directory of a sweep: every finished run is in sweep.json before the next one begins."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import UsageFailed
from headrace.sweep.design import Design, SweepOptions, differences, make_design
from results.report.sweep_html import render
from results.sweep.outcome import SCHEMA_VERSION, conclude
from results.sweep.points import Decision
from results.sweep.spec import PointRun, tuples
from results.sweep.table import frame

DOCUMENT, TABLE, PAGE, POINTS = "sweep.json", "sweep.parquet", "sweep.html", "points"
_LONGEST_NAME = 80
_ANEW = "Begin a new one with --out."


@dataclass(slots=True)
class Book:
    """What a sweep leaves behind, written as it goes."""

    path: Path
    design: Design
    runs: list[PointRun] = field(default_factory=list)

    def add(self, run: PointRun) -> None:
        """Keep a finished run: the document on disk has it from now on."""
        self.runs.append(run)
        self.save()

    def save(self, *, interrupted: bool = False, error: str | None = None) -> dict[str, Any]:
        """Write sweep.json whole or not at all; returns what it says."""
        document = conclude(self.design.spec, self.runs, interrupted=interrupted, error=error)
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        half = self.path / f".{DOCUMENT}"
        half.write_text(text, encoding="utf-8")
        os.replace(half, self.path / DOCUMENT)
        return document

    def close(self, document: Mapping[str, Any]) -> None:
        """The table and the page of what there is."""
        frame(self.design.spec, self.runs).to_parquet(self.path / TABLE, index=False)
        (self.path / PAGE).write_text(render(self.design.spec, self.runs, document), encoding="utf-8")

    def next_folder(self, at: Mapping[str, str], window: float) -> Path:
        """A directory that no run has used, also not one that was cut short."""
        levels = ",".join(f"{key}={value}" for key, value in at.items())
        name = re.sub(r"[^\w.=,+-]+", "_", f"{levels},{window:g}s")[:_LONGEST_NAME].strip("_,")
        wanted = self.path / POINTS / f"{len(self.runs) + 1:03d}-{name}"
        taken, folder = 1, wanted
        while folder.exists():
            taken += 1
            folder = wanted.with_name(f"{wanted.name}.{taken}")
        return folder


def new_book(path: Path, design: Design) -> Book:
    """Raises UsageFailed if the directory holds a sweep already, or cannot be made."""
    if (path / DOCUMENT).exists():
        raise UsageFailed(
            f"{path}: already holds a sweep", f"Go on with --resume {path}, or choose another --out."
        )
    try:
        (path / POINTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailed(f"{path}: cannot be made: {error}") from error
    book = Book(path, design)
    book.save()
    return book


def resumed_book(path: Path, given: SweepOptions) -> Book:
    """The sweep of a directory, to go on. Options that are not given are those that it was begun with; a
    point at which the client was at its limit, which says nothing, is tried again.

    Raises UsageFailed if it is no sweep, or if options or the scenario are not what they were.
    """
    document = _document(path)
    was = document["sweep"]["asked"]
    options = _merged(was, given, path)
    first, second = document["sweep"]["seeds"]
    design = make_design(options, (int(first), int(second)))
    now = json.loads(json.dumps(design.spec.as_dict()))
    if changed := differences(document["sweep"], now):
        raise UsageFailed(f"{path}: this would not be the same sweep:", *changed, _ANEW)
    runs = [PointRun.from_dict(run) for run in document["runs"]]
    kept = [run for run in runs if run.decision is not Decision.CLIENT]
    return Book(path, design, [replace(run, at=design.at(run.cell, run.value)) for run in kept])


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((path / DOCUMENT).read_text(encoding="utf-8"))
        schema = int(document["schema"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageFailed(f"{path}: holds no sweep that could go on ({DOCUMENT}: {error})") from error
    if schema != SCHEMA_VERSION:
        raise UsageFailed(f"{path}: {DOCUMENT} has schema {schema}, this headrace writes {SCHEMA_VERSION}")
    return document


def _merged(was: Mapping[str, Any], given: SweepOptions, path: Path) -> SweepOptions:
    usual = SweepOptions(given.scenario)
    stored = SweepOptions(**tuples(was))
    changed = []
    for name in SweepOptions.__slots__:
        asked, before = getattr(given, name), getattr(stored, name)
        if asked != before and (name == "scenario" or asked != getattr(usual, name)):
            changed.append(f"  {name}: {before} -> {asked}")
    if changed:
        raise UsageFailed(f"{path}: was begun with other options:", *changed, _ANEW)
    return stored
