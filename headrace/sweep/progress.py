"""A line for each run of a sweep, with what is left, on stderr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.sweep.book import Book
from loadgen.clock import Clock
from results.report import words
from results.sweep.columns import ALL
from results.sweep.phrases import name_of
from results.sweep.points import Decision
from results.sweep.search import most_left
from results.sweep.spec import PointRun, history, of_cell


@dataclass(slots=True)
class Progress:
    """``clock`` is that of the person who waits, also where the runs have virtual time."""

    say: Callable[[str], None]
    clock: Clock
    _began: int | None = None
    _before: int = 0
    """Runs that an earlier command made."""

    def begin(self, book: Book) -> None:
        """Say what is to come."""
        self._began, self._before = self.clock(), len(book.runs)
        spec = book.design.spec
        over = ", ".join(f"{axis.key}" for axis in spec.axes)
        again = f"; {self._before} runs are there already" if self._before else ""
        windows = " → ".join(f"{window:g} s" for window in spec.windows)
        self.say(f"sweep of {spec.scenario} over {over}; windows {windows}{again}")
        for objective in spec.objectives:
            self.say(f"  objective: {objective}")

    def ran(self, book: Book, run: PointRun) -> None:
        """What a run showed, and about how long the rest takes."""
        row = run.rows[ALL]
        at = name_of(run.at)
        second = " (second run)" if run.repeat else ""
        shown = "open, runs longer" if run.decision is Decision.LONGER else run.decision.value
        ttft = words.duration(row["ttft_p90"] if row["ttft_sched_p90"] is None else row["ttft_sched_p90"])
        numbers = f"good {words.rate(row['good_rate'])}/s · attained {words.percent(row['attainment'])}"
        line = f"[{run.n}] {at}{second}, {run.window:g} s: {shown} · {numbers} · TTFT p90 {ttft}"
        left = self._left(book)
        self.say(f"{line} · {left}" if left else line)
        if run.why and run.decision is not Decision.PASS:
            self.say(f"      {run.why[0]}" + (f" (and {len(run.why) - 1} more)" if len(run.why) > 1 else ""))

    def _left(self, book: Book) -> str:
        """``about 3 more points, 2 min``; empty when there is nothing left."""
        points = left(book)
        done = len(book.runs) - self._before
        if not points or self._began is None or not done:
            return ""
        each = (self.clock() - self._began) * 1e-9 / done
        measured = {(run.cell, run.value, run.repeat) for run in book.runs}
        runs_each = len(book.runs) / len(measured)
        seconds = points * runs_each * each
        return f"about {points} more point{'s' * (points > 1)}, {_time(seconds)}"


def left(book: Book) -> int:
    """Points that are likely still to be asked for."""
    spec = book.design.spec
    cells = [of_cell(book.runs, cell) for cell in range(len(spec.cells))]
    if spec.space is None:
        return sum(not runs for runs in cells)
    return sum(most_left(spec.space, history(runs)) for runs in cells)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
