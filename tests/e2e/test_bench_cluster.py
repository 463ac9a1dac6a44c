"""`bench run` whose load processes Ray places, in a runtime that is made for the run."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pandas as pd
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: headrace[cluster]"),
]

ON_RAY = ["--set", "client={processes: 2, launcher: ray, ray_address: local}", "--out", "run"]


def test_a_run_from_start_to_end(bench):
    """Every planned request has one record, the manifest tells of places and clocks, and no process of Ray
    and no file of it stays behind."""
    code = bench.run("run", "smoke", *ON_RAY)
    assert code in (0, 1, 4), bench.stderr.read_text()
    assert bench.nothing_left()
    records = pd.read_parquet(bench.run_dir / "records.parquet")
    assert sorted(records["id"]) == sorted(pd.read_parquet(bench.run_dir / "plan.parquet")["id"])
    manifest = json.loads((bench.run_dir / "manifest.json").read_text())
    (clock,) = manifest["clock"].values()
    assert clock == {"offset_ns": 0, "drift_ns": 0, "bound_ns": 0}
    assert len(manifest["placement"]) == 2
    assert not list(bench.run_dir.glob("*-1.arrow"))


def test_a_killed_bench_takes_ray_with_it(bench, until):
    """kill -9 of bench: the load, the actors and the runtime end by themselves."""
    bench.start("run", "smoke", *ON_RAY)
    until(lambda: bench.said("in flight"))
    assert bench.started("raylet")
    assert bench.process is not None
    bench.process.kill()
    bench.wait()
    until(lambda: not bench.processes(), 60)
