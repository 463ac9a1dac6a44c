"""The ``bench`` command: options in, one call, an exit code out (MEASUREMENT 9)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace import commands_reference, commands_sweep, console
from headrace.closing import Closing, closed_also_on_error, end, own_fault
from headrace.errors import BenchError
from headrace.origin import check_origin

app = typer.Typer(
    name="bench",
    help="Know what an LLM serving system really does under load. Example: [bold]bench run quickstart[/bold]",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(
    help="Fetch and list models for the built-in engine. Example: [bold]bench model list[/bold]",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(model_app, name="model")

ScenarioPath = Annotated[
    Path, typer.Argument(help="A scenario file, or the name of a shipped one (`bench scenarios`).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override one key, e.g. load.0.arrival.rate=3/s.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]
RunFolder = Annotated[Path, typer.Argument(help="A run directory, e.g. runs/quickstart-20260304T101500Z.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="A marginal pass is inconclusive; degraded is invalid.")
]
Allow = Annotated[
    bool, typer.Option("--allow-inconclusive", help="Exit 0 on inconclusive; it is still printed.")
]


@app.command(cls=Closing)
def run(
    scenario: ScenarioPath,
    out: Annotated[Path | None, typer.Option(help="Run directory to create [runs/<scenario>-<UTC>].")] = None,
    target: Annotated[str | None, typer.Option(help="Drive this OpenAI-compatible endpoint instead.")] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="In virtual time, with simulated workers.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Replace the scenario's seed.")] = None,
    set_: Overrides = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No live view, no report; the last line only.")
    ] = False,
    as_json: AsJson = False,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Store prompts and answers too.")] = False,
    strict: Strict = False,
    allow_inconclusive: Allow = False,
) -> None:
    """Run a scenario: load, faults, measurements, attribution, verdict.

    Example: [bold]bench run quickstart[/bold] · [bold]bench run my.yaml --target http://127.0.0.1:8000[/bold]
    """
    with closed_also_on_error():  # the imports too, which take a second
        from headrace.run import Options, run_scenario

        options = Options(
            out=out,
            target=target,
            virtual=virtual,
            seed=seed,
            overrides=tuple(set_ or ()),
            keep_text=keep_text,
            strict=strict,
            allow_inconclusive=allow_inconclusive,
        )
        outcome = run_scenario(scenario, options, console.view(quiet=quiet or as_json))
    if as_json:
        console.show_json(outcome.summary)
    elif not quiet:
        console.show_report(outcome.summary, outcome.folder)
    end(outcome.last_line)


@app.command()
def validate(scenario: ScenarioPath, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Check a scenario file and show every error at once. Example: [bold]bench validate my.yaml[/bold]"""
    from headrace.prepare import load_scenario

    loaded = load_scenario(scenario, tuple(set_ or ()))
    if as_json:
        console.show_json({"ok": True, "scenario": str(scenario), "question": loaded.question})
    else:
        console.say(f"{scenario}: ok. {loaded.question}")


@app.command()
def plan(
    scenario: ScenarioPath,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="With the scenario's values for virtual time.")
    ] = False,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """What would be sent, before anything is: counts, rates and demand by class.

    Example: [bold]bench plan quickstart[/bold]
    """
    from headrace.prepare import describe_plan, load_scenario, make_plan

    loaded = load_scenario(scenario, tuple(set_ or ()), virtual=virtual)
    described = describe_plan(loaded, make_plan(loaded), virtual=virtual)
    console.show_json(described) if as_json else console.show_plan(described)


@app.command()
def schema() -> None:
    """The JSON Schema of scenario files, for editors.

    Example: [bold]bench schema > scenario.schema.json[/bold]
    """
    from scenarios.load import json_schema

    console.show_json(json_schema())


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Everything that a scenario may name, with its fields. Example: [bold]bench list[/bold]"""
    from scenarios.load import tables

    console.show_json(tables()) if as_json else console.show_tables(tables())


@app.command()
def scenarios(as_json: AsJson = False) -> None:
    """The shipped scenarios and the question that each answers. Example: [bold]bench scenarios[/bold]"""
    from headrace.prepare import shipped

    found = shipped()
    console.show_json(found) if as_json else console.show_pairs("scenario", "question", found)


@app.command(cls=Closing)
def report(
    run: RunFolder,
    as_json: AsJson = False,
    strict: Strict = False,
    allow_inconclusive: Allow = False,
) -> None:
    """Judge a run directory again and draw its report, also of a run that was cut short.

    Example: [bold]bench report runs/quickstart-20260304T101500Z[/bold]
    """
    from headrace.rejudge import rejudge

    with closed_also_on_error():
        outcome = rejudge(run, strict=strict, allow_inconclusive=allow_inconclusive, draw=True)
    console.show_json(outcome.summary) if as_json else console.show_report(outcome.summary, outcome.folder)
    end(outcome.last_line)


@app.command(cls=Closing)
def gate(
    run: RunFolder,
    gates: Annotated[
        list[str] | None, typer.Argument(help="Gates to judge instead of the scenario's own.")
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
    allow_inconclusive: Allow = False,
) -> None:
    """Judge gates against a run that is there already.

    Example: [bold]bench gate runs/x "chat.ttft_sched.p90 < 800ms"[/bold]
    """
    from headrace.rejudge import rejudge

    with closed_also_on_error():
        outcome = rejudge(
            run,
            strict=strict,
            allow_inconclusive=allow_inconclusive,
            draw=False,
            gates=tuple(gates or ()) or None,
        )
    if as_json:
        client = outcome.summary["client"]["verdict"]
        console.show_json({"client": client, "gates": outcome.summary["gates"]})
    else:
        console.show_gates(outcome.summary)
    end(outcome.last_line)


@app.command()
def explain(
    run: RunFolder,
    request: Annotated[
        int | None, typer.Option(help="Id of a request; without it, the largest misses.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Why prompt tokens of a request were not served from cache, in words.

    Example: [bold]bench explain runs/accidental-reset-20260304T101500Z --request 12[/bold]
    """
    from headrace.rejudge import explain_run

    found = explain_run(run, request)
    console.show_json(found) if as_json else console.show_explanations(found)


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Argument(help="A scenario file whose engine block and classes are served.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Pulled name, folder, tiny or simulated [smollm2-135m].")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes [1].")] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8000,
    admin_port: Annotated[int | None, typer.Option(help="Open the admin door on this port [off].")] = None,
    set_: Overrides = None,
) -> None:
    """Serve a model with the built-in engine alone, OpenAI-compatible, on 127.0.0.1.

    Without a file, --set takes keys of its engine block.

    Example: [bold]bench serve --model tiny --workers 2 --set scheduler.prefill_chunk=64[/bold]
    """
    from headrace.serve import serve_engine

    raise typer.Exit(serve_engine(config, model, workers, port, admin_port, tuple(set_ or ())))


@app.command()
def dashboards(
    out: Annotated[Path, typer.Option(help="Folder for the dashboard files.")] = Path("grafana"),
) -> None:
    """Write the Grafana dashboards for the built-in engine.

    Example: [bold]bench dashboards --out grafana[/bold]
    """
    from dashboards.build import write

    for path in write(out):
        console.say(str(path))


@model_app.command("pull")
def model_pull(
    name: Annotated[
        str, typer.Argument(help="A known model (`bench model list`), or org/name[@revision] of the hub.")
    ],
    to: Annotated[Path | None, typer.Option(help="Folder to put it in [the user's cache folder].")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Fetch a model once, check it, and make it ready to serve.

    Example: [bold]bench model pull Qwen/Qwen2.5-0.5B-Instruct[/bold]
    """
    from headrace.models import pull_shown

    folder = pull_shown(name, to, quiet)
    if not quiet:
        console.say(str(folder))


@model_app.command("list")
def model_list(as_json: AsJson = False) -> None:
    """Known models, and where the pulled ones are. Example: [bold]bench model list[/bold]"""
    from engine.model.pull import listing

    found = listing()
    console.show_json(found) if as_json else console.show_pairs("model", "folder", found)


commands_sweep.register(app)
commands_reference.register(app)


def main() -> None:
    """Entry point of the ``bench`` script."""
    try:
        check_origin()
        app()
    except BenchError as error:
        console.complain(error)
        sys.exit(error.exit_code)
    except Exception as error:
        sys.exit(own_fault(error))


if __name__ == "__main__":
    main()
