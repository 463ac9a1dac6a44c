"""Axes that would mislead, refused before any load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import UsageFailed
from headrace.prepare import load_scenario
from headrace.sweep.axes import parse_axes
from headrace.sweep.design import SweepOptions, make_design
from tests.headrace.test_sweep import SMALL


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize(
    ("axes", "both"),
    [
        (("ping.rate=1:4", "load.0.arrival.rate=1/s,2/s"), "load.0.arrival.rate"),
        (("ping.rate=1:4", "load.00.arrival.rate=1/s,2/s"), ".arrival.rate"),
        (("load.0.arrival={type: poisson, rate: 1/s},{type: poisson, rate: 2/s}", "ping.rate=1:4"), "load.0"),
        (("ping.rate=1:4", "ping.concurrency=1,2"), "load.0.arrival.rate"),
        (("pong.concurrency=1,2", "load.1.arrival.users=1,2"), "load.1.arrival.users"),
        (
            ("engine.scheduler.max_running=2:4", "engine.scheduler={max_running: 2},{max_running: 3}"),
            "target.engine.scheduler.max_running",
        ),
        (
            ("engine.scheduler.max_running=2:4", "target.engine.scheduler.max_running=3,4"),
            "target.engine.scheduler.max_running",
        ),
    ],
)
def test_two_axes_that_write_the_same_thing_are_refused(
    small: Path, axes: tuple[str, ...], both: str
) -> None:
    """The later would undo the earlier, and a safe point would be told of what never varied."""
    with pytest.raises(UsageFailed, match="this sweep cannot be run") as refused:
        make_design(SweepOptions(str(small), axes, virtual=True))
    (said,) = refused.value.lines[1:]
    assert "both set " in said
    assert both in said
    assert "leave one out" in said


def test_axes_side_by_side_are_not_taken_for_the_same(small: Path) -> None:
    """Two loads, two keys of one part, and names of which one begins like the other."""
    axes = ("ping.rate=1:4", "pong.rate=1,2", "engine.scheduler.max_running=2,4", "engine.cost.a=1ms,2ms")
    more = ("engine.cost.b=1ms,2ms", "phases.warmup=0s,1s")
    assert len(parse_axes((*axes, *more), load_scenario(small))) == 6


def test_a_trace_that_only_a_longer_window_reaches_is_checked_too(small: Path, tmp_path: Path) -> None:
    """Refused before any load, with the way out; with that, it runs."""
    lines = (
        f'{{"timestamp":{second * 1000},"input_length":{900_000 if second == 5 else 10},'
        f'"output_length":4,"hash_ids":[{",".join(map(str, range(1758 if second == 5 else 1)))}]}}'
        for second in range(7)
    )
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "traced.yaml"
    load = "{type: poisson, rate: 1/s}, workload: {type: fixed, input: 20, output: 4}}"
    path.write_text(
        SMALL.replace(
            "{class: pong, arrival: " + load, "{class: pong, trace: {type: mooncake, file: t.jsonl}}"
        ).replace("  pong: {limits: {input: 128, output: 8, total: 128}}", "  pong: {}")
    )
    options = SweepOptions(str(path), ("ping.rate=4:8",), virtual=True, step_window="3s", longest_window="6s")
    with pytest.raises(UsageFailed) as refused:
        make_design(options)
    *_, said, remedy = refused.value.lines
    assert "t.jsonl:6" in said
    assert "--longest-window 3s" in remedy
    assert make_design(replace(options, longest_window="3s")).spec.windows == (3.0,)
