"""``bench reference`` and ``bench doctor``: options in, one call, an exit code out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import console
from headrace.errors import UsageFailed

if TYPE_CHECKING:
    from loadgen.reference.group import ReferenceServer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]


def register(app: typer.Typer) -> None:
    """Add the two commands."""
    app.command()(reference)
    app.command()(doctor)


def reference(
    script: Annotated[Path | None, typer.Argument(help="A script file (docs/reference.md).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8001,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    ttft: Annotated[str | None, typer.Option(help="Request read to first token [50ms].")] = None,
    itl: Annotated[str | None, typer.Option(help="Between tokens [10ms].")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Of each answer [as asked, else 50].")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set one key of the script, e.g. framing.line_end=crlf.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    cpus: Annotated[str | None, typer.Option(help="Cores to pin them to, e.g. 2,3 [not pinned].")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the log of all stamps here at the end.")] = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Keep no log at all.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve scripted answers whose true times are known, to certify load generators against.

    Example: [bold]bench reference --ttft 50ms --itl 10ms --log stamps.log[/bold]
    """
    from headrace.reference import ServeOptions, read_script, serve_reference, summary_lines

    if no_log and log is not None:
        raise UsageFailed("--log and --no-log exclude each other")
    flags = {"ttft": ttft, "itl": itl, "tokens": tokens}
    edits = [*(f"{key}={value}" for key, value in flags.items() if value is not None), *(set_ or ())]
    read = read_script(script, edits)
    options = ServeOptions(host, port, processes, _cores(cpus), log, keep_log=not no_log)

    def ready(server: ReferenceServer) -> None:
        cost, pids = server.us_per_write, server.pids
        if as_json:
            said = {"event": "ready", "url": server.url, "pid": pids[0], "pids": pids, "us_per_write": cost}
            print(json.dumps(said), flush=True)
        else:
            console.say(f"reference server on {server.url}  (Ctrl-C ends)")
            console.say(f"a write costs {cost:.1f} µs of CPU here, waking a sleeping reader not counted")

    summaries = serve_reference(read, options, ready)
    if as_json:
        print(json.dumps({"event": "summary", "processes": summaries}), flush=True)
    else:
        for line in summary_lines(summaries):
            console.say(line)


def doctor(
    bound: Annotated[float, typer.Option(help="What must hold: p99 of errors and lateness, ms.")] = 1.0,
    budget: Annotated[float, typer.Option(help="Time to look for it, s.")] = 55.0,
    start: Annotated[float, typer.Option(help="First rate that is tried, streams/s.")] = 500.0,
    processes: Annotated[int, typer.Option(help="Load processes.")] = 1,
    server_processes: Annotated[int, typer.Option(help="Processes of the reference server.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find the rate that this machine can hold within 1 ms, and what stops it from holding more.

    Example: [bold]bench doctor[/bold] · [bold]bench doctor --processes 2 --json[/bold]
    """
    from headrace.doctor import DoctorOptions, diagnose, facts_of, remedies, verdict

    options = DoctorOptions(bound, budget, start, processes, server_processes)
    diagnosis = diagnose(options, console.hint)
    if as_json:
        console.show_json(diagnosis.as_dict())
    else:
        console.show_pairs("machine", "", facts_of(diagnosis))
        console.say(f"\n{verdict(diagnosis)}")
        for remedy in remedies(diagnosis):
            console.say(f"  · {remedy}")
    raise typer.Exit(diagnosis.exit_code)


def _cores(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise UsageFailed(f"--cpus takes numbers of cores, such as 2,3, not {text!r}") from None
