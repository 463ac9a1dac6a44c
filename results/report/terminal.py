"""The report in a terminal: the verdict on the client first, then gates, classes, faults, causes, findings.

Narrow terminals get fewer columns, not broken lines. Colours follow the console: none where NO_COLOR is
set or the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from results.report import words
from results.report.charts import seconds
from results.report.prices import economy_words

NARROW = 100
_COLOUR = {"good": "green", "bad": "red", "warn": "yellow", "": "default"}


def show(summary: Mapping[str, Any], console: Console) -> None:
    """The whole report."""
    show_client(summary, console)
    _show_gates(summary, console)
    show_classes(summary, console)
    show_faults(summary, console)
    show_causes(summary, console)
    show_cache(summary, console)
    show_findings(summary, console)
    show_verdict(summary, console)


def _toned(word: str) -> str:
    return f"[bold {_COLOUR[words.TONES.get(word, '')]}]{word}[/]"


def _table(console: Console, title: str) -> Table:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)


def show_client(summary: Mapping[str, Any], console: Console) -> None:
    """May the numbers be believed?"""
    console.print(
        f"client {_toned(summary['client']['verdict'])}: {escape(words.client_words(summary))}",
        highlight=False,
    )
    if stamps := words.stamp_words(summary):
        console.print(f"[dim]{stamps}[/]", highlight=False)
    if summary.get("incomplete"):
        console.print(f"[yellow]{escape(summary['incomplete'])}[/]", highlight=False)


def show_gates(summary: Mapping[str, Any], console: Console) -> None:
    """Gates alone, and before them whether they can be decided at all."""
    show_client(summary, console)
    _show_gates(summary, console)


def _show_gates(summary: Mapping[str, Any], console: Console) -> None:
    """Every gate with its value, interval and reason."""
    rows = words.gate_rows(summary)
    if not rows:
        return
    wide = console.width >= NARROW
    table = _table(console, "Gates")
    table.add_column("")
    table.add_column("gate", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    if wide:
        table.add_column("95 % interval", justify="right", no_wrap=True)
        table.add_column("n", justify="right", no_wrap=True)
    for row in rows:
        cells = [_toned_as(row["verdict"], row["tone"]), escape(row["text"]), row["value"]]
        table.add_row(*cells, *([row["interval"], row["n"]] if wide else []))
    console.print(table, highlight=False)
    for row in rows:
        if row["reason"]:
            console.print(f"[dim]{escape(row['text'])}: {escape(row['reason'])}[/]", highlight=False)


def _toned_as(word: str, tone: str) -> str:
    return f"[bold {_COLOUR[tone]}]{word}[/]"


def show_classes(summary: Mapping[str, Any], console: Console) -> None:
    """Offered, ok, good, and the headline latencies with their n."""
    wide = console.width >= NARROW
    table = _table(console, "Classes")
    heads = ["class", "planned", "ok", "shed", "failed", "good", "attained"]
    heads += ["TTFT p50", "p90", "n", "ITL p50", "E2E p50", "p90", "good/s"] if wide else ["TTFT p50", "p90"]
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right", no_wrap=True)
    for name, block in words.by_rank(summary, total=True).items():
        table.add_row(escape(words.class_name(name, block)), *_class_cells(block, wide))
    console.print(table, highlight=False)
    for said in words.replay_words(summary):
        console.print(f"[dim]{escape(said)}[/]", highlight=False)


def _class_cells(block: dict[str, Any], wide: bool) -> list[str]:
    groups, metrics = block["groups"], block["metrics"]
    ttft, itl, e2e = (
        metrics[n] for n in (words.headline(block, "ttft"), "itl", words.headline(block, "e2e"))
    )
    cells = [str(block["planned"]), str(groups["ok"]), str(groups["rejected"] + groups["expired"])]
    cells += [
        str(groups["failed"] + groups["unknown"]),
        str(block["good"]),
        words.percent(block["attainment_for_gates"]),
    ]
    cells += [words.duration(ttft["p50"]), words.duration(ttft["p90"])]
    if wide:
        cells += [str(ttft["n"]), words.duration(itl["p50"])]
        cells += [words.duration(e2e["p50"]), words.duration(e2e["p90"]), words.rate(block["rates"]["good"])]
    return cells


def show_faults(summary: Mapping[str, Any], console: Console) -> None:
    """What was broken, what was seen of it, and the invariants."""
    if summary["faults"]:
        table = _table(console, "Faults")
        for i, head in enumerate(("fault", "type", "injected", "proven", "over", "touched", "failed")):
            table.add_column(head, justify="left" if i < 2 else "right", no_wrap=True)
        for fault in summary["faults"]:
            groups = fault.get("groups", {})
            table.add_row(
                escape(str(fault["id"])),
                escape(str(fault["type"])),
                *(_moment(fault.get(key)) for key in ("injected", "proven", "healed")),
                str(fault.get("requests", words.NOTHING)),
                str(groups.get("failed", words.NOTHING)),
            )
        console.print(table, highlight=False)
    if summary["invariants"]["checked"] is not None:
        colour = "red" if summary["invariants"]["failed"] else "default"
        console.print(f"\n[{colour}]{escape(words.invariant_words(summary))}[/]", highlight=False)


def _moment(at: float | None) -> str:
    return "not seen" if at is None else f"{at * 1e-9:.2f} s"


def show_causes(summary: Mapping[str, Any], console: Console) -> None:
    """Missed prompt tokens by cause, and where the costliest began."""
    rollup = summary["attribution"]
    if not rollup:
        return
    missed, new = rollup["missed_tokens"], rollup["ledger"]["new"]
    if not any(missed.values()):
        said = f"No prompt token missed the cache; {new:,.0f} were new, which no cache could have held."
        console.print(f"\n{said}", highlight=False)
        return
    table = _table(console, "Prompt tokens that missed the cache, by cause")
    for i, head in enumerate(("cause", "tokens", "where it began")):
        table.add_column(head, justify="right" if i == 1 else "left", overflow="fold")
    for cause, n in missed.items():
        worst = next((row for row in rollup.get("top", []) if row["outcome"] == cause), None)
        began = _began(worst) if worst else "requests that missed more for another cause"
        table.add_row(cause, f"{n:,.0f}", escape(began) if n else "")
    console.print(table, highlight=False)
    console.print(f"[dim]{new:,.0f} more were new: no cache could have held them.[/]", highlight=False)


def show_cache(summary: Mapping[str, Any], console: Console) -> None:
    """What was read from cache, and whether it was as declared."""
    for said in filter(None, (words.cache_words(summary), economy_words(summary))):
        console.print(f"[dim]{escape(said)}[/]", highlight=False)


def _began(row: dict[str, Any]) -> str:
    found = words.began(row)
    return f"{row['subtype']}; {found}" if found else row["subtype"]


def show_findings(summary: Mapping[str, Any], console: Console) -> None:
    """What a reader should know, with what to do about it."""
    if not summary["findings"]:
        return
    console.print("\n[bold]Findings[/]", highlight=False)
    for finding in summary["findings"]:
        console.print(f"• {escape(finding['text'])}", highlight=False)
        console.print(f"  [dim]→ {escape(finding['remedy'])}[/]", highlight=False)


def show_verdict(summary: Mapping[str, Any], console: Console) -> None:
    """The last thing a person reads."""
    a, b = summary["window"]["a"], summary["window"]["b"]
    kind = "virtual" if summary["virtual"] else "live"
    why = f": {escape(summary['reason'])}" if summary["reason"] else ""
    length = seconds((b - a) * 1e-9)
    n = summary["all"]["planned"]
    about = f"{escape(summary['scenario'])}, {kind}, {n:,} request{'' if n == 1 else 's'} in {length}"
    if limits := words.timeout_words(summary):
        console.print(f"\n[dim]{limits}[/]", highlight=False)
    console.print(f"\nverdict {_toned(summary['verdict'])}{why}  [dim]{about}[/]", highlight=False)
