"""Sessions against an idle target: session_stretch, and the turns that a slow server kept away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.alone import IdleCost, by_company, by_cost
from results.metrics import METRICS
from results.record import Record
from results.run import RunData, frame
from results.sessions import ideal_times, session_rows, sessions_block
from results.summary import judge

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]
MS = 1_000_000


def turn(record: Make, id: int, due: float, e2e: float, parent: int | None = None, **given: Any) -> Record:
    """A completed request of session 0, times in ms."""
    known = {"turn": 0 if parent is None else id, "session": 0, "parent": parent}
    return record(id, due_ms=due, ttft_ms=e2e, e2e_ms=e2e, **(known | given))


def with_alone(records: list[Record], alone: dict[int, float], **columns: Any) -> pd.DataFrame:
    data = frame(records)
    return data.assign(alone=data["id"].map(alone).astype("float64"), **columns)


def test_stretch_is_actual_over_alone_and_think_times(record: Make) -> None:
    """Two turns of 300 ms that take 100 ms alone, 400 ms of thinking between: 1,000 against 600 ms."""
    records = [turn(record, 0, 0, 300), turn(record, 1, 700, 300, parent=0)]
    (one,) = session_rows(with_alone(records, {0: 0.1, 1: 0.1})).itertuples()
    assert one.actual == pytest.approx(1.0)
    assert one.ideal == pytest.approx(0.6)
    assert one.stretch == pytest.approx(1 / 0.6)
    samples = METRICS["session_stretch"].samples
    assert samples is not None
    found = samples(with_alone(records, {0: 0.1, 1: 0.1}))
    assert (found.values.tolist(), found.owners.tolist()) == ([one.stretch], [0])


def test_on_an_idle_target_the_stretch_is_one(record: Make) -> None:
    """Whatever the think times, the lateness of the first request counts, for it is due before it is sent."""
    records = [turn(record, 0, 0, 100), turn(record, 1, 5_100, 200, parent=0)]
    (one,) = session_rows(with_alone(records, {0: 0.1, 1: 0.2})).itertuples()
    assert one.stretch == pytest.approx(1.0)


def test_of_branches_the_longest_path_counts(record: Make) -> None:
    """Branches run beside each other: their times do not add up."""
    records = [
        turn(record, 0, 0, 100),
        turn(record, 1, 100, 100, parent=0, turn=1),
        turn(record, 2, 100, 400, parent=0, turn=1, branch=1),
    ]
    (one,) = session_rows(with_alone(records, {0: 0.1, 1: 0.1, 2: 0.2})).itertuples()
    assert one.ideal == pytest.approx(0.3)
    assert one.actual == pytest.approx(0.5)


def test_a_session_waits_for_its_sub_agents_also_when_idle(record: Make) -> None:
    """The sub-agent is a session of its own; its time is part of the path of the one that sent it."""
    records = [
        turn(record, 0, 0, 100),
        turn(record, 1, 100, 100, parent=0, session=1, turn=0),
        turn(record, 2, 250, 100, parent=1, session=1, turn=1),
        turn(record, 3, 350, 200, parent=2, session=0, turn=1),
    ]
    rows = session_rows(with_alone(records, dict.fromkeys(range(4), 0.1)))
    assert rows.loc[0, "ideal"] == pytest.approx(0.1 + 0.1 + 0.05 + 0.1 + 0.1)
    assert rows.loc[0, "actual"] == pytest.approx(0.55)
    assert rows.loc[1, "ideal"] == pytest.approx(0.25)
    assert rows.loc[1, "stretch"] == pytest.approx(1.0)


def test_the_sessions_of_a_closed_loop_begin_anew(record: Make) -> None:
    """A first turn that waited for the session before counts from its own due time."""
    records = [
        turn(record, 0, 0, 100),
        turn(record, 1, 100, 100, parent=0),
        turn(record, 2, 900, 100, parent=1, session=1, turn=0),
        turn(record, 3, 1_000, 300, parent=2, session=1, turn=1),
    ]
    rows = session_rows(with_alone(records, dict.fromkeys(range(4), 0.1)))
    assert rows["stretch"].tolist() == pytest.approx([1.0, 2.0])


def test_a_broken_or_unknown_session_has_no_stretch(record: Make) -> None:
    """A failed turn, or a request of which nobody knows its time alone: undefined, not 0 or 1."""
    broken = [turn(record, 0, 0, 100), record(1, "reset", due_ms=100, turn=1, session=0, parent=0)]
    rows = session_rows(with_alone(broken, {0: 0.1, 1: 0.1}))
    assert np.isnan(rows.loc[0, "stretch"])
    unknown = [turn(record, 0, 0, 100), turn(record, 1, 100, 100, parent=0)]
    assert np.isnan(session_rows(with_alone(unknown, {0: 0.1})).loc[0, "stretch"])
    assert np.isnan(session_rows(frame(unknown)).loc[0, "stretch"])


def test_requests_without_later_turns_are_no_sessions(record: Make) -> None:
    """Their slowdown is told already; the summary says why there is no stretch."""
    records = [turn(record, i, 100 * i, 100, session=i, turn=0, parent=None) for i in range(3)]
    data = with_alone(records, dict.fromkeys(range(3), 0.1))
    assert len(session_rows(data)) == 0
    assert sessions_block(data, np.ones(3, dtype=bool), (0, 10**10)) is None


def test_a_session_cut_off_by_the_end_of_load_is_whole(record: Make) -> None:
    """What never came due is left out of both times; the block counts such sessions."""
    records = [turn(record, 0, 0, 200), record(1, "not_sent", turn=1, session=0, parent=0)]
    records[1].due = None
    data = with_alone(records, {0: 0.1, 1: 0.1}, after_ns=[np.nan, 1e9])
    (one,) = session_rows(data).itertuples()
    assert one.stretch == pytest.approx(2.0)
    block = sessions_block(data, np.ones(2, dtype=bool), (0, 10**10))
    assert block is not None
    assert {name: block[name] for name in ("planned", "whole", "broken", "cut_off")} == {
        "planned": 1,
        "whole": 1,
        "broken": 0,
        "cut_off": 1,
    }


def test_turns_due_are_held_against_those_due_at_alone_times(record: Make) -> None:
    """C20: of three later turns that an idle server would have had due in the window, one came due."""
    records = [
        turn(record, 0, 0, 2_000),
        turn(record, 1, 3_000, 2_000, parent=0, turn=1),
        record(2, "not_sent", turn=2, session=0, parent=1),
        record(3, "not_sent", turn=3, session=0, parent=2),
    ]
    records[2].due = records[3].due = None
    data = with_alone(records, dict.fromkeys(range(4), 0.1), after_ns=[np.nan, 1e9, 1e9, 1e9])
    block = sessions_block(data, np.ones(4, dtype=bool), (0, 5 * 10**9))
    assert block is not None
    assert block["later_turns"] == {"due": 1, "due_at_alone": 3, "share": pytest.approx(1 / 3)}
    begin, _, _ = ideal_times(data)
    assert begin.tolist() == pytest.approx([0.0, 1.1, 2.2, 3.3])
    blind = sessions_block(data.drop(columns="alone"), np.ones(4, dtype=bool), (0, 5 * 10**9))
    assert blind is not None
    assert blind["later_turns"]["due_at_alone"] is None
    assert "nobody knows" in blind["later_turns"]["reason"]


def test_gates_and_the_summary_know_the_stretch(record: Make, run_of: MakeRun) -> None:
    """A gate on its p90 is decided from whole sessions of the window."""
    records = []
    for k in range(20):
        first = turn(record, 2 * k, 100 * k, 100, session=k, turn=0)
        records += [first, turn(record, 2 * k + 1, 100 * k + 200, 300, parent=2 * k, session=k, turn=1)]
    data = replace(
        run_of(records, gates=("session_stretch.p90 < 1.7", "session_stretch.p50 < 1.1")),
        alone=dict.fromkeys(range(40), 0.1),
    )
    summary = judge(data)
    table = summary["classes"]["default"]["metrics"]["session_stretch"]
    assert (table["n"], table["p50"]) == (20, pytest.approx(0.5 / 0.3))
    assert [gate["verdict"] for gate in summary["gates"]] == ["PASS", "FAIL"]
    assert summary["classes"]["default"]["sessions"]["whole"] == 20


COST = IdleCost(a=0.01, b=0.001, c=0.004, d=1e-6, e=1e-6, g0=0.001, g1=1e-5, chunk=256)


def test_the_idle_cost_is_that_of_its_steps() -> None:
    """Chunk by chunk and token by token, the sum of ENGINE E40."""
    prompt, cached, out = 1_000, 320, 7
    start, seconds = cached, COST.g0 + COST.g1 * prompt
    while start < prompt:
        chunk = min(COST.chunk, prompt - start)
        seconds += COST.a + COST.b * chunk + COST.e * chunk * (start + chunk / 2)
        start += chunk
    for k in range(out - 1):
        seconds += COST.a + COST.c + COST.d * (prompt + k + 1)
    assert COST.seconds(prompt, cached, out) == pytest.approx(seconds)
    assert COST.seconds(100, 100, 1) == COST.seconds(100, 99, 1), "the last token is computed always"


def test_requests_that_were_not_sent_count_as_asked_for(record: Make) -> None:
    """Sizes as served where they are known; hits of an unsent turn are its parent's prompt and answer."""
    sent = record(0, ttft_ms=10, e2e_ms=20, n_in=110, n_in_asked=100, n_out=5, n_out_asked=8, cache_read=64)
    unsent = record(1, "not_sent", parent=0, turn=1, n_in_asked=150, n_out_asked=8)
    found = by_cost([sent, unsent], COST)
    assert found == {0: COST.seconds(110, 64, 5), 1: COST.seconds(150, 115, 8)}


def test_without_a_cost_model_the_quietest_requests_tell(record: Make) -> None:
    """The median e2e of those with the least company, by class and lengths; None where they are few."""
    quiet = [record(i, due_ms=1_000 * i, ttft_ms=50, e2e_ms=100 + i, n_in=100, n_out=10) for i in range(9)]
    busy = [record(9 + i, due_ms=20_000, ttft_ms=50, e2e_ms=900, n_in=100, n_out=10) for i in range(9)]
    rare = [record(18, due_ms=40_000, ttft_ms=50, e2e_ms=70, n_in=9_000, n_out=10)]
    found = by_company([*quiet, *busy, *rare])
    assert set(found) == set(range(18))
    assert list(found.values()) == pytest.approx([0.104] * 18)
    assert by_company([record(0, "reset")]) == {}


@pytest.mark.parametrize(("why", "hidden"), [("session_ended: request 0 http_error", 4), ("load_ended", 0)])
def test_what_would_have_opened_after_the_load_hides_behind_no_failure(
    record: Make, run_of: MakeRun, why: str, hidden: int
) -> None:
    """A closed loop's user whose last request failed: the sessions that the load's end keeps away are no
    turns that the failure kept away."""
    failed = record(0, "http_error", http_status=500)
    kept = [record(k, "not_sent", parent=k - 1, due=None, error=why) for k in range(1, 5)]
    good = [record(k, due_ms=k, ttft_ms=5, e2e_ms=9) for k in range(5, 100)]
    block = judge(run_of([failed, *kept, *good]))["classes"]["default"]
    assert block["attainment_for_gates"] == pytest.approx(95 / (96 + hidden))
