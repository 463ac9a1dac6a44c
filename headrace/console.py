"""What a person sees while a command works. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headrace.errors import BenchError
from results.report import terminal

# A table in a pipe is as wide as it needs; a line is not wrapped, a program may look for ``file:line:``.
out = Console() if sys.stdout.isatty() else Console(soft_wrap=True, width=160, height=50)
err = Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, soft_wrap=True)

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Tick:
    """How a run stands, about once a second. Times in s, latencies in ms."""

    elapsed: float
    total: float
    phase: str
    sent: int = 0
    planned: int = 0
    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    ttft_ms: float | None = None
    itl_ms: float | None = None
    """Medians of the last completed requests; of the slowest class."""
    tokens: int = 0
    """Output tokens of the completed requests so far."""
    faults: tuple[str, ...] = ()
    """Those that are broken now."""


class View(Protocol):
    def step(self, text: str) -> None:
        """A stage of the run begins."""

    def tick(self, tick: Tick) -> None: ...
    def note(self, text: str) -> None:
        """Something happened that is worth a line: a fault, a warning."""

    def close(self) -> None: ...


class Silent:
    def step(self, text: str) -> None: ...
    def tick(self, tick: Tick) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Lines:
    """For logs: a line for each stage and note, and one for the load each ten seconds."""

    _spoke: float = -10.0

    def step(self, text: str) -> None:
        err.print(text, highlight=False, soft_wrap=True)

    def tick(self, tick: Tick) -> None:
        if tick.elapsed - self._spoke >= 10:
            self._spoke = tick.elapsed
            err.print(_line(tick), highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        err.print(f"  {text}", highlight=False, soft_wrap=True)

    def close(self) -> None: ...


@dataclass(slots=True)
class Watch:
    """For a terminal: a small panel that is redrawn in place, notes scroll above it."""

    _live: Live = field(default_factory=lambda: Live(console=err, refresh_per_second=4, transient=True))
    _series: dict[str, deque[float | None]] = field(default_factory=dict)
    _last: Tick | None = None
    _started: bool = False

    def step(self, text: str) -> None:
        self._show(Text(f"⋯ {text}", style="cyan"))

    def tick(self, tick: Tick) -> None:
        before, self._last = self._last, tick
        rows = (
            ("sent", "/s", "green", _per_second(tick, before, "sent")),
            ("tokens", "/s", "green", _per_second(tick, before, "tokens")),
            ("in flight", "", "blue", float(tick.in_flight)),
            ("TTFT p50", " ms", "magenta", tick.ttft_ms),
            ("ITL p50", " ms", "magenta", tick.itl_ms),
        )
        table = Table.grid(padding=(0, 2))
        for name, unit, style, value in rows:
            series = self._series.setdefault(name, deque(maxlen=_WIDTH))
            series.append(value)
            table.add_row(name, Text(_spark(series).ljust(_WIDTH), style=style), _last_of(series, unit))
        broken = Text("now broken: " + ", ".join(tick.faults), style="bold red") if tick.faults else Text("")
        self._show(Group(Text(_line(tick), style="bold"), table, broken))

    def note(self, text: str) -> None:
        err.print(f"  {text}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._started:
            self._live.stop()

    def _show(self, what: Any) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(what)


def view(quiet: bool) -> View:
    """The view that fits where stderr goes."""
    if quiet:
        return Silent()
    return Watch() if err.is_terminal else Lines()


def _line(tick: Tick) -> str:
    left = max(0.0, tick.total - tick.elapsed)
    return (
        f"{tick.phase} {tick.elapsed:.0f}/{tick.total:.0f} s · sent {tick.sent}/{tick.planned} · "
        f"in flight {tick.in_flight} · completed {tick.completed} · not ok {tick.failed} · {left:.0f} s left"
    )


def _per_second(tick: Tick, before: Tick | None, what: str) -> float:
    """How fast a count grew since the tick before."""
    grown = getattr(tick, what) - (getattr(before, what) if before is not None else 0)
    return float(grown) / max(0.1, tick.elapsed - (before.elapsed if before is not None else 0.0))


def _spark(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(" " if v is None else _BARS[round(v / top * (len(_BARS) - 1))] for v in values)


def _last_of(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    return f"{known[-1]:.0f}{unit}" if known else "–"


@contextmanager
def progress(title: str, quiet: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar for bytes: yields ``advance(done, total)``, or None when nothing should be shown."""
    if quiet:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    if not err.is_terminal:
        began = time.monotonic()
        err.print(f"{title} ...", highlight=False)
        yield lambda done, total: None
        err.print(f"{title}: done in {time.monotonic() - began:.0f} s", highlight=False)
        return
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)


def hint(text: str) -> None:
    """A line beside the results: on stderr."""
    err.print(text, highlight=False)


def complain(error: BenchError) -> None:
    """Lines are never wrapped: a program may look for ``file:line:``."""
    err.print(Text("error: ", style="bold red"), Text("\n".join(error.lines)), sep="", soft_wrap=True)


def show_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_report(summary: Mapping[str, Any], folder: Path) -> None:
    terminal.show(summary, out)
    say(f"\nreport: {folder / 'report.html'}")


def show_gates(summary: Mapping[str, Any]) -> None:
    terminal.show_gates(summary, out)


def show_pairs(first: str, second: str, pairs: Mapping[str, str]) -> None:
    table = Table(first, second, box=None, pad_edge=False)
    for key, value in pairs.items():
        table.add_row(key, value)
    out.print(table)


def show_tables(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for name, entries in tables.items():
        out.print(Text(name, style="bold"))
        table = Table.grid(padding=(0, 2))
        for entry in entries:
            fields = ", ".join(f"{key}: {what}" for key, what in dict(entry.get("fields", {})).items())
            doc = str(entry["doc"]).replace("``", "`")
            table.add_row("  " + str(entry["name"]), Text(doc), Text(fields, style="dim"))
        out.print(table)


def show_plan(described: Mapping[str, Any]) -> None:
    if described["question"]:
        say(described["question"])
    say(f"plan {described['digest']} · seed {described['seed']}")
    rows: Sequence[Mapping[str, Any]] = described["classes"]
    table = Table(*rows[0].keys(), box=None, pad_edge=False) if rows else Table()
    for row in rows:
        table.add_row(*("–" if value is None else f"{value}" for value in row.values()))
    out.print(table)
    for name, reason in described["reasons"].items():
        say(f"– of {name}: {reason}")
    for trace in described["traces"]:
        say(f"class {trace['class']} replays {trace['type']} {trace['file']}")
        for line in trace["says"]:
            say(f"  {line}")
    for line in described["warnings"]:
        out.print(Text("warning: ", style="yellow"), line, sep="", highlight=False)


def show_explanations(found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        say("no request missed a token that it could have read from cache")
    for entry in found:
        out.print(Text(f"request {entry['id']}", style="bold"), highlight=False)
        for line in entry["lines"]:
            out.print(f"  {line}", highlight=False)
