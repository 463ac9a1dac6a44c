"""`bench run` on processes and sockets, and what happens to it when something of it is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.e2e

SCENARIO = """\
# Does a run end well, whatever is killed?
headrace: 1
seed: 5
target:
  engine: {{model: simulated, workers: 2, memory: {{kv_blocks: 256}}}}
classes:
  ping: {{limits: {{input: 256, output: 64, total: 256}}}}
phases: {{warmup: 0s, window: {window}, drain: 5s}}
load:
  - {{class: ping, arrival: {{type: constant, rate: 8/s}}, workload: {{type: fixed, input: 40, output: 20}}}}
faults: {faults}
gates: [attainment >= 50%, kv.leaked_blocks == 0]
"""
FILES = {
    "alone.parquet",
    "ideal.parquet",
    "attribution.json",
    "attribution.parquet",
    "audits.jsonl",
    "engine.log",
    "judging.json",
    "load.log",
    "manifest.json",
    "observed.arrow",
    "plan.parquet",
    "records.parquet",
    "report.html",
    "scenario.yaml",
    "scrapes.parquet",
    "summary.json",
    "truth.parquet",
}


def write_scenario(folder: Path, window: str = "4s", faults: str = "[]") -> str:
    (folder / "drill.yaml").write_text(SCENARIO.format(window=window, faults=faults))
    return "drill.yaml"


TIMED = {"I10", "I14", "I17", "I19", "I20"}
"""Invariants with a limit in wall time: a busy machine may break them, so virtual runs judge those."""


def failed_invariants(summary):
    return [row for row in summary["invariants"]["failed"] if row["id"] not in TIMED]


def one_record_each(run_dir: Path) -> pd.DataFrame:
    """The records, exactly one for each planned request."""
    records = pd.read_parquet(run_dir / "records.parquet")
    plan = pd.read_parquet(run_dir / "plan.parquet")
    assert sorted(records["id"]) == sorted(plan["id"])
    assert records["outcome"].notna().all()
    return records


def test_a_run_from_start_to_end(bench):
    """Every planned request has one record, the invariants hold, all files are there, and no process,
    socket or temporary file stays behind."""
    code = bench.run("run", "smoke", "--out", "run")
    last, summary = bench.last_line(), bench.summary()
    assert code in (0, 1, 4), bench.stderr.read_text()
    assert set(last) == {"verdict", "client", "interrupted", "exit", "run"}
    assert (last["exit"], last["verdict"], last["run"]) == (code, summary["verdict"], "run")
    assert last["interrupted"] is False
    assert bench.nothing_left()
    assert {file.name for file in bench.run_dir.iterdir()} == FILES | {"faults.jsonl"}
    records = one_record_each(bench.run_dir)
    truth = pd.read_parquet(bench.run_dir / "truth.parquet")
    assert set(truth["id"]) <= set(records["request_id"])
    assert failed_invariants(summary) == []
    assert summary["invariants"]["checked"] >= 15
    (leaked,) = [gate for gate in summary["gates"] if gate["text"] == "kv.leaked_blocks == 0"]
    assert (leaked["verdict"], leaked["value"]) == ("PASS", 0)
    assert summary["client"]["rows"]["H9"]["value"] == summary["client"]["rows"]["H10"]["value"] == 0
    hangup = bench.faults()["hangup"]
    assert hangup["error"] is None
    assert None not in (hangup["proven"], hangup["healed"])
    assert (records["outcome"] == "cancelled_by_plan").sum() >= 1


def test_ctrl_c_heals_and_keeps_what_was_measured(bench, until):
    """Ctrl-C while a worker is frozen: it is thawed and back, every request has its outcome, the summary
    says interrupted, exit 4."""
    faults = "[{id: ice, type: freeze_worker, worker: 0, at: 1s, for: 60s}]"
    bench.start("run", write_scenario(bench.folder, "90s", faults), "--out", "run")
    until(lambda: bench.said("ice (freeze_worker) injected"))
    assert bench.process is not None
    bench.process.send_signal(signal.SIGINT)
    assert bench.wait() == 4, bench.stderr.read_text()
    assert bench.nothing_left()
    ice = bench.faults()["ice"]
    assert ice["injected"] < ice["healed"] < 60e9
    last, summary = bench.last_line(), bench.summary()
    assert last["interrupted"] is summary["interrupted"] is True
    assert (last["exit"], last["verdict"]) == (4, "inconclusive")
    assert failed_invariants(summary) == []
    records = one_record_each(bench.run_dir)
    assert (records["outcome"] == "completed").any()
    assert (records["error"] == "interrupted").sum() > 500


def test_a_second_ctrl_c_ends_at_once(bench, until):
    """The impatient get no verdict, and still nothing is left but a run directory that can be judged."""
    faults = "[{id: ice, type: freeze_worker, worker: 0, at: 1s, for: 60s}]"
    bench.start("run", write_scenario(bench.folder, "90s", faults), "--out", "run")
    until(lambda: bench.said("ice (freeze_worker) injected"))
    assert bench.process is not None
    bench.process.send_signal(signal.SIGINT)
    until(lambda: bench.said("interrupted: healing"))
    bench.process.send_signal(signal.SIGINT)
    assert bench.wait() == 4
    assert "Traceback" not in bench.stderr.read_text()
    assert bench.nothing_left()
    assert bench.run("report", "run") == 4
    assert bench.last_line()["interrupted"] is True


def test_ctrl_c_while_the_engine_starts(bench, until):
    """Before there is any load it is exit 4 with one line, and the engine is gone."""
    bench.start("run", write_scenario(bench.folder), "--out", "run")
    until(lambda: bench.started("engine.process"))
    assert bench.process is not None
    bench.process.send_signal(signal.SIGINT)
    assert bench.wait() == 4
    assert "Traceback" not in bench.stderr.read_text()
    assert "interrupted before there was a verdict" in bench.stderr.read_text()
    assert bench.nothing_left()


@pytest.mark.parametrize("victim", ["loadgen.process", "loadgen.clerk"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_load_process_that_is_killed_is_no_smaller_run(bench, until, victim, processes):
    """kill -9 of a load process or of its clerk: what was on disk is judged, the rest counts as unknown, and
    the client is not believed. Another load process goes on to its end."""
    scenario = write_scenario(bench.folder, "6s")
    bench.start("run", scenario, "--set", f"client.processes={processes}", "--out", "run")
    kept = until(lambda: (n := bench.closed_records()) >= 4 and n)
    os.kill(bench.started(victim)[0], signal.SIGKILL)
    assert bench.wait() == 4, bench.stderr.read_text()
    assert bench.nothing_left()
    summary = bench.summary()
    assert bench.last_line()["client"] == summary["client"]["verdict"] == "invalid"
    assert summary["verdict"] == "inconclusive"
    assert summary["interrupted"] is False
    assert summary["reason"] == summary["incomplete"]
    assert ("died (exit code -9)" if victim.endswith("process") else "clerk process is gone") in summary[
        "reason"
    ]
    outcomes = one_record_each(bench.run_dir)["outcome"].value_counts()
    assert outcomes["completed"] >= kept
    assert 48 // processes >= outcomes["unknown"] == 48 - outcomes["completed"] > 0
    assert summary["client"]["rows"]["H9"]["value"] == outcomes["unknown"]
    assert summary["classes"]["ping"]["planned"] == 48
    assert failed_invariants(summary) == []


def test_a_killed_worker_comes_back(bench):
    """kill_worker by the admin door: proven, healed, one outcome for each request, nothing left behind."""
    faults = "[{id: crash, type: kill_worker, worker: 1, at: 1s}]"
    code = bench.run("run", write_scenario(bench.folder, "6s", faults), "--out", "run")
    assert code in (0, 1, 4), bench.stderr.read_text()
    crash = bench.faults()["crash"]
    assert crash["error"] is None
    assert crash["injected"] <= crash["proven"] <= crash["healed"]
    assert crash["proof"]["incarnation_after"] != crash["proof"]["incarnation_before"]
    one_record_each(bench.run_dir)
    assert failed_invariants(bench.summary()) == []
    assert bench.nothing_left()


def test_an_engine_that_dies_by_itself_is_an_error(bench, until):
    """kill -9 of the engine: exit 3 with the reason, no more load, one outcome for each planned request."""
    bench.start("run", write_scenario(bench.folder, "6s"), "--out", "run")
    until(lambda: bench.closed_records() >= 8)
    os.kill(bench.the("-m engine "), signal.SIGKILL)
    assert bench.wait() == 3, bench.stderr.read_text()
    assert bench.processes() == []
    last, summary = bench.last_line(), bench.summary()
    assert (last["exit"], last["verdict"]) == (3, "error")
    assert summary["reason"] == "the engine process ended by itself with exit code -9"
    outcomes = one_record_each(bench.run_dir)["outcome"].value_counts()
    assert outcomes["completed"] >= 8
    assert outcomes["not_sent"] > 0
    assert outcomes.sum() == 48
    assert summary["interrupted"] is False


def test_a_killed_bench_takes_everything_with_it(bench, until):
    """kill -9 of bench: load, engine and a frozen worker end by themselves; the run directory can still
    be judged and says that it was cut short."""
    faults = "[{id: ice, type: freeze_worker, worker: 0, at: 1s, for: 60s}]"
    bench.start("run", write_scenario(bench.folder, "90s", faults), "--out", "run")
    until(lambda: bench.said("ice (freeze_worker) injected") and bench.closed_records() >= 8)
    assert len(bench.processes()) == 6
    assert bench.process is not None
    bench.process.kill()
    assert bench.wait() == -signal.SIGKILL
    until(lambda: not bench.processes(), 20)
    assert bench.run("report", "run") == 4
    assert bench.last_line()["verdict"] == "inconclusive"
    summary = json.loads((bench.run_dir / "summary.json").read_text())
    assert summary["incomplete"].startswith("the run did not finish")
    assert "the run did not finish" in bench.stdout.read_text()
    assert (bench.run_dir / "report.html").exists()


def test_an_engine_that_never_gets_ready(bench, until):
    """A worker that ends while it starts: exit 3 with the end of the engine's log, and nothing is left."""
    bench.start("run", write_scenario(bench.folder), "--out", "run")
    (worker, *_) = until(lambda: bench.started("engine.process"))
    os.kill(worker, signal.SIGKILL)
    assert bench.wait() == 3, bench.stderr.read_text()
    assert "the engine never got ready (exit code 1)" in bench.stderr.read_text()
    assert "killed by SIGKILL" in bench.stderr.read_text()
    assert bench.last_line()["exit"] == 3
    assert bench.nothing_left()
