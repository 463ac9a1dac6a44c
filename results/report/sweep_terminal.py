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

_COLOUR = {"good": "green", "bad": "red", "warn": "yellow", "": "default"}
_GAP = 2
"""Blanks between two columns."""

_HEADS = {
    "good_rate": "good/s",
    "attainment": "attained",
    "ttft_sched_p90": "TTFT p90",
    "over_saturated": "over-sat.",
    "asked_rate": "asked/s",
    "ttft_sched_p50": "TTFT p50",
    "itl_p90": "ITL p90",
    "completed_rate": "done/s",
    "kv_max": "KV max",
    "e2e_sched_p90": "E2E p90",
    "queue_wait_p90": "queue p90",
    "ttft_sched_p99": "TTFT p99",
    "preemptions": "preempted",
    "prefill_tokens_s": "prefill/s",
    "decode_tokens_s": "decode/s",
}
"""Columns for a terminal, the most wanted first: as many as fit are shown, in the order of the page."""


def show(spec: SweepSpec, runs: Sequence[PointRun], document: Mapping[str, Any], console: Console) -> None:
    """All of it."""
    _show_table(spec, runs, console)
    for note in document["notes"]:
        console.print(f"[dim]{escape(note)}[/]", highlight=False)
    if spec.searched is not None:
        _show_cells(document, console)
    if document["client"] not in ("valid", None):
        word = document["client"]
        console.print(f"the client was at worst [bold {_COLOUR[TONES[word]]}]{word}[/]", highlight=False)
    _show_verdict(document, console)


def _show_table(spec: SweepSpec, runs: Sequence[PointRun], console: Console) -> None:
    """The numbers are over all classes; the page has them by class too."""
    shown = decisive(runs)
    last = [axis.key.rpartition(".")[2] for axis in spec.axes]
    fixed = {short_key(axis.key, last): [run.at[axis.key] for run in shown] for axis in spec.axes}
    fixed |= {"": [_says(run) for run in shown], "window": [f"{run.window:g} s" for run in shown]}
    numbers = {name: _cells(shown, name) for name in _HEADS}
    chosen = _that_fit(console.width - sum(map(_width, fixed.items())), numbers)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0), show_edge=False)
    for head in (*fixed, *(_HEADS[name] for name in chosen)):
        table.add_column(head, justify="left" if head in list(fixed)[:-1] else "right", no_wrap=True)
    for i, run in enumerate(shown):
        cells = [escape(values[i]) for values in fixed.values()]
        cells[-2] = f"[bold {_COLOUR[sweep_words.TONES[run.decision]]}]{cells[-2]}[/]"
        table.add_row(*cells, *(numbers[name][i] for name in chosen))
    console.print(table, highlight=False)


def _cells(shown: Sequence[PointRun], column: str) -> list[str]:
    """Where no loop is open, latencies from the due time are not known: then those from the send."""
    if all(run.rows[ALL][column] is None for run in shown):
        column = column.replace("_sched", "")
    return [sweep_words.cell(run.rows[ALL], column) for run in shown]


def _says(run: PointRun) -> str:
    return f"{sweep_words.decision(run)}{' again' if run.repeat else ''}"


def _width(column: tuple[str, Sequence[str]]) -> int:
    head, values = column
    return max(map(len, (head, *values))) + _GAP


def _that_fit(room: int, numbers: Mapping[str, Sequence[str]]) -> list[str]:
    """The most wanted columns, in the order of the page."""
    chosen = set()
    for name, head in _HEADS.items():
        room -= _width((head, numbers[name]))
        if room < 0:
            break
        chosen.add(name)
    return [name for name in sweep_words.HEADS if name in chosen]


def _show_cells(document: Mapping[str, Any], console: Console) -> None:
    console.print()
    for i, cell in enumerate(document["cells"]):
        name = name_of(cell["at"])
        best = " [green](best)[/]" if len(document["cells"]) > 1 and i in document["best"] else ""
        head = f"[bold]{escape(name)}[/]{best}: " if name else ""
        console.print(f"{head}{escape(cell['words'])}", highlight=False)


def _show_verdict(document: Mapping[str, Any], console: Console) -> None:
    word, said = document["verdict"], [cell["words"] for cell in document["cells"]]
    short = {"pass": "a safe operating point was found", "fail": "there is none"}
    why = short.get(word, "") if document["reason"] in said else document["reason"]
    tail = f": {escape(why)}" if why else ""
    console.print(f"\nverdict [bold {_COLOUR[TONES[word]]}]{word}[/]{tail}", highlight=False)
