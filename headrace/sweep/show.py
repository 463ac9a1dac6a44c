"""A sweep as the command runs it: begun or gone on with, told while it runs, shown at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace import console
from headrace.errors import UsageFailed
from headrace.sweep.book import PAGE, Book, new_book, resumed_book
from headrace.sweep.conduct import sweep
from headrace.sweep.design import SweepOptions, make_design
from headrace.sweep.progress import Progress
from loadgen.clock import monotonic
from results.report import sweep_terminal


def run_and_show(
    options: SweepOptions, out: Path | None, usual: Path, resume: Path | None, *, quiet: bool
) -> tuple[Path, dict[str, Any]]:
    """(directory, document of sweep.json). Raises UsageFailed before anything is sent."""
    book = _book(options, out, usual, resume)
    progress = Progress(_silent if quiet else console.hint, monotonic)
    progress.begin(book)
    document = sweep(book, progress, lambda: _view(book, quiet))
    if not quiet:
        sweep_terminal.show(book.design.spec, book.runs, document, console.out)
        console.say(f"\nreport: {book.path / PAGE}")
    return book.path, document


def _book(options: SweepOptions, out: Path | None, usual: Path, resume: Path | None) -> Book:
    if resume is None:
        return new_book(out or usual, make_design(options))
    if out is not None and out != resume:
        raise UsageFailed(f"--resume {resume} goes on there: leave out --out {out}")
    return resumed_book(resume, options)


def _silent(text: str) -> None: ...


def _view(book: Book, quiet: bool) -> console.View:
    """A live run takes long enough to be watched, where there is somebody to watch."""
    watched = not quiet and not book.design.spec.virtual and console.err.is_terminal
    return console.view(quiet=False) if watched else console.Silent()
