"""Several load processes in one run: what they leave as one, and what becomes of it if one of them stops."""

from __future__ import annotations

import json
import os
import signal

import pandas as pd
import pytest

from loadgen.reference.script import Script

pytestmark = pytest.mark.e2e

SCENARIO = """\
# What do two load processes leave?
headrace: 1
seed: 3
target: {url: http://127.0.0.1:1, model: m}
classes:
  ping: {}
phases: {warmup: 0s, window: WINDOW, drain: 5s}
client: {processes: 2}
load:
  - class: ping
    arrival: {type: constant, rate: 5/s}
    workload: {type: sessions, turns: 2, system: 20, user: 10, output: 4, think: 100ms}
"""


def arguments(bench, url, window, *more):
    (bench.folder / "s.yaml").write_text(SCENARIO.replace("WINDOW", window))
    return ["run", "s.yaml", "--out", "run", "--set", f"target={{url: {url}, model: m}}", *more]


def test_texts_of_all_processes_are_one_file_in_order(bench, reference):
    """With `--keep-text`: every answered request once, by id, and no file of a single process."""
    bench.run(*arguments(bench, reference(Script()).url, "2s", "--keep-text"))
    rows = [json.loads(line) for line in (bench.run_dir / "texts.jsonl").read_text().splitlines()]
    records = pd.read_parquet(bench.run_dir / "records.parquet")
    completed = records[records["outcome"] == "completed"]
    assert len(completed) >= 15
    assert [row["id"] for row in rows] == sorted(completed["id"])
    assert all(row["messages"] and row["answer"] for row in rows)
    assert not list(bench.run_dir.glob("texts-*"))


def test_a_load_process_that_is_told_to_end_is_no_smaller_run(bench, until, reference):
    """SIGTERM from outside: it accounts for its slice, the other goes on, the run counts as interrupted."""
    bench.start(*arguments(bench, reference(Script()).url, "6s"))
    until(lambda: bench.closed_records() >= 4)
    os.kill(bench.started("loadgen.process")[0], signal.SIGTERM)
    assert bench.wait() == 4, bench.stderr.read_text()
    assert bench.nothing_left()
    assert bench.last_line()["interrupted"] is True
    records = pd.read_parquet(bench.run_dir / "records.parquet")
    assert sorted(records["id"]) == list(range(60))
    assert (records["error"] == "interrupted").any()
    assert records[records["outcome"] == "completed"]["due"].max() > 5_000_000_000
