"""Requests that were sent again, and load processes that died (MEASUREMENT C23, C27, H9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results.judging import SECOND, ClassGoal, Judging
from results.record import Outcome, Record
from results.recordfile import RecordWriter, frame
from results.run import Run, RunData
from results.summary import judge, summary_bytes

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]
MS = 1_000_000
JUDGING = Judging("s", 3, {"default": ClassGoal()}, (0, 10 * SECOND), plan_digest="d")


def again(record: Make, id: int, *, due_ms: float) -> tuple[Record, Record]:
    """A request refused after 20 ms and sent again 500 ms later: (first attempt, last attempt)."""
    first = record(id, "http_error", due_ms=due_ms, after_ms=20, http_status=503, n_out=7)
    last = record(id, due_ms=due_ms + 520, ttft_ms=100, e2e_ms=300, attempt=2)
    last.retry_due, last.due = last.due, first.due
    return first, last


def retried(record: Make, run_of: MakeRun) -> RunData:
    """100 requests, ten of them sent twice."""
    once = [record(i, due_ms=90 * i, ttft_ms=100, e2e_ms=300) for i in range(90)]
    twice = [again(record, 90 + i, due_ms=800 * i) for i in range(10)]
    run = run_of([*once, *(last for _, last in twice)])
    run.attempts = frame([first for first, _ in twice])
    return run


def test_the_user_waits_from_the_first_due_time(record: Make, run_of: MakeRun) -> None:
    """One request, several attempts: the schedule clock starts once, the send clock with the last attempt;
    a backoff is no lag of the client."""
    summary = judge(retried(record, run_of))
    block = summary["classes"]["default"]
    assert (block["planned"], block["retried"], block["tokens"]["wasted"]) == (100, 10, 70)
    assert block["metrics"]["ttft"]["max"] == pytest.approx(0.1)
    assert block["metrics"]["ttft_sched"]["max"] == pytest.approx(0.62)
    assert block["metrics"]["client_lag"]["max"] == block["metrics"]["send_lag"]["max"] == 0
    assert summary["client"]["verdict"] == "valid"
    assert block["outcomes"] == {"completed": 100}
    assert "10 requests were sent again" in next(
        f["text"] for f in summary["findings"] if f["code"] == "retried"
    )


def test_littles_law_counts_every_attempt(record: Make, run_of: MakeRun) -> None:
    """The driver's counter went up for each attempt; so do the lives that it is compared with."""
    run = retried(record, run_of)
    lived = 90 * 0.3 + 10 * (0.02 + 0.3)
    run.signals["littles"] = {"integral": lived}
    summary = judge(run)
    assert summary["little"]["request_ns"] == pytest.approx(lived * 1e9)
    assert summary["client"]["rows"]["H11"]["value"] == pytest.approx(0, abs=1e-9)
    run.signals["littles"] = {"integral": lived * 1.01}
    assert judge(run)["client"]["rows"]["H11"]["state"] == "degraded"


@pytest.mark.parametrize(("counted", "hidden", "state"), [(110, 0, "valid"), (113, 3, "invalid")])
def test_retries_that_the_client_does_not_know_of_are_found(
    counted: int, hidden: int, state: str, record: Make, run_of: MakeRun
) -> None:
    """Requests of the server minus attempts of the client: its own retries are none."""
    run = retried(record, run_of)
    run.judging = replace(run.judging, own_engine=True)
    run.signals["gateway_requests"] = counted
    summary = judge(run)
    assert summary["client"]["hidden_retries"] == hidden
    assert summary["client"]["rows"]["H10"]["state"] == state
    assert ("hidden_retries" in [f["code"] for f in summary["findings"]]) == bool(hidden)


def test_attempts_have_a_file_of_their_own(tmp_path: Path, record: Make) -> None:
    """records.parquet has one row per request, attempts.parquet every attempt before; what is read back
    judges the same."""
    with Run.create(tmp_path / "run", JUDGING, "headrace: 1\n") as run:
        first, last = again(record, 0, due_ms=0)
        run.records.append(last)
        with RecordWriter(run.path / "attempts-0.arrow") as attempts:
            attempts.append(first)
        data = run.finish()
    assert list(pd.read_parquet(run.path / "records.parquet")["attempt"]) == [2]
    assert list(pd.read_parquet(run.path / "attempts.parquet")["attempt"]) == [1]
    assert not list(run.path.glob("*.arrow"))
    assert data.attempts is not None
    assert summary_bytes(judge(Run.load(run.path))) == summary_bytes(judge(data))


def test_a_killed_run_keeps_its_attempts(tmp_path: Path, record: Make) -> None:
    """What was flushed of both files is judged, also without an end."""
    run = Run.create(tmp_path / "run", JUDGING, "headrace: 1\n")
    first, last = again(record, 0, due_ms=0)
    run.records.append(last)
    run.records.flush()
    attempts = RecordWriter(run.path / "attempts-0.arrow")
    attempts.append(first)
    attempts.flush()
    data = Run.load(run.path)
    assert data.incomplete is not None
    assert judge(data)["classes"]["default"]["retried"] == 1
    attempts.close()
    run.close()


def one_of_eight_died(tmp_path: Path, record: Make, **signals: Any) -> RunData:
    """Eight load processes with 25 requests each; the third dies after its ninth record."""
    plan = pd.DataFrame({"id": range(200), "slice": [i % 8 for i in range(200)]})
    run = Run.create(tmp_path / "run", JUDGING, "headrace: 1\n", plan)
    run.records.close()
    for slice in range(8):
        file = run.path / f"records-{slice}.arrow"
        own = [i for i in range(200) if i % 8 == slice]
        with RecordWriter(file) as writer:
            for id in own[:9] if slice == 2 else own:
                writer.append(record(id, due_ms=40 * id, ttft_ms=100, e2e_ms=300))
        if slice == 2:
            file.write_bytes(file.read_bytes()[:-8])  # as a kill leaves it: without its end
    with RecordWriter(run.path / "records-left-open.arrow") as rest:
        for id in [i for i in range(200) if i % 8 == 2][9:]:
            rest.append(Record(id, "default", "window", Outcome.UNKNOWN, due=40 * id * MS))
    (run.path / "records.arrow").unlink()
    return run.finish(signals=signals, load_error="load process 2 died (exit code -9)")


def test_a_run_that_lost_a_load_process_is_invalid_and_not_smaller(tmp_path: Path, record: Make) -> None:
    """Its closed records count, the rest of its slice is `unknown`: planned, misses, never left out."""
    data = one_of_eight_died(tmp_path, record)
    summary = judge(data, replace(data.judging, gates=("attainment >= 50%", "unknown == 16", "failed == 0")))
    block = summary["classes"]["default"]
    assert block["outcomes"] == {"completed": 184, "unknown": 16}
    assert block["planned"] == 200
    assert block["attainment"] == block["attainment_strict"] == 184 / 200
    assert block["completed_share"] == 184 / 200
    rows = summary["client"]["rows"]
    assert (summary["client"]["verdict"], rows["H9"]["value"], rows["H9"]["state"]) == (
        "invalid",
        16,
        "invalid",
    )
    assert rows["H7"]["state"] == "invalid"  # 16 of 200 were not seen to be sent
    assert (summary["verdict"], summary["exit"]) == ("inconclusive", 4)
    assert [g["verdict"] for g in summary["gates"]] == ["INCONCLUSIVE", "PASS", "PASS"]
    assert "load process 2 died" in next(f["text"] for f in summary["findings"] if f["code"] == "incomplete")


def test_what_a_dead_process_did_not_say_is_said(tmp_path: Path, record: Make) -> None:
    """Its signals are missing with that reason, not taken for zero."""
    dead = {"process": 2, "reason": "it died (exit code -9)"}
    rows = judge(one_of_eight_died(tmp_path, record, lost=None, processes=[dead]))["client"]["rows"]
    assert rows["H8"] == {
        "value": None,
        "limit": 0.0,
        "degraded_limit": 0.0,
        "state": "invalid",
        "reason": "load process 2: it died (exit code -9)",
    }


def test_records_that_nobody_planned_are_counted_too(record: Make, run_of: MakeRun) -> None:
    """H9: planned and not recorded, recorded and not planned, recorded twice."""
    run = run_of([record(i) for i in (0, 1, 1, 7)])
    run.plan = pd.DataFrame({"id": [0, 1, 2]})
    assert judge(run)["client"]["rows"]["H9"]["value"] == 3
