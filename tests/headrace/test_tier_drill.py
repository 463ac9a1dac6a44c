"""Drills on the disk tier, scripted in a scenario and run in virtual time through the whole of headrace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.console import Silent
from headrace.run import Options, run_scenario
from headrace.verdict import Outcome

SCENARIO = """# What does a disk tier that fails for half a minute cost?
headrace: 1
seed: 5
target:
  engine:
    model: simulated
    workers: 2
    memory: {kv_blocks: 64}
    scheduler: {max_step_tokens: 256, max_running: 8, prefill_chunk: 256}
    cache: {tiers: {host: 20MB, disk: {path: /unused, size: 2GB}}}
    cost: {a: 5ms, b: 0.5ms, c: 1ms, d: 1e-6s, e: 1e-8s}
classes:
  session: {limits: {input: 900, output: 40}, slo: {ttft_sched: 4s}}
phases: {warmup: 20s, window: 80s, drain: 20s}
load:
  - class: session
    arrival: {type: poisson, rate: 30/m}
    workload: {type: sessions, turns: 3, system: 100, user: 150, output: 24, think: 8s}
faults:
  - {id: disk, type: break_disk, how: HOW, at: 40s, for: 30s}
gates:
  - attainment >= 95%
  - kv.leaked_blocks == 0
  - invariants.failed == 0
"""


def drilled(
    folder: Path, how: str, *edits: tuple[str, str]
) -> tuple[Outcome, dict[str, Any], list[dict[str, Any]]]:
    """(outcome, the fault's line, truth rows with t0 subtracted from ``finished``)."""
    text = SCENARIO.replace("HOW", how)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = folder / "drill.yaml"
    path.write_text(text)
    outcome = run_scenario(path, Options(out=folder / "run", virtual=True), Silent())
    (line,) = (outcome.folder / "faults.jsonl").read_text().splitlines()
    return outcome, json.loads(line), pq.read_table(outcome.folder / "truth.parquet").to_pylist()


@pytest.mark.parametrize("how", ["full", "corrupt"])
def test_a_disk_that_fails_costs_hits_and_no_request(tmp_path: Path, how: str) -> None:
    """Injected, proven by lost blocks, healed; every invariant holds and the objectives are met; outside the
    window the disk serves."""
    outcome, fault, truth = drilled(tmp_path, how)
    assert outcome.last_line["verdict"] == "pass"
    assert fault["error"] is None
    assert fault["injected"] == 40 * 10**9
    assert fault["injected"] <= fault["proven"] <= fault["healed"]
    assert fault["proof"]["blocks_lost"] > 0
    assert sum(row["hit_disk"] for row in truth) > 0
    assert all(row["finish_reason"] == "length" for row in truth)


def test_an_engine_without_a_disk_cannot_be_drilled(tmp_path: Path) -> None:
    """The fault says so in its window; the run is no pass."""
    edit = (", disk: {path: /unused, size: 2GB}", "")
    outcome, fault, _ = drilled(tmp_path, "full", edit)
    assert fault["injected"] is None
    assert "cache.tiers.disk is not set" in fault["error"]
    assert outcome.last_line["verdict"] != "pass"
