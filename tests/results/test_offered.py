"""How the load came, as measured (MEASUREMENT C18, C19; case C-14/burst)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results.record import Record
from results.run import RunData
from results.summary import judge

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]
CASES = Path(__file__).parents[1] / "cases" / "loadgen"
MS = 1_000_000


def test_a_burst_says_how_far_apart_it_was_sent(record: Make, run_of: MakeRun) -> None:
    """C-14/burst: requests due together, from the first to the last send; and the same for a burst that a
    fault added, whatever else was sent then."""
    whole = json.loads((CASES / "C-14.json").read_text())
    shot = next(v for v in whole["variants"] if v["id"] == "C-14/burst")
    sends, expect = shot["inputs"]["starts_ms"], shot["expect"]
    records = [record(i, due_ms=1000, lag_ms=t - 1000, ttft_ms=5, e2e_ms=9) for i, t in enumerate(sends)]
    records.append(record(9, due_ms=1001, lag_ms=60, ttft_ms=5, e2e_ms=9))
    run = run_of(records)
    run.plan = pd.DataFrame({"id": [0, 1, 2, 3, 9], "fault": ["rush"] * 4 + [None]})
    run.faults = [{"id": "rush", "type": "burst", "injected": 1000 * MS, "proven": 1000 * MS, "healed": 1}]
    summary = judge(run)
    offered = summary["classes"]["default"]["offered"]
    assert offered["bursts"] == 1
    assert offered["n"] == expect["burst_n"] + 1
    assert offered["burst_skew_s"] * 1000 == pytest.approx(expect["burst_skew_ms"])
    assert summary["faults"][0]["first_to_last_s"] * 1000 == pytest.approx(expect["burst_skew_ms"])


def test_the_law_of_the_sends_is_reported_by_class(record: Make, run_of: MakeRun) -> None:
    """A constant class has no spread, a Poisson one a gap CV and a dispersion of 1; sent, not due, counts."""
    rng = np.random.default_rng(4)
    even = [record(i, class_="even", due_ms=10 * i, ttft_ms=1, e2e_ms=2) for i in range(1000)]
    times = np.sort(rng.uniform(0, 10_000, 1000))
    poisson = [record(2000 + i, class_="poisson", due_ms=0, lag_ms=float(t)) for i, t in enumerate(times)]
    classes = judge(run_of(even + poisson))["classes"]
    assert classes["even"]["offered"]["gap_cv"] == pytest.approx(0, abs=1e-9)
    assert classes["even"]["offered"]["dispersion_100ms"] == pytest.approx(0, abs=1e-9)
    assert classes["poisson"]["offered"]["gap_cv"] == pytest.approx(1, abs=0.1)
    assert classes["poisson"]["offered"]["dispersion_100ms"] == pytest.approx(1, abs=0.3)
    assert classes["poisson"]["offered"]["bursts"] == 1


@pytest.mark.parametrize(
    ("outcome", "length"), [(None, 10), ("not_sent", 10), ("completed", 10), ("reset", 0)]
)
def test_without_sends_there_is_no_law(
    outcome: str | None, length: float, record: Make, run_of: MakeRun
) -> None:
    """Null with reasons: nothing planned, nothing sent, one sent, or a window of no length."""
    offered = judge(run_of([] if outcome is None else [record(0, outcome)], length))["all"]["offered"]
    for name in ("gap_cv", "gap_lag1", "burst_skew_s", "first_to_last_s"):
        assert offered[name] is None, name
        assert offered[f"{name}_reason"], name
    assert (offered["rate"] is None) == (length == 0)
