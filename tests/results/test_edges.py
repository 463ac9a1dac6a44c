"""At the edges: nothing, everything of one kind, ties, and numbers just beside their limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from results.exits import last_line
from results.judging import SECOND, ClassGoal
from results.record import Record
from results.run import RunData
from results.stats.distribution import all_attempts
from results.summary import judge, summary_bytes

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]


def block_of(run: RunData) -> dict[str, Any]:
    block: dict[str, Any] = judge(run)["classes"]["default"]
    return block


@pytest.mark.parametrize(
    "outcome", ["cancelled_by_plan", "censored_by_run_end", "not_sent", "dropped", "unknown", "expired"]
)
def test_a_run_of_one_outcome_is_judged(outcome: str, record: Make, run_of: MakeRun) -> None:
    """Nothing to divide by is null with a reason; it is no pass, and valid JSON."""
    extra = {"start": None, "closed": None} if outcome == "dropped" else {}
    run = run_of([record(i, outcome, due_ms=i, after_ms=5, **extra) for i in range(20)])
    summary = judge(run, replace(run.judging, gates=("attainment > 50%", "ttft.p50 < 1s", "e2e.max < 1s")))
    block = summary["classes"]["default"]
    json.loads(summary_bytes(summary), parse_constant=lambda name: pytest.fail(name))
    assert block["outcomes"] == {outcome: 20}
    assert summary["exit"] in (1, 3, 4)
    assert all(gate["verdict"] != "PASS" for gate in summary["gates"])
    if outcome in ("cancelled_by_plan", "censored_by_run_end", "not_sent"):
        assert block["attainment"] is None
        assert block["attainment_reason"]
        assert summary["exit"] == (1 if outcome == "censored_by_run_end" else 4)  # gates take it strictly
    else:
        assert block["attainment"] == 0
    assert (block["attainment_strict"] is None) == (outcome == "cancelled_by_plan")


def test_a_dropped_request_is_a_miss_that_was_asked(record: Make, run_of: MakeRun) -> None:
    """C16: what a cap does not let out counts in asked and in attainment, is never sent, and is said."""
    records = [record(i, due_ms=40 * i, ttft_ms=5, e2e_ms=9) for i in range(95)]
    records += [record(95 + i, "dropped", due_ms=3800, start=None, closed=None) for i in range(5)]
    summary = judge(run_of(records, classes={"default": ClassGoal(cap=4)}))
    block = summary["classes"]["default"]
    assert (block["rates"]["asked"], block["rates"]["offered"]) == (10.0, 9.5)
    assert (block["attainment"], block["groups"]["failed"]) == (0.95, 5)
    assert summary["client"]["rows"]["H7"]["value"] == 0  # the client did as it was told
    assert "5 requests" in next(f["text"] for f in summary["findings"] if f["code"] == "dropped")


def test_what_a_cap_held_until_the_end_is_not_the_clients_to_send(record: Make, run_of: MakeRun) -> None:
    """H7: it waited in a declared queue; what else was not sent is the client's."""
    sent = [record(i, due_ms=40 * i, ttft_ms=5, e2e_ms=9) for i in range(75)]
    late = [record(75 + i, "not_sent", due_ms=3800, start=None, closed=None, error="cap") for i in range(25)]
    classes = {"default": ClassGoal(cap=4)}
    assert judge(run_of(sent + late, classes=classes))["client"]["rows"]["H7"]["value"] == 0
    for one in late[:15]:
        one.error = "drain_limit"
    assert judge(run_of(sent + late, classes=classes))["client"]["rows"]["H7"]["value"] == pytest.approx(
        -1 / 6
    )


@pytest.mark.parametrize("length", [0, 1])
def test_a_window_of_almost_no_length_divides_by_nothing(length: int, record: Make, run_of: MakeRun) -> None:
    """Rates of a window without length are null, of one ns finite; steady parts and faults do not mind."""
    run = run_of([record(0, ttft_ms=1, e2e_ms=2)])
    run.faults = [{"id": "x", "type": "kill_worker", "injected": 0, "proven": 0, "healed": 1}]
    summary = judge(run, replace(run.judging, window=(0, length), gates=("goodput during steady > 1/s",)))
    rates = summary["classes"]["default"]["rates"]
    assert (rates["asked"] is None) == (rates["completed"] is None) == (length == 0)
    assert summary["gates"][0]["verdict"] == "INCONCLUSIVE"
    json.loads(summary_bytes(summary), parse_constant=lambda name: pytest.fail(name))


def test_ties_have_intervals_of_no_width(record: Make, run_of: MakeRun) -> None:
    """Equal samples: every quantile is that sample, and so is its interval; no spread is no correlation."""
    table = block_of(run_of([record(i, due_ms=i, ttft_ms=100, e2e_ms=200) for i in range(1000)]))
    ttft = table["metrics"]["ttft"]
    assert {ttft[q] for q in ("min", "p50", "p90", "p99", "p99_9", "max")} == {0.1}
    assert ttft["std"] == pytest.approx(0, abs=1e-12)
    assert ttft["ci95"]["p90"] == [0.1, 0.1]


QUANTILES = ("p50", "p90", "p95", "p99", "p99_9")
GIVEN = {1: 0, 2: 1, 9: 1, 10: 2, 19: 2, 20: 3, 99: 3, 100: 4, 299: 4, 300: 4, 999: 4, 1000: 5}
"""Samples -> how many of the quantiles there are."""


@pytest.mark.parametrize("n", GIVEN)
def test_a_quantile_comes_with_its_first_sample_beyond(n: int, record: Make, run_of: MakeRun) -> None:
    """One below the n that a quantile needs it is null, with the reason; a p99 of few is marked."""
    run = run_of([record(i, due_ms=i, ttft_ms=100 + i, e2e_ms=9999) for i in range(n)])
    ttft = block_of(run)["metrics"]["ttft"]
    assert tuple(q for q in QUANTILES if ttft[q] is not None) == QUANTILES[: GIVEN[n]]
    assert all(ttft[f"{q}_reason"] == "n(1-q)<1" for q in QUANTILES[GIVEN[n] :])
    assert ("p99_mark" in ttft) == (100 <= n < 300)


@pytest.mark.parametrize(("failed", "p90"), [(99, 5.0), (100, None), (101, None)])
def test_a_quantile_among_failures_is_beyond_all_timeouts(failed: int, p90: float | None) -> None:
    """C24: 1,000 attempts; with a tenth of them failed, p90 lies between an answer and infinity."""
    table = all_attempts(np.full(1000, 5.0), np.arange(1000) < failed, 30.0)
    assert table["p90"] == p90
    assert table.get("p90_lower_bound") == (30.0 if p90 is None else None)
    assert table["p50"] == 5.0


def test_without_any_timeout_the_bound_is_not_known(record: Make, run_of: MakeRun) -> None:
    """An infinite quantile of a run without timeouts has no number to be beyond."""
    run = run_of([record(i, "http_error", after_ms=5, http_status=500) for i in range(20)])
    table = block_of(run)["all_attempts"]["e2e"]
    assert (table["p50"], table["p50_reason"], table["p50_lower_bound"]) == (None, "a failed request", None)
    run.judging = replace(run.judging, timeouts={"connect": 5.0, "total": 60.0})
    assert block_of(run)["all_attempts"]["e2e"]["p50_lower_bound"] == 60.0


@pytest.mark.parametrize(("censored", "strict"), [(1, False), (2, True)])
def test_one_percent_exactly_is_not_over_one_percent(
    censored: int, strict: bool, record: Make, run_of: MakeRun
) -> None:
    """C26: of 100 planned requests one may be cut off by the end before gates count it as a miss."""
    records = [record(i, due_ms=i, ttft_ms=1, e2e_ms=2) for i in range(100 - censored)]
    records += [record(200 + i, "censored_by_run_end", due_ms=99, after_ms=9000) for i in range(censored)]
    block = block_of(run_of(records))
    assert block["attainment"] == 1.0
    assert block["attainment_for_gates"] == (1 - censored / 100 if strict else 1.0)


def test_requests_on_the_edges_of_the_window(record: Make, run_of: MakeRun) -> None:
    """[a, b): due at a is in it, due at b is cool-down; a terminal event at b is no longer of its rate."""
    records = [
        record(i, due_ms=t, ttft_ms=0, e2e_ms=0) for i, t in enumerate((999.999, 1000, 1999.999, 2000))
    ]
    run = run_of(records)
    summary = judge(run, replace(run.judging, window=(SECOND, 2 * SECOND)))
    block = summary["classes"]["default"]
    assert (block["planned"], block["rates"]["asked"], block["rates"]["completed"]) == (2, 2.0, 2.0)


def test_classes_do_not_mix(record: Make, run_of: MakeRun) -> None:
    """A class without a goal, one without requests, and one all of whose requests failed stand beside the
    others; outcomes of all add up, and no class borrows another's samples."""
    records = [record(i, class_="a", due_ms=i, ttft_ms=10, e2e_ms=20) for i in range(30)]
    records += [record(100 + i, "reset", class_="b", due_ms=i, after_ms=3) for i in range(10)]
    records += [record(200 + i, class_="undeclared", due_ms=i, ttft_ms=500, e2e_ms=900) for i in range(5)]
    goals = {"a": ClassGoal(slo={"ttft": 0.05}), "b": ClassGoal(), "silent": ClassGoal()}
    summary = judge(run_of(records, classes=goals))
    classes = summary["classes"]
    assert set(classes) == {"a", "b", "silent", "undeclared"}
    assert [classes[n]["attainment"] for n in ("a", "b", "silent", "undeclared")] == [1.0, 0.0, None, 1.0]
    assert (classes["a"]["metrics"]["ttft"]["max"], classes["b"]["metrics"]["ttft"]["n"]) == (0.01, 0)
    assert sum(block["planned"] for block in classes.values()) == summary["all"]["planned"] == 45
    assert summary["all"]["outcomes"] == {"completed": 35, "reset": 10}


def test_the_clients_verdict_closes_every_command(record: Make, run_of: MakeRun) -> None:
    """JOINTS 7: the last line names it, as the first key of the summary does."""
    run = run_of([record(0, ttft_ms=1, e2e_ms=2)])
    run.signals["cpu_ratio"] = 0.9
    summary = judge(run)
    assert json.loads(last_line(summary, "runs/x"))["client"] == "degraded"
    assert next(iter(summary)) == "client"
    assert next(iter(summary["client"])) == "verdict"
