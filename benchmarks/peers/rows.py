"""One line for each tool and rate, how they are kept between runs of the command, and the tables of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.tool import Quantiles

REACHED = 0.9
"""Less than this share of the asked rate counts as not reached."""
TRIES = 2
"""After so many rates in a row that a tool did not reach, higher ones are skipped."""


@dataclass(frozen=True, slots=True)
class Row:
    """Times in ms, rates in streams/s, shares of one core; None = not known."""

    tool: str
    version: str
    asked: float
    settings: str
    """What else it depends on: rows of other settings are not reused."""
    said: Quantiles = Quantiles()
    true: Quantiles = Quantiles()
    delivered: float | None = None
    """By the server's log."""
    said_rate: float | None = None
    completed: int = 0
    failed: int = 0
    core_busy: float | None = None
    """Of the tool's core, all that ran there, while the load was steady."""
    server_late_p99: float | None = None
    blocked: int = 0
    load_before: float = 0.0
    load_after: float = 0.0
    date: str = ""
    why: str | None = None
    """Why there is no result."""

    @property
    def off(self) -> Quantiles:
        """Reported minus true."""
        said, true = asdict(self.said), asdict(self.true)
        both = {key: (said[key], true[key]) for key in said}
        return Quantiles(**{key: None if a is None or b is None else a - b for key, (a, b) in both.items()})

    @property
    def share(self) -> float | None:
        """Delivered of asked."""
        return None if self.delivered is None else self.delivered / self.asked

    @property
    def reached(self) -> bool:
        return self.why is None and (self.share or 0.0) >= REACHED

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "off": asdict(self.off), "share": self.share}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Row:
        """From ``as_dict`` by way of JSON."""
        fields = {key: value for key, value in data.items() if key not in ("off", "share")}
        fields["said"] = Quantiles(**fields["said"])
        fields["true"] = Quantiles(**fields["true"])
        return Row(**fields)


@dataclass
class Kept:
    """Rows in a JSON file: what was measured is not measured again."""

    path: Path
    rows: list[Row] = field(default_factory=list)

    @staticmethod
    def read(path: Path, fresh: bool = False) -> Kept:
        if fresh or not path.exists():
            return Kept(path)
        return Kept(path, [Row.of(data) for data in json.loads(path.read_text())])

    def find(self, tool: str, version: str, asked: float, settings: str) -> Row | None:
        for row in self.rows:
            if (row.tool, row.version, row.asked, row.settings) == (tool, version, asked, settings):
                return row
        return None

    def add(self, row: Row) -> None:
        self.rows.append(row)
        staged = self.path.with_suffix(".part")
        staged.write_text(json.dumps([row.as_dict() for row in self.rows], indent=1) + "\n")
        staged.replace(self.path)


def gives_up(rows: Sequence[Row]) -> bool:
    """Whether a tool need not be asked for more than it was, in rising order."""
    return len(rows) >= TRIES and not any(row.reached for row in rows[-TRIES:])


COLUMNS = (
    ("tool", 16),
    ("asked/s", 7),
    ("delivered", 9),
    ("share", 6),
    ("TTFT off p50", 12),
    ("p99 ms", 9),
    ("TPOT off p50", 12),
    ("p99 ms", 8),
    ("TTFT said p50", 13),
    ("true p50", 8),
    ("failed", 6),
    ("core", 5),
    ("srv late", 8),
    ("load", 11),
)


def header() -> str:
    return "  ".join(f"{title:{'<' if k == 0 else '>'}{width}}" for k, (title, width) in enumerate(COLUMNS))


def line(row: Row) -> str:
    """For people, under ``header``."""
    off = row.off
    cells = (
        row.tool,
        f"{row.asked:,.0f}",
        number(row.delivered, 1),
        percent(row.share),
        signed(off.ttft_p50, 2),
        signed(off.ttft_p99, 2),
        signed(off.tpot_p50, 3),
        signed(off.tpot_p99, 3),
        number(row.said.ttft_p50, 2),
        number(row.true.ttft_p50, 2),
        f"{row.failed:,}",
        percent(row.core_busy),
        number(row.server_late_p99, 2),
        f"{row.load_before:.1f} → {row.load_after:.1f}",
    )
    text = "  ".join(
        f"{cell:{'<' if k == 0 else '>'}{width}}"
        for k, (cell, (_, width)) in enumerate(zip(cells, COLUMNS, strict=True))
    )
    return text if row.why is None else f"{text}\n{'':18}{row.why}"


def markdown(rows: Sequence[Row]) -> str:
    """Two tables for a README, a line for each rate and a column for each tool: TTFT with the share that was
    delivered, and TPOT."""
    ttft = _pivot(rows, "TTFT off p50 / p99, share delivered", _ttft_cell)
    return f"{ttft}\n{_pivot(rows, 'TPOT off p50 / p99', _tpot_cell)}"


def _pivot(rows: Sequence[Row], title: str, cell: Callable[[Row], str]) -> str:
    tools = list(dict.fromkeys((row.tool, row.version) for row in rows))
    by_place = {(row.tool, row.asked): row for row in rows}
    lines = [
        f"| {title} | {' | '.join(' '.join(tool) for tool in tools)} |",
        f"| - |{' -: |' * len(tools)}",
    ]
    for asked in sorted({row.asked for row in rows}):
        found = (by_place.get((tool, asked)) for tool, _ in tools)
        cells = ("skipped" if row is None else cell(row) for row in found)
        lines.append(f"| {asked:,.0f} streams/s | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ttft_cell(row: Row) -> str:
    if row.why is not None:
        return f"no result, {percent(row.share)}"
    off = row.off
    return f"{signed(off.ttft_p50, 2)} / {signed(off.ttft_p99, 2)} ms, {percent(row.share)}"


def _tpot_cell(row: Row) -> str:
    off = row.off
    return "no result" if row.why is not None else f"{signed(off.tpot_p50, 2)} / {signed(off.tpot_p99, 2)} ms"


def number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:,.{places}f}"


def signed(value: float | None, places: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:+z,.{places}f}{unit}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
