"""The result of a sweep in a terminal: one table, then what it means in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from results.report import sweep_words
from results.report.words import TONES
from results.sweep.columns import ALL
from results.sweep.phrases import name_of, short_key
from results.sweep.spec import PointRun, SweepSpec, decisive

WIDE, MIDDLE = 130, 100
_COLOUR = {"good": "green", "bad": "red", "warn": "yellow", "": "default"}

_ALWAYS = ("good_rate", "attainment", "ttft_sched_p90")
_IN_MIDDLE = ("asked_rate", "completed_rate", "ttft_sched_p50", "itl_p90", "over_saturated")
_WHEN_WIDE = ("ttft_sched_p99", "e2e_sched_p90", "queue_wait_p90", "kv_max", "preemptions")
_SHORT = {
    "asked_rate": "asked/s",
    "completed_rate": "done/s",
    "good_rate": "good/s",
    "attainment": "attained",
    "ttft_sched_p50": "TTFT p50",
    "ttft_sched_p90": "TTFT p90",
    "ttft_sched_p99": "p99",
    "itl_p90": "ITL p90",
    "e2e_sched_p90": "E2E p90",
    "queue_wait_p90": "queue p90",
    "kv_max": "KV max",
    "preemptions": "preempted",
    "over_saturated": "over-sat.",
}


def show(spec: SweepSpec, runs: Sequence[PointRun], document: Mapping[str, Any], console: Console) -> None:
    """All of it."""
    _show_table(spec, runs, console)
    for note in document["notes"]:
        console.print(f"[dim]{escape(note)}[/]", highlight=False)
    console.print()
    for i, cell in enumerate(document["cells"]):
        name = name_of(cell["at"])
        best = " [green](best)[/]" if len(document["cells"]) > 1 and i in document["best"] else ""
        head = f"[bold]{escape(name)}[/]{best}: " if name else ""
        console.print(f"{head}{escape(cell['words'])}", highlight=False)
    if document["client"] not in ("valid", None):
        word = document["client"]
        console.print(f"the client was at worst [bold {_COLOUR[TONES[word]]}]{word}[/]", highlight=False)
    _show_verdict(document, console)


def _columns(console: Console) -> list[str]:
    chosen = {
        *_ALWAYS,
        *(_IN_MIDDLE if console.width >= MIDDLE else ()),
        *(_WHEN_WIDE if console.width >= WIDE else ()),
    }
    return [name for name in sweep_words.HEADS if name in chosen]


def _show_table(spec: SweepSpec, runs: Sequence[PointRun], console: Console) -> None:
    """The numbers are over all classes; the page has them by class too."""
    columns = _columns(console)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    last = [axis.key.rpartition(".")[2] for axis in spec.axes]
    for axis in spec.axes:
        table.add_column(short_key(axis.key, last), no_wrap=True)
    for head in ("", "window", *(_SHORT[name] for name in columns)):
        table.add_column(head, justify="left" if not head else "right", no_wrap=True)
    for run in decisive(runs):
        again = " again" if run.repeat else ""
        table.add_row(
            *(escape(run.at[axis.key]) for axis in spec.axes),
            f"[bold {_COLOUR[sweep_words.TONES[run.decision]]}]{sweep_words.decision(run)}[/]{again}",
            f"{run.window:g} s",
            *(sweep_words.cell(run.rows[ALL], name) for name in columns),
        )
    console.print(table, highlight=False)


def _show_verdict(document: Mapping[str, Any], console: Console) -> None:
    word = document["verdict"]
    why = {"pass": "a safe operating point was found", "fail": "there is none"}.get(word, document["reason"])
    console.print(f"\nverdict [bold {_COLOUR[TONES[word]]}]{word}[/]: {escape(str(why))}", highlight=False)
