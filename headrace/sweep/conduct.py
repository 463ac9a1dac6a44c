"""A sweep from its first point to its last: ask the search, run, judge, keep, say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.console import View
from headrace.errors import Interrupted, TargetFailed
from headrace.run import Options, run_scenario
from headrace.sweep.book import Book
from headrace.sweep.progress import Progress
from results.run import Run, RunData
from results.sweep.columns import columns
from results.sweep.points import Decision, decide
from results.sweep.search import ask
from results.sweep.spec import PointRun, history, of_cell


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make."""

    cell: int
    value: float | None
    repeat: int
    window: int
    """Index into the windows of the sweep."""


class Stopped(Exception):
    """Somebody pressed Ctrl-C; the run that it hit is not counted."""


def sweep(book: Book, progress: Progress, view: Callable[[], View]) -> dict[str, Any]:
    """Run what is left to run; returns the document of sweep.json, which is on disk whatever happens.

    Raises UsageFailed if a scenario turns out not to run; what is there is kept.
    """
    interrupted, error = False, None
    try:
        while (job := next_job(book)) is not None:
            run = _run(book, job, view())
            book.add(run)
            progress.ran(book, run)
    except (Stopped, Interrupted, KeyboardInterrupt):
        interrupted = True
    except TargetFailed as failed:
        error = "; ".join(failed.lines)
    document = book.save(interrupted=interrupted, error=error)
    book.close(document)
    return document


def next_job(book: Book) -> Job | None:
    """Cell after cell; a point that is open goes on with the next window before anything else."""
    spec = book.design.spec
    last = book.runs[-1] if book.runs else None
    if last is not None and last.decision is Decision.LONGER:
        return Job(last.cell, last.value, last.repeat, spec.windows.index(last.window) + 1)
    for cell in range(len(spec.cells)):
        runs = of_cell(book.runs, cell)
        if spec.space is None:
            if not runs:
                return Job(cell, None, 0, 0)
        elif (asked := ask(spec.space, history(runs))) is not None:
            return Job(cell, asked.value, asked.repeat, 0)
    return None


def _run(book: Book, job: Job, view: View) -> PointRun:
    """Raises Stopped, and what a run raises: TargetFailed, Interrupted, UsageFailed."""
    design, spec = book.design, book.design.spec
    window = spec.windows[job.window]
    folder = book.next_folder(design.at(job.cell, job.value), window)
    options = Options(
        out=folder,
        target=design.options.target,
        virtual=spec.virtual,
        seed=spec.seeds[job.repeat],
        overrides=design.overrides(job.cell, job.value, window),
    )
    summary = run_scenario(Path(design.options.scenario), options, view).summary
    if summary["interrupted"]:
        raise Stopped
    data = Run.load(folder)
    if data.target_error:
        raise TargetFailed(data.target_error, f"see {folder}")
    if not book.runs and summary["verdict"] == "error":
        raise TargetFailed(f"at the first point: {summary['reason']}", f"see {folder}")
    return _told(book, job, folder, data, summary)


def _told(book: Book, job: Job, folder: Path, data: RunData, summary: dict[str, Any]) -> PointRun:
    """What a judged run says of its point."""
    spec = book.design.spec
    longest = job.window == len(spec.windows) - 1
    found = decide(summary, own_engine=spec.own_engine, longest=longest)
    return PointRun(
        n=len(book.runs) + 1,
        cell=job.cell,
        value=job.value,
        at=book.design.at(job.cell, job.value),
        repeat=job.repeat,
        seed=spec.seeds[job.repeat],
        window=spec.windows[job.window],
        run=str(folder.relative_to(book.path)),
        decision=found.decision,
        why=found.why,
        set_aside=found.set_aside,
        client=summary["client"]["verdict"],
        over_saturated=summary["saturation"]["over"],
        saturation_reason=summary["saturation"]["reason"],
        gates=tuple(summary["gates"]),
        rows={name: row.as_dict() for name, row in columns(data, summary).items()},
    )
