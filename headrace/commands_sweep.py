"""``bench sweep``: the options, one call, the last line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import console
from headrace.closing import Closing, closed_also_on_error, end
from headrace.errors import TargetFailed

if TYPE_CHECKING:
    from headrace.sweep.design import SweepOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(cls=Closing)(sweep)


def sweep(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario file, or the name of a shipped one (`bench scenarios`).")
    ],
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=low:high is searched, KEY=v1,v2 is tried one by one; several are crossed. KEY: "
            "CLASS.rate, CLASS.concurrency, engine.KEY, or a key as for --set."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory to create [runs/sweep-<scenario>-<UTC>].")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Drive this OpenAI-compatible endpoint instead.")] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="In virtual time, with simulated workers.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Replace the scenario's seed.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override one key, e.g. load.0.workload.output=16.")
    ] = None,
    headroom: Annotated[str, typer.Option(help="How far below the knee is safe.")] = "20%",
    width: Annotated[str, typer.Option(help="Stop when the bracket is narrower than this.")] = "10%",
    step_window: Annotated[
        str | None, typer.Option(help="Window of a point; saturation needs 30s [scenario's, at least 30s].")
    ] = None,
    longest_window: Annotated[
        str | None, typer.Option(help="A point that is open runs longer, up to this [4 times the window].")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with a sweep that was cut short; finished runs stay.")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no report; the last line only.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json instead of text.")] = False,
) -> None:
    """Find the rate (or any other control) up to which a target holds its objectives.

    Example: [bold]bench sweep quickstart --axis chat.rate=0.25:4 --virtual[/bold] ·
    [bold]bench sweep my.yaml --axis chat.rate=1:64 --axis engine.scheduler.prefill_chunk=64,256[/bold]
    """
    from headrace.sweep.design import SweepOptions
    from headrace.sweep.show import run_and_show

    options = SweepOptions(
        scenario=str(scenario),
        axes=tuple(axis or ()),
        target=target,
        virtual=virtual,
        seed=seed,
        overrides=tuple(set_ or ()),
        headroom=headroom,
        width=width,
        step_window=step_window,
        longest_window=longest_window,
    )
    with closed_also_on_error():
        path, document = run_and_show(options, out, _usual(options), resume, quiet=quiet or as_json)
    if as_json:
        console.show_json(document)
    if document["error"] is not None:
        console.complain(TargetFailed(document["error"]))
    last = {key: document[key] for key in ("verdict", "client", "interrupted", "exit")}
    end(last | {"run": str(path)})


def _usual(options: SweepOptions) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("runs") / f"sweep-{Path(options.scenario).stem}-{stamp}"
