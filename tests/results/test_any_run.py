"""Runs of any shape: empty, tiny, all failed, half stamped. There is always a valid summary and a report."""

from __future__ import annotations

import io
import json
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from results.judging import SECOND, ClassGoal, Judging
from results.record import Outcome, Record
from results.report import terminal
from results.report.html import render
from results.run import RunData, frame
from results.summary import judge, summary_bytes

GATES = (
    "attainment >= 90%",
    "goodput > 1/s",
    "chat.ttft_sched.p50 < 1s",
    "itl.p99 < 50ms",
    "failed == 0",
    "failed during crash == 0",
    "completed_rate during crash > 1/s",
    "e2e.p50 during steady < 1s",
    "recovery.seconds < 5s",
    "kv.leaked_blocks == 0",
    "hit_token_weighted > 10%",
    "chat{turn=later}.ttft.p90 < 1s",
)
TIMES = st.none() | st.integers(0, 12 * SECOND)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """One record; each stamp is there or not, but they come in order."""
    one = Record(0, draw(st.sampled_from(["chat", "batch"])), "window", draw(st.sampled_from(list(Outcome))))
    one.http_status = draw(st.sampled_from([None, 200, 400, 429, 503, 504]))
    one.streamed = draw(st.booleans())
    stamps = sorted(draw(st.lists(st.integers(0, 12 * SECOND), min_size=7, max_size=7)))
    one.due = stamps[0] if draw(st.booleans()) else None
    if one.due is not None and one.outcome is not Outcome.NOT_SENT:
        one.start, one.conn, one.sent = stamps[1], stamps[1], stamps[2]
        one.closed = stamps[6]
        if one.outcome is Outcome.COMPLETED or draw(st.booleans()):
            one.first_token, one.last_token = (stamps[3], stamps[4]) if one.streamed else (None, stamps[5])
            one.terminal = stamps[5]
        if one.first_token is not None:
            width = (stamps[4] - stamps[3]) // 1000
            one.event_us = [0, *draw(st.sampled_from([[], [width], [0, width], [width // 2, width]]))]
    one.n_out = draw(st.none() | st.integers(0, 5))
    one.prompt_total = draw(st.none() | st.integers(0, 50))
    one.cache_read = draw(st.none() | st.integers(0, one.prompt_total or 0))
    one.turn = draw(st.integers(0, 1))
    return one


FAULTS = st.fixed_dictionaries(
    {"id": st.just("crash"), "type": st.sampled_from(["kill_worker", "burst", "cancel"])}
    | {"target": st.just("worker 1"), "error": st.none() | st.just("not back"), "proof": st.just({})}
    | dict.fromkeys(("planned", "injected", "proven", "healed"), TIMES)
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(records(), max_size=12),
    st.lists(FAULTS, max_size=1),
    st.booleans(),
    st.sampled_from([0, 1, SECOND, 10 * SECOND]),
)
def test_any_run_has_a_summary_and_a_report(
    given_records: list[Record], faults: list[dict[str, Any]], interrupted: bool, length: int
) -> None:
    """Valid JSON without NaN, a verdict with a reason, gates that are open for a reason, and both reports."""
    for i, one in enumerate(given_records):
        one.id, one.request_id = i, f"r{i}"
    goals = {"chat": ClassGoal(0, {"ttft_sched": 1.0, "itl": 0.1}), "batch": ClassGoal(1, {"e2e": 2.0})}
    judging = Judging("any", 1, goals, (SECOND, SECOND + length), GATES, timeouts={"total": 9.0})
    plan = pd.DataFrame({"id": [one.id for one in given_records]})
    run = RunData(judging, frame(given_records), plan, faults, interrupted=interrupted)
    summary = judge(run)
    again = json.loads(summary_bytes(summary))
    assert (again["verdict"] == "pass") == (again["reason"] is None)
    for gate in again["gates"]:
        assert (gate["verdict"] == "INCONCLUSIVE") == (gate["reason"] is not None)
        assert gate["value"] is not None or gate["verdict"] == "INCONCLUSIVE"
    assert sum(again["all"]["outcomes"].values()) == again["all"]["planned"]
    for block in again["classes"].values():
        for table in block["metrics"].values():
            for name, (low, high) in table.get("ci95", {}).items():
                assert low is None or low <= table[name]
                assert high is None or table[name] <= high
    assert "</html>" in render(run, summary)
    console = Console(file=io.StringIO(), width=80)
    terminal.show(summary, console)
