"""From a run to what is shown of it: summary, report, last line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.exits import last_line
from results.report.html import render
from results.run import RunData
from results.summary import judge, summary_bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged run."""

    summary: dict[str, Any]
    folder: Path
    last_line: dict[str, Any]


def conclude(data: RunData, *, write: bool = True) -> Outcome:
    """Judge; with ``write`` leave summary.json and report.html in the run directory."""
    assert data.path is not None, "a run has a directory"
    summary = judge(data)
    if write:
        (data.path / "summary.json").write_bytes(summary_bytes(summary))
        (data.path / "report.html").write_text(render(data, summary), encoding="utf-8")
    return Outcome(summary, data.path, json.loads(last_line(summary, str(data.path))))
