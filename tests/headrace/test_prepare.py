"""What a plan needs of this machine, as far as the scenario bounds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import prepare

FILE = """\
# How much at once?
headrace: 1
seed: 1
target: {url: "http://127.0.0.1:9", model: m}
classes: {c: {}, d: {}}
phases: {window: 10s}
timeouts: {total: 3s}
load:
  - {class: c, arrival: {type: burst, size: 50}, workload: {type: fixed, input: 5, output: 2}}
  - class: d
    arrival: {type: constant, rate: 0.1/s}
    workload: {type: sessions, turns: 3, system: 5, user: 5, output: 2, branches: {at: 1, count: 40}}
"""
LOOP = "{class: c, arrival: {type: concurrency, users: 30, ramp_up: 5s}, workload: WORK}"
FIXED = "{type: fixed, input: 5, output: 2}"
THINKING = "{type: sessions, turns: 3, system: 5, user: 5, output: 2, think: 1s}"


@pytest.mark.parametrize(
    ("overrides", "sure", "most"),
    [
        ([], 51, 90),
        (["classes.c.cap={in_flight: 7}"], 40, 47),
        (["classes.c.cap={in_flight: 7}", "classes.d.cap={in_flight: 9}"], 9, 16),
        (["client.connections=20", "client.processes=2"], 40, 40),
        ([f"load.0={LOOP.replace('WORK', FIXED)}", "load.1.workload.branches=null"], 30, 31),
        ([f"load.0={LOOP.replace('WORK', THINKING)}", "load.1.workload.branches=null"], 2, 31),
        ([f"load.0={LOOP.replace('WORK', FIXED).replace('5s', '5s, think: 1s')}"], 40, 70),
    ],
)
def test_what_is_in_the_air_at_once(
    overrides: list[str], sure: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cap and the pool bound it; users of a closed loop who think are not always in the air."""
    file = tmp_path / "s.yaml"
    file.write_text(FILE)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(prepare, "foresee", lambda peak, least, *_: asked.append((least, peak)) or [])
    scenario = prepare.load_scenario(file, overrides)
    assert prepare.foreseen(scenario, prepare.make_plan(scenario)) == []
    assert asked == [(sure, most)]
