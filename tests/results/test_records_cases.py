"""The shared cases of kinds records, queue and tokens (tests/cases/loadgen)."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.judging import ClassGoal
from results.record import Record
from results.run import RunData
from results.slices import length_bucket
from results.stats.quantiles import Values
from results.summary import judge, summary_bytes

MakeRun = Callable[..., RunData]

CASES = Path(__file__).parents[1] / "cases" / "loadgen"
SLO = {"e2e_ms": "e2e", "ttft_ms": "ttft"}


def cases(kind: str) -> list[Any]:
    found = []
    for path in sorted(CASES.glob("C-*.json")):
        case = json.loads(path.read_text())
        for one in (case, *case.get("variants", [])):
            integration = one["title"].startswith("integration")
            if one.get("kind", case["kind"]) == kind and "inputs" in one and not integration:
                found.append(pytest.param(one["inputs"], one["expect"], id=one["id"]))
    return found


def _records(inputs: dict[str, Any], record: Callable[..., Record]) -> list[Record]:
    records: list[Record] = []
    spacing = inputs["window_s"] * 1000 / 40_000
    for group in inputs["records"]:
        for _ in range(group["count"]):
            known = {k: group[k] for k in ("ttft_ms", "e2e_ms", "finish", "n_out") if k in group}
            after = group.get("after_ms", group.get("in_flight_ms"))
            made = record(
                len(records), group["outcome"], after_ms=after, due_ms=len(records) * spacing, **known
            )
            made.http_status = group.get("status")
            made.error = group.get("error_code", group.get("because"))
            records.append(made)
    return records


def _judged(
    inputs: dict[str, Any], record: Callable[..., Record], run_of: Callable[..., RunData]
) -> dict[str, Any]:
    slo = {SLO[name]: ms / 1000 for name, ms in inputs["slo"].items()}
    finish = inputs.get("checks", {}).get("finish")
    goal = ClassGoal(slo=slo, finish=tuple(finish) if finish else None)
    run = run_of(
        _records(inputs, record),
        inputs["window_s"],
        classes={"default": goal},
        gates=tuple(inputs.get("gates", ())),
    )
    if inputs.get("client") == "invalid":
        run.signals["lost"] = 3
    return judge(run)


def _same(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return abs(found - expected) <= 0.001


@pytest.mark.parametrize(("inputs", "expect"), cases("records"))
def test_records_case(
    inputs: dict[str, Any],
    expect: dict[str, Any],
    record: Callable[..., Record],
    run_of: Callable[..., RunData],
) -> None:
    """Outcomes, shares, rates, quantiles and exit codes of a handful of records are the case's."""
    summary = _judged(inputs, record, run_of)
    block = summary["classes"]["default"]
    found = {
        "scheduled": block["planned"],
        "completed": block["outcomes"].get("completed", 0),
        "incorrect": block["incorrect"],
        "attainment": block["attainment"],
        "attainment_strict": block["attainment_strict"],
        "attainment_for_gates": block["attainment_for_gates"],
        "goodput_per_s": block["rates"]["good"],
        "goodput_tokens_per_s": block["rates"]["good_tokens"],
        "completed_rate_per_s": block["rates"]["completed"],
        "exit_code": summary["exit"],
    }
    for name in found.keys() & expect.keys():
        assert _same(found[name], expect[name]), name
    if "outcomes" in expect:
        assert block["outcomes"] == expect["outcomes"]
        assert sum(block["outcomes"].values()) == block["planned"]
    for group, n in expect.get("groups", {}).items():
        assert block["groups"][group] == n
    if "verdict" in expect:
        assert summary["verdict"] == expect["verdict"]
    _compare(expect.get("ttft", {}), block["metrics"]["ttft"])
    _compare(expect.get("e2e_completed", {}), block["metrics"]["e2e"])
    _compare(expect.get("e2e_all_attempts", {}), block["all_attempts"]["e2e"])
    for word in (b"NaN", b"Infinity"):
        assert (word in summary_bytes(summary)) is expect.get("json_has_nan_or_inf", False)
    blocks = {"outcomes", "groups", "verdict", "ttft", "e2e_completed", "e2e_all_attempts"}
    assert expect.keys() <= found.keys() | blocks | {"json_has_nan_or_inf"}, "a key that nothing checks"


def _compare(expected: dict[str, Any], found: dict[str, Any]) -> None:
    for name, value in expected.items():
        if name.endswith("_reason") or name == "n":
            assert found[name] == value
        else:
            ours = found[name.removesuffix("_ms")]
            assert _same(None if ours is None else ours * 1000, value), name
            assert ours is not None or found[f"{name}_reason"]


def _compare_linear(expected: dict[str, Any], values: Values, found: dict[str, Any]) -> None:
    """All samples count, also where C31 withholds a quantile of so few from the table."""
    for name, value in expected.items():
        by_hand = {"mean": values.mean(), "max": values.max()}.get(name)
        q = float(name[1:]) / 100 if by_hand is None else None
        assert _same(float(np.quantile(values, q) if q else by_hand), value), name
        assert found[name] is None or _same(found[name] * 1000, value), name
        assert found[name] is not None or found[f"{name}_reason"] == "n(1-q)<1"


def _fifo(inputs: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(due, start, end) in ms of one FIFO server that takes no new work while frozen."""
    arrivals, server = inputs["arrivals"], inputs["server"]
    frozen = server.get("frozen_ms", [math.inf, math.inf])
    cap = inputs["client_cap"] or math.inf
    ends: list[float] = []
    result = []
    due, k = arrivals["first_ms"], 0
    closed = inputs.get("mode") == "closed_pacing"
    while k < arrivals["n"] and not (closed and due >= arrivals["n"] * arrivals["step_ms"]):
        start = due if k < cap else max(due, ends[k - int(cap)])
        begin = max(start, ends[-1] if ends else 0.0)
        end = _serve(begin, server["service_ms"], frozen)
        ends.append(end)
        result.append((due, start, end))
        due, k = (max(start + arrivals["step_ms"], end) if closed else due + arrivals["step_ms"]), k + 1
    return result


def _serve(begin: float, service: float, frozen: list[float]) -> float:
    """Work stands still while the server is frozen."""
    if begin >= frozen[1] or begin + service <= frozen[0]:
        return begin + service
    done = max(0.0, frozen[0] - begin)
    return frozen[1] + service - done


@pytest.mark.parametrize(("inputs", "expect"), cases("queue"))
def test_queue_case(
    inputs: dict[str, Any],
    expect: dict[str, Any],
    record: Callable[..., Record],
    run_of: Callable[..., RunData],
) -> None:
    """Latency from the due time does not depend on how many requests the client lets out at once. What a
    declared cap holds back is late, and not for the client's fault."""
    served = _fifo(inputs)
    records = [
        record(i, due_ms=due, lag_ms=start - due, e2e_ms=end - start, cap_wait=round((start - due) * 1e6))
        for i, (due, start, end) in enumerate(served)
    ]
    a, b = inputs.get("window_ms", [0, inputs["arrivals"]["n"] * inputs["arrivals"]["step_ms"]])
    goal = ClassGoal(open_loop=inputs.get("mode") != "closed_pacing", cap=inputs["client_cap"])
    run = run_of(records, classes={"default": goal})
    summary = judge(run, replace(run.judging, window=(round(a * 1e6), round(b * 1e6))))
    block = summary["classes"]["default"]
    latency = np.array([(end - start, end - due) for due, start, end in served])
    by_start, by_due = latency[:, 0], latency[:, 1]
    _compare_linear(expect.get("latency_from_start_ms", {}), by_start, block["metrics"]["e2e"])
    _compare_linear(expect.get("latency_from_sched_ms", {}), by_due, block["metrics"]["e2e_sched"])
    found = {
        "n": block["planned"],
        "rate_per_s": block["rates"]["completed"],
        "achieved_rate_per_s": block["rates"]["offered"],
        "asked_rate_per_s": block["rates"]["asked"],
        "offered_rate_per_s": block["rates"]["offered"],
        "completed_rate_per_s": block["rates"]["completed"],
        "completed_share": block["completed_share"],
        "lateness_max_ms": block["metrics"]["send_lag"]["max"] * 1000,
        "late_sends_flag": "late_sends" in [f["code"] for f in summary["findings"]],
    }
    for name in found.keys() & expect.keys():
        assert _same(found[name], expect[name]), name
    assert block["loop"] == expect.get("label", "open loop")
    assert summary["client"]["rows"]["H1"]["value"] == 0
    latencies = {"latency_from_start_ms", "latency_from_sched_ms", "label"}
    assert expect.keys() <= found.keys() | latencies, "a key that nothing checks"


def test_a_closed_loop_has_no_schedule_clock(record: Callable[..., Record], run_of: MakeRun) -> None:
    """Its due times follow its answers: *_sched is null with that reason, alone and beside an open class."""
    records = [record(i, class_="ab"[i % 2], due_ms=i, ttft_ms=10, e2e_ms=20, lag_ms=5) for i in range(40)]
    goals = {"a": ClassGoal(open_loop=False), "b": ClassGoal()}
    summary = judge(run_of(records, classes=goals, gates=("a.ttft_sched.p50 < 1s", "ttft_sched.count == 20")))
    closed = summary["classes"]["a"]
    assert (closed["headline"], closed["metrics"]["ttft"]["n"]) == ("send", 20)
    assert closed["metrics"]["ttft_sched"]["p50"] is None
    assert "closed loop" in closed["metrics"]["ttft_sched"]["p50_reason"]
    assert closed["all_attempts"]["e2e_sched"]["n"] == 0
    assert summary["all"]["metrics"]["ttft_sched"]["n"] == 20
    assert [gate["verdict"] for gate in summary["gates"]] == ["INCONCLUSIVE", "PASS"]


def test_buckets_use_the_served_length() -> None:
    """C-21: a prompt asked as 1,024 and served as 1,027 tokens is in the bucket of 1,027."""
    case = next(p for p in cases("tokens") if p.id == "C-21/served-length")
    inputs, expect = case.values
    edges = tuple(inputs["bucket_edges"])
    low, high = expect["bucket"]
    assert length_bucket(inputs["usage"]["prompt_tokens"], edges) == f"{low}-{high}"
    assert length_bucket(inputs["isl_asked"], edges) != f"{low}-{high}"
