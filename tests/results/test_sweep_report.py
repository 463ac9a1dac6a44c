"""How a sweep is shown: the page and the terminal, of made-up runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from results.report import sweep_terminal
from results.report.sweep_html import render
from results.report.sweep_picture import picture
from results.report.sweep_series import XAxis, curves, number
from results.report.sweep_words import HEADS
from results.sweep.columns import COLUMNS
from results.sweep.outcome import conclude
from results.sweep.phrases import name_of
from results.sweep.points import Decision
from results.sweep.search import ask
from results.sweep.spec import AxisSpec, PointRun, SweepSpec, history

RATE = AxisSpec("chat.rate", "/s", low=1.0, high=16.0)
CHUNK = AxisSpec("engine.scheduler.prefill_chunk", values=("64", "256"))
POLICY = AxisSpec("engine.router.policy", values=("cost", "round_robin"))


def spec_of(*axes: AxisSpec, cells: tuple[dict[str, str], ...] = ({},)) -> SweepSpec:
    windows, objectives = (30.0, 60.0), ("chat.ttft_sched.p90 < 800ms", "attainment >= 90%")
    return SweepSpec(
        "made-up", "Why?", True, True, (1, 2), windows, 0.2, 0.1, objectives, False, (), axes, cells
    )


def row(ttft: float | None, rate: float) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(COLUMNS, 3) | {"over_saturated": False, "attainment": 0.97}
    values |= {f"{name}_rate": rate for name in ("asked", "offered", "completed", "good")}
    times = {name: ttft for name in COLUMNS if name.startswith(("ttft", "e2e", "itl", "tpot", "queue"))}
    reasons = {name: "no samples" for name, value in times.items() if value is None}
    return values | times | {"reasons": reasons}


def run_of(spec: SweepSpec, n: int, decision: Decision, **given: Any) -> PointRun:
    value, ttft = given.pop("value", None), given.pop("ttft", 0.2)
    rows = {name: row(ttft, float(value or 1)) for name in ("chat", "batch", "all")}
    at = given.pop("at", {} if value is None else {RATE.key: RATE.text(value)})
    usual: dict[str, Any] = {"cell": 0, "repeat": 0, "seed": 1, "window": 30.0, "run": f"points/{n:03d}"}
    usual |= {"why": (), "set_aside": (), "client": "valid", "over_saturated": False}
    usual |= {"saturation_reason": None, "gates": (), "rows": rows}
    return PointRun(n=n, value=value, at=at, decision=decision, **(usual | given))


def searched(limit: float = 6.0) -> tuple[SweepSpec, list[PointRun]]:
    """A whole search that holds up to ``limit``."""
    spec, runs = spec_of(RATE), list[PointRun]()
    assert spec.space is not None
    while (asked := ask(spec.space, history(runs))) is not None:
        passes = asked.value <= limit
        decision = Decision.PASS if passes else Decision.FAIL
        given = {"value": asked.value, "ttft": asked.value / 10, "repeat": asked.repeat}
        why = () if passes else ("chat.ttft_sched.p90 < 800ms: 900 ms (850 ms .. 990 ms)",)
        over = not passes
        runs.append(run_of(spec, len(runs) + 1, decision, why=why, over_saturated=over, **given))
    return spec, runs


def grid(*axes: AxisSpec) -> tuple[SweepSpec, list[PointRun]]:
    (one, other) = axes
    cells = tuple({one.key: a, other.key: b} for a in one.values for b in other.values)
    spec = spec_of(*axes, cells=cells)
    runs = [run_of(spec, i + 1, Decision.PASS, cell=i, at=at) for i, at in enumerate(cells)]
    return spec, runs


def page_of(spec: SweepSpec, runs: list[PointRun]) -> str:
    return render(spec, runs, conclude(spec, runs))


def printed(spec: SweepSpec, runs: list[PointRun], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    sweep_terminal.show(spec, runs, conclude(spec, runs), console)
    output: str = console.file.getvalue()  # type: ignore[attr-defined]
    return output


def test_every_column_has_a_head() -> None:
    """What is measured is shown."""
    assert tuple(HEADS) == COLUMNS


def test_the_page_has_one_picture_and_one_table() -> None:
    """Bracket, knee and safe point are named in the picture; every point and class has its row."""
    spec, runs = searched()
    page = page_of(spec, runs)
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.S)
    root = ElementTree.fromstring(svg)
    assert root.findtext("title")
    for words in ("holds 6/s, fails 6.5/s", "knee 6/s", "safe 4.8/s", "chat.ttft_sched.p90 &lt; 800ms"):
        assert words in svg
    assert page.count('<table class="wide">') == page.count("<table") == 1
    for run in runs:
        assert f'href="{run.run}/report.html"' in page
    assert page.count('class="first') == len(runs)
    assert "900 ms (850 ms .. 990 ms)" in page


def test_a_class_has_its_curve_and_a_cell_too() -> None:
    """One cell: a curve for each class. Several: one for each cell, named by what differs."""
    spec, runs = searched()
    assert [curve.name for curve in curves(spec, runs, XAxis.of(spec))] == ["chat", "batch"]
    cells = tuple({CHUNK.key: value} for value in CHUNK.values)
    both = replace(spec, axes=(CHUNK, RATE), cells=cells)
    crossed = [replace(run, cell=i, at={**cell, **run.at}) for i, cell in enumerate(cells) for run in runs]
    found = curves(both, crossed, XAxis.of(both))
    assert [curve.name for curve in found] == ["prefill_chunk=64", "prefill_chunk=256"]
    assert all(curve.rows == "all" for curve in found)
    page = page_of(both, crossed)
    assert "<h2>Cells" in page
    assert page.count('class="tag good">best') == 2, "equal cells are both the best"


@pytest.mark.parametrize("axes", [(POLICY, CHUNK), (POLICY, replace(POLICY, key="target.engine.preemption"))])
def test_values_that_are_no_numbers_stand_side_by_side(axes: tuple[AxisSpec, AxisSpec]) -> None:
    """A grid over words has its picture too, without curves between words."""
    spec, runs = grid(*axes)
    axis = XAxis.of(spec)
    svg = picture(spec, runs, conclude(spec, runs))
    assert svg is not None
    assert axis.numbers == (CHUNK in axes)
    assert ("<path" in svg) == axis.numbers
    assert all(value in svg for value in axis.spec.values)
    assert "4 of 4 points hold every objective." in page_of(spec, runs)


@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_the_terminal_shows_as_much_as_fits(width: int) -> None:
    """No line is wider than the terminal; what is wanted most is always there."""
    text = printed(*searched(), width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("chat.rate", "fail again", "good/s", "verdict pass"):
        assert words in text
    assert ("queue p90" in text) == (width > 140)
    assert "Safe operating point: 4.8/s" in " ".join(text.split())


def test_a_sweep_without_a_run_can_be_shown() -> None:
    """Interrupted in its first run: a page and a line, no picture."""
    spec = spec_of(RATE)
    page = page_of(spec, [])
    assert "<svg" not in page
    assert "verdict inconclusive" in printed(spec, [], 80)


def test_a_closed_loop_shows_its_send_clock() -> None:
    """Where no latency from the due time is known, those from the send stand in, under their name."""
    spec, runs = searched()
    for run in runs:
        for numbers in run.rows.values():
            unknown = {name: None for name in COLUMNS if "_sched_" in name}
            numbers |= unknown | {"reasons": dict.fromkeys(unknown, "closed loop")}
    svg = picture(spec, runs, conclude(spec, runs))
    assert svg is not None
    assert "ttft: p90 in full" in svg
    assert "600 ms" in printed(spec, runs, 110)


def test_what_is_not_known_has_its_reason() -> None:
    """A dash, with the reason as its title."""
    spec = spec_of(RATE)
    page = page_of(spec, [run_of(spec, 1, Decision.PASS, value=1.0, ttft=None)])
    assert '<td class="n none" title="no samples">–</td>' in page


def test_names_are_escaped() -> None:
    """A class and a reason may hold anything."""
    spec, runs = searched()
    odd = replace(runs[0], why=("<script>",), rows={"<b>[red]": runs[0].rows["chat"], **runs[0].rows})
    page = page_of(spec, [odd, *runs[1:]])
    assert "<script" not in page
    assert "<b>[red]" not in page
    assert "verdict" in printed(spec, [odd, *runs[1:]], 80)


def test_keys_are_as_short_as_they_can_be_told_apart() -> None:
    """Two steps stay; of longer ones the last, unless another key ends the same."""
    assert name_of({"chat.rate": "4/s", CHUNK.key: "64"}) == "chat.rate=4/s, prefill_chunk=64"
    same = {"load.0.workload.output": "8", "load.1.workload.output": "9"}
    assert name_of(same) == "load.0.workload.output=8, load.1.workload.output=9"


def test_the_number_of_a_value() -> None:
    """Its unit is left off; words have none."""
    assert [number(text) for text in ("4/s", "64", "250ms", "10%", "1.5")] == [4, 64, 250, 10, 1.5]
    assert [number(text) for text in ("cost", "{a: 1}", "", "nan")] == [None] * 4
