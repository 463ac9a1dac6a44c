"""The verdict on the client, of whole runs: cases C-18 and C-19, and what is like them (MEASUREMENT 8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.judging import ClassGoal, HealthLimits
from results.record import Record
from results.run import RunData
from results.signals import RULES, Signals
from results.summary import judge
from results.validity import health

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]
MS = 1_000_000
CASES = Path(__file__).parents[1] / "cases" / "loadgen"


def shots(case: str, kind: str) -> list[Any]:
    """A case's shots that need no sockets."""
    whole = json.loads((CASES / f"{case}.json").read_text())
    return [
        pytest.param(one["inputs"], one["expect"], id=one["id"])
        for one in (whole, *whole["variants"])
        if one.get("kind", whole["kind"]) == kind and "signals" in one["inputs"]
    ]


def run_with(signals: dict[str, Any], record: Make, run_of: MakeRun) -> RunData:
    """A run of 200 requests that shows these signals, with a gate on a latency and one on a count."""
    n, missing = 200, round((1 - signals["offered_over_asked"]) * 200)
    ttft, lag = signals["ttft_p50_ms"], signals["client_lag_p99_ms"]
    records = [record(i, due_ms=40 * i, lag_ms=lag, ttft_ms=ttft, e2e_ms=ttft + 100) for i in range(n)]
    for one in records:
        assert one.start is not None
        one.conn, one.stamp = one.start + round(signals["pool_wait_p99_ms"] * MS), signals["stamps"]
    records[:missing] = [record(i, "not_sent", due_ms=40 * i) for i in range(missing)]
    run = run_of(records, gates=("ttft.p50 < 100s", "dropped == 0"))
    run.plan = pd.DataFrame({"id": range(n + signals["unaccounted_records"])})
    run.signals = {
        "loop_lag_p99_ns": signals["loop_lag_p99_ms"] * MS,
        "gc_pause_max_ns": signals["gc_pause_max_ms"] * MS,
        "cpu_ratio": signals["cpu_busiest"],
        "steal_ratio": signals["cpu_steal"],
        "lost": signals["client_dropped"],
    }
    return run


@pytest.mark.parametrize(("inputs", "expect"), shots("C-18", "client_health"))
def test_client_health_case(
    inputs: dict[str, Any], expect: dict[str, Any], record: Make, run_of: MakeRun
) -> None:
    """A run with these signals has the case's limit, verdict and reasons; its gates are decided or not."""
    summary = judge(run_with(inputs["signals"], record, run_of))
    client = summary["client"]
    latency, count = (gate["verdict"] for gate in summary["gates"])
    found = {
        "verdict": client["verdict"],
        "limit_A_ms": client["limit_a"] * 1000,
        "latency_gate": "INCONCLUSIVE" if latency == "INCONCLUSIVE" else "decided",
        "count_gate": "INCONCLUSIVE" if count == "INCONCLUSIVE" else "decided",
        "exit_code": summary["exit"],
        "reasons": [r for r, row in client["rows"].items() if row["state"] == client["verdict"] != "valid"],
    }
    assert expect.keys() <= found.keys()
    for name, value in expect.items():
        assert found[name] == (pytest.approx(value, abs=0.001) if name == "limit_A_ms" else value), name


def test_waits_for_a_hidden_connection_limit_are_seen(record: Make, run_of: MakeRun) -> None:
    """C-19, without sockets: 250 at once on 100 connections wait in three rounds, and the run is refused;
    without a limit nothing waits."""
    whole = json.loads((CASES / "C-19.json").read_text())
    free, limited = whole, next(v for v in whole["variants"] if v["id"] == "C-19/limit-100")
    for shot in (free, limited):
        inputs, expect = shot["inputs"], shot["expect"]
        limit, service = inputs["client_limit"] or inputs["simultaneous"], inputs["service_ms"]
        waits = [i // limit * service for i in range(inputs["simultaneous"])]
        records = [record(i, ttft_ms=w + service, e2e_ms=w + service) for i, w in enumerate(waits)]
        for one, wait in zip(records, waits, strict=True):
            one.conn = wait * MS
        summary = judge(run_of(records))
        metrics = summary["classes"]["default"]["metrics"]
        for name in ("min", "p50", "max"):
            assert metrics["e2e"][name] * 1000 == pytest.approx(expect["latency_ms"][name])
        for name, value in expect.get("pool_wait_ms", {}).items():
            assert metrics["pool_wait"][name] * 1000 == pytest.approx(value)
        if "pool_wait_p99_ms" in expect:
            assert metrics["pool_wait"]["p99"] * 1000 == expect["pool_wait_p99_ms"]
        assert summary["client"]["verdict"] == expect.get("health", "valid")
        assert summary["client"]["rows"]["H3"]["state"] == expect.get("health", "valid")


def test_the_clients_timeouts_are_printed(record: Make, run_of: MakeRun) -> None:
    """C-19/slow-first-token: every limit of the client stands in the summary."""
    whole = json.loads((CASES / "C-19.json").read_text())
    shot = next(v for v in whole["variants"] if v["id"] == "C-19/slow-first-token")
    run = run_of([record(0, ttft_ms=6000, e2e_ms=6000)], timeouts=shot["inputs"]["timeouts_s"])
    summary = judge(run)
    assert list(summary["timeouts"]) == sorted(shot["expect"]["timeouts_printed"])
    assert summary["classes"]["default"]["outcomes"] == {shot["expect"]["outcome"]: 1}
    assert summary["classes"]["default"]["metrics"]["ttft"]["max"] * 1000 == shot["expect"]["ttft_ms"]


BEYOND = {
    # rule: (still valid, no more valid, no more degraded; None = never invalid)
    "H1": (0.005, 0.0051, 0.0101),
    "H2": (0.005, 0.0051, 0.0101),
    "H3": (0.001, 0.0011, 0.0051),
    "H4": (0.005, 0.0051, None),
    "H5": (0.8, 0.81, None),
    "H6": (0.05, 0.051, None),
    "H7": (-0.005, -0.0051, 0.021),
    "H8": (0.0, None, 1.0),
    "H9": (0.0, None, 1.0),
    "H10": (0.0, None, -1.0),
    "H11": (0.001, 0.0011, 0.021),
    "H12": (-0.005, 0.0051, -0.0101),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_row_turns_at_its_limits(rule: str) -> None:
    """Up to the first limit valid, up to the second degraded, beyond invalid; either sign counts."""
    states = {}
    for state, value in zip(("valid", "degraded", "invalid"), BEYOND[rule], strict=True):
        if value is not None:
            found = health(Signals(values={rule: value}), HealthLimits())
            states[state] = found.rows[rule]["state"], found.verdict
    assert all(seen == (state, state) for state, seen in states.items()), states
    row = health(Signals(values={rule: 1e9}), HealthLimits()).rows[rule]
    assert row["state"] == ("degraded" if BEYOND[rule][2] is None else "invalid")
    assert ("degraded_limit" in row) == (BEYOND[rule][2] is not None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_no_measurement(value: float) -> None:
    """A signal of NaN is not within any limit, and does not get into the JSON."""
    found = health(Signals(values={"H5": value, "H1": value}), HealthLimits())
    assert found.verdict == "invalid"
    assert found.rows["H5"]["value"] is None
    assert found.rows["H5"]["reason"]
    assert found.error_bound is None


def test_limits_can_be_set_and_are_printed(record: Make, run_of: MakeRun) -> None:
    """A stricter floor turns a run that is valid by default; the summary holds the limits that judged it."""
    run = run_of([record(i, due_ms=40 * i, lag_ms=2, ttft_ms=10, e2e_ms=20) for i in range(100)])
    assert judge(run)["client"]["verdict"] == "valid"
    strict = replace(run.judging, limits=HealthLimits(latency_floor=0.001))
    client = judge(run, strict)["client"]
    assert (client["verdict"], client["limits"]["latency_floor"]) == ("degraded", 0.001)
    assert (client["rows"]["H1"]["limit"], client["rows"]["H1"]["degraded_limit"]) == (0.001, 0.002)
    with pytest.raises(ValueError, match="offered_degraded"):
        HealthLimits(offered=0.1)
    with pytest.raises(ValueError, match="latency_floor"):
        HealthLimits(latency_floor=0)


@pytest.mark.parametrize(("n", "limit"), [(29, 0.005), (30, 0.02)])
def test_a_class_counts_for_the_limit_from_30_on(n: int, limit: float, record: Make, run_of: MakeRun) -> None:
    """5 % of the smallest class median, of classes with enough requests; a small fast class does not
    tighten it, and one of whole answers has no TTFT."""
    slow = [record(i, class_="slow", ttft_ms=400, e2e_ms=500) for i in range(n)]
    fast = [record(100 + i, class_="fast", ttft_ms=100, e2e_ms=500) for i in range(29)]
    whole = [record(200 + i, class_="whole", ttft_ms=1, e2e_ms=500, streamed=False) for i in range(40)]
    classes = dict.fromkeys(("slow", "fast", "whole"), ClassGoal())
    assert judge(run_of(slow + fast + whole, classes=classes))["client"]["limit_a"] == pytest.approx(limit)


def test_a_lag_does_not_hide_behind_a_small_number(record: Make, run_of: MakeRun) -> None:
    """Under 100 requests the largest lag counts, from there on the p99."""
    for n, state in ((99, "invalid"), (200, "valid")):
        records = [record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(n)]
        records[7] = record(7, due_ms=280, lag_ms=400, ttft_ms=10, e2e_ms=20)
        assert judge(run_of(records))["client"]["rows"]["H1"]["state"] == state


KERNEL = {"stamp": "kernel", "skew_ns": 3_000}


@pytest.mark.parametrize(
    ("last", "stamp", "share", "verdict"),
    [
        (KERNEL, "kernel", 1.0, "degraded"),
        ({"stamp": "mixed", "skew_ns": 3_000}, "mixed", 0.99, "invalid"),
        ({}, "mixed", 0.99, "invalid"),
        ({"headers": None, "outcome": "reset"}, "kernel", 1.0, "degraded"),
    ],
)
def test_kernel_stamps_excuse_a_late_loop_only_if_all_are(
    last: dict[str, Any], stamp: str, share: float, verdict: str, record: Make, run_of: MakeRun
) -> None:
    """One read with a user stamp is enough for a loop's lag to have moved a latency; a request of which
    nothing was read has no stamp to doubt."""
    records = [record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20, **KERNEL) for i in range(99)]
    records.append(record(99, due_ms=3960, **({"ttft_ms": 10, "e2e_ms": 20} | last)))
    run = run_of(records)
    run.signals["loop_lag_p99_ns"] = 40 * MS
    client = judge(run)["client"]
    assert (client["stamp"], client["kernel_share"], client["verdict"]) == (stamp, share, verdict)
    assert client["skew_us"] == 3.0
    assert client["error_bound_us"] == pytest.approx(40_003)


def test_of_a_live_run_without_loop_lag_the_error_has_no_bound(record: Make, run_of: MakeRun) -> None:
    """What was not measured is not 0: a degraded client then decides no latency gate. In virtual time there
    is no loop."""
    run = run_of([record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(100)])
    run.signals["cpu_ratio"] = 0.9
    client = judge(run, replace(run.judging, gates=("ttft.p50 < 10s",)))
    assert client["client"]["error_bound_us"] is None
    assert "H2" in client["client"]["error_bound_us_reason"]
    assert client["gates"][0]["verdict"] == "INCONCLUSIVE"
    assert judge(run, replace(run.judging, virtual=True))["client"]["error_bound_us"] == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"lag_ms": -0.001},
        {"lag_ms": 5, "cap_wait": 6 * MS},
        {"closed": 0},
        {"conn": 99 * MS},
        {"first_token": 99 * MS, "stamp": "kernel", "skew_ns": 900_000},
    ],
)
def test_impossible_times_are_no_lag_of_zero(change: dict[str, Any], record: Make, run_of: MakeRun) -> None:
    """A send before its due time, or an answer before the send: the clock is broken, nothing is clipped."""
    records = [record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(100)]
    records.append(record(100, due_ms=100, **({"ttft_ms": 10, "e2e_ms": 20} | change)))
    summary = judge(run_of(records, gates=("ttft.p50 < 10s", "dropped == 0")))
    client = summary["client"]
    assert (client["verdict"], client["clock_faults"], summary["exit"]) == ("invalid", 1, 4)
    assert client["error_bound_us"] is None
    assert "clock_fault" in [f["code"] for f in summary["findings"]]
    assert [gate["verdict"] for gate in summary["gates"]] == ["INCONCLUSIVE", "PASS"]


def test_kernel_stamps_may_be_off_by_their_skew(record: Make, run_of: MakeRun) -> None:
    """An answer that seems to come up to the clocks' error before its send is no fault; where the kernel
    stamped only a part of the reads, the others are late by an unknown time."""
    early = {"due_ms": 100, "ttft_ms": 10, "e2e_ms": 20, "first_token": 100 * MS - 4_000, "headers": None}
    for more in ({"stamp": "kernel", "skew_ns": 5_000}, {"stamp": "mixed"}):
        assert judge(run_of([record(0, **early, **more)]))["client"]["clock_faults"] == 0


def test_each_row_says_which_process_was_worst(record: Make, run_of: MakeRun) -> None:
    """With several load processes, lags are traced by the plan's slices, the rest by what each said."""
    records = [record(i, due_ms=40 * i, lag_ms=i % 4, ttft_ms=10, e2e_ms=20) for i in range(200)]
    run = run_of(records)
    run.plan = pd.DataFrame({"id": range(200), "slice": np.arange(200) % 4})
    run.signals = {"cpu_ratio": 0.9, "worst": {"cpu_ratio": 2}, "processes": [{"process": 2}]}
    summary = judge(run)
    rows = summary["client"]["rows"]
    assert (rows["H1"]["process"], rows["H5"]["process"]) == (3, 2)
    assert "load process 2" in next(f["text"] for f in summary["findings"] if f["code"] == "client_H5")
    run.plan["slice"] = 0
    assert "process" not in judge(run)["client"]["rows"]["H1"]


def test_a_load_process_that_never_said_what_it_lost_is_not_believed(record: Make, run_of: MakeRun) -> None:
    """It ended with an error after its last record: nothing is missing, and still nobody measured it."""
    run = run_of([record(i, due_ms=40 * i, ttft_ms=10, e2e_ms=20) for i in range(100)])
    run.plan = pd.DataFrame({"id": range(100)})
    run.signals = {"lost": None, "processes": [{"process": 0, "lost": 0}, {"process": 1, "reason": "EMFILE"}]}
    client = judge(run)["client"]
    assert client["verdict"] == "invalid"
    assert (client["rows"]["H8"]["value"], client["rows"]["H8"]["reason"]) == (None, "load process 1: EMFILE")
    assert client["rows"]["H9"]["value"] == 0


HERE, APART = {"co_located": True}, {"placement": [{"host": "a", "niceness": 0}]}


@pytest.mark.parametrize(
    ("late", "manifest", "found_ms"),
    [
        ("gateway", HERE, 1),
        ("gateway", HERE | APART, 61),
        ("gateway", {}, 61),
        ("client's send", HERE, 61),
        ("client's read", HERE, 61),
    ],
)
def test_what_a_busy_gateway_has_not_read_is_not_the_clients(
    late: str, manifest: dict[str, Any], found_ms: float, record: Make, run_of: MakeRun
) -> None:
    """H12: of 37 requests one has a TTFT 61 ms longer than the gateway's: it lay in its socket for 60
    of them, or the client was late; where they may stamp other clocks, nobody can say which."""
    t0, held = 7_000_000 * MS, 60 * MS
    records = [record(i, due_ms=100 * i, ttft_ms=400, e2e_ms=900, request_id=f"r{i}") for i in range(37)]
    truth = pd.DataFrame({"id": [one.request_id for one in records], "attempt": 1})
    truth["received"] = [t0 + (one.sent or 0) for one in records]
    truth["first_write"] = [t0 + (one.first_token or 0) - MS for one in records]
    if late == "client's read":
        truth.loc[11, "first_write"] -= held
    else:
        truth.loc[11, "received"] += held
    if late == "client's send":
        records[11].sent = (records[11].sent or 0) + held
    run = run_of(records, own_engine=True)
    run.truth, run.manifest = truth, {"t0_ns": t0, **manifest}
    summary = judge(run)
    row = summary["client"]["rows"]["H12"]
    assert row["value"] * 1e3 == pytest.approx(found_ms)
    assert row["state"] == ("valid" if found_ms == 1 else "invalid")
    said = "".join(one["text"] for one in summary["findings"] if one["code"] == "co_located")
    assert ("lay unread at the gateway for 60 ms" in said) == (found_ms == 1)
