"""The judge: summary, gates, exit codes (JOINTS 6, MEASUREMENT 9, FLEET C13)."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from results.exits import last_line
from results.judging import SECOND, ClassGoal, Users
from results.record import Record
from results.run import RunData
from results.summary import judge, summary_bytes

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]


def many(record: Make, n: int, **given: Any) -> list[Record]:
    """n completed requests, TTFT 100 ms, end to end 500 ms, evenly over 10 s."""
    known = {"ttft_ms": 100.0, "e2e_ms": 500.0} | given
    return [record(i, due_ms=9000.0 * i / n, **known) for i in range(n)]


def gate_of(run: RunData, text: str, **judging: Any) -> dict[str, Any]:
    summary = judge(run, replace(run.judging, gates=(text,), **judging))
    gate: dict[str, Any] = summary["gates"][0]
    return gate


def test_same_run_same_bytes(run_with_everything: RunData, its_summary: dict[str, Any]) -> None:
    """Judging twice gives the same bytes, valid JSON without NaN, nothing of the manifest, and the verdict
    on the client on top."""
    run_with_everything.manifest["host"] = "secret-host"
    first, second = summary_bytes(its_summary), summary_bytes(judge(run_with_everything))
    assert first == second
    assert b"secret-host" not in first
    parsed = json.loads(first, parse_constant=lambda name: pytest.fail(f"{name} in the summary"))
    assert list(parsed)[:2] == ["client", "verdict"]
    assert next(iter(parsed["client"])) == "verdict"


def test_summary_has_every_part(its_summary: dict[str, Any]) -> None:
    """All keys of JOINTS 6 are there, and outcomes sum to the planned requests."""
    summary = its_summary
    keys = "schema scenario plan_digest seed virtual client window demand classes slices cache attribution"
    keys += " engine faults invariants gates findings verdict exit"
    assert set(keys.split()) <= set(summary)
    for block in summary["classes"].values():
        assert sum(block["outcomes"].values()) == block["planned"] == sum(block["groups"].values())
    assert summary["cache"]["contract"]["state"] == "held"
    assert summary["engine"]["kv"]["all"]["max"] <= 1
    assert {"during": "crash"} in [s["by"] for s in summary["slices"]]


def nulls_without_reason(value: Any, path: str = "") -> list[str]:
    """Paths of nulls that nothing beside them explains."""
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in nulls_without_reason(v, f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    said = any(k == "reason" or k.endswith(("_reason", "_mark")) for k in value)
    found = [f"{path}.{k}" for k, v in value.items() if v is None and not said]
    return found + [p for k, v in value.items() for p in nulls_without_reason(v, f"{path}.{k}")]


def test_every_null_has_a_reason(record: Make, run_of: MakeRun) -> None:
    """In the statistics of a run with three failures only, each null comes with its reason."""
    run = run_of([record(i, "http_error", after_ms=4, http_status=500) for i in range(3)])
    summary = judge(run)
    for part in ("classes", "cache", "invariants", "client"):
        unexplained = [p for p in nulls_without_reason(summary[part]) if "all_attempts" not in p]
        assert unexplained == []


GATES = {
    "ttft.p50 < 200ms": "PASS",
    "ttft.p50 < 50ms": "FAIL",
    "ttft.mean == 100ms": "PASS",
    "ttft.p99.9 < 1s": "INCONCLUSIVE",
    "ttft.count == 200": "PASS",
    "completed == 200": "PASS",
    "dropped > 0": "FAIL",
    "http_error.share <= 0%": "PASS",
    "attainment >= 99%": "PASS",
    "asked_rate > 19/s": "PASS",
    "goodput > 30/s": "FAIL",
    "completed_share == 1": "PASS",
    "hit_token_weighted > 1%": "INCONCLUSIVE",
    "hit_theoretical > 1%": "INCONCLUSIVE",
    "invariants.failed == 0": "INCONCLUSIVE",
    "kv.leaked_blocks == 0": "INCONCLUSIVE",
    "recovery.seconds < 5s": "INCONCLUSIVE",
    "ttft.p50 during crash < 1s": "INCONCLUSIVE",
    "ttft.p50 during steady < 1s": "PASS",
    "ttft.mean regression < 5%": "INCONCLUSIVE",
    "default{turn=first}.ttft.p50 < 1s": "PASS",
    "default{turn=later}.ttft.p50 < 1s": "INCONCLUSIVE",
    "queue_wait.p50 < 1s": "INCONCLUSIVE",
}


def test_gate_verdicts(record: Make, run_of: MakeRun) -> None:
    """A gate passes, fails, or says why it cannot be decided."""
    gates = judge(run_of(many(record, 200), gates=tuple(GATES)))["gates"]
    assert {gate["text"]: gate["verdict"] for gate in gates} == GATES
    for gate in gates:
        assert (gate["reason"] is not None) == (gate["verdict"] == "INCONCLUSIVE")


def test_between_pass_and_fail_the_interval_decides(record: Make, run_of: MakeRun) -> None:
    """A bound inside the interval makes a pass marginal and a violation inconclusive."""
    ttft = np.random.default_rng(5).permutation(np.linspace(50, 150, 200))
    run = run_of([record(i, due_ms=40 * i, ttft_ms=float(t), e2e_ms=200) for i, t in enumerate(ttft)])
    near_pass, near_fail = gate_of(run, "ttft.p50 < 101ms"), gate_of(run, "ttft.p50 < 99ms")
    assert (near_pass["verdict"], near_pass["marginal"]) == ("PASS", True)
    assert near_fail["verdict"] == "INCONCLUSIVE"
    assert near_fail["margin"] < 0
    assert gate_of(run, "ttft.p50 < 101ms", strict=True)["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "ttft.p50 < 60ms")["verdict"] == "FAIL"


def test_client_verdict_limits_what_gates_decide(record: Make, run_of: MakeRun) -> None:
    """Degraded: latency gates near their bound are open. Invalid: all but counts are."""
    run = run_of(many(record, 200))
    run.signals["loop_lag_p99_ns"] = 7_000_000
    summary = judge(run)
    assert summary["client"]["verdict"] == "degraded"
    assert gate_of(run, "ttft.p50 < 104ms")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "ttft.p50 < 150ms")["verdict"] == "PASS"
    run.signals["loop_lag_p99_ns"] = 70_000_000
    assert gate_of(run, "ttft.p50 < 150ms")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "goodput > 1/s")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "attainment > 1%")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "dropped == 0")["verdict"] == "PASS"


def test_a_cache_that_was_not_cold_decides_nothing(record: Make, run_of: MakeRun) -> None:
    """Hits before anything was computed break the contract."""
    run = run_of(many(record, 200, ttft_ms=40.0, prompt_total=100, cache_read=64), cache="cold")
    summary = judge(run, replace(run.judging, gates=("ttft.p50 < 1s", "dropped == 0")))
    assert summary["cache"]["contract"]["state"] == "violated"
    assert [g["verdict"] for g in summary["gates"]] == ["INCONCLUSIVE", "PASS"]


def test_a_request_that_waited_may_have_read_what_came_meanwhile(record: Make, run_of: MakeRun) -> None:
    """Sent before the first answer and scheduled after it, a hit is no breach of a cold cache."""
    records = [record(i, due_ms=i, ttft_ms=100 + 50 * i, e2e_ms=500, prompt_total=100) for i in range(4)]
    for one in records:
        one.request_id, one.cache_read = f"r{one.id}", 64 if one.id else 0
    run = run_of(records, cache="cold")
    assert judge(run)["cache"]["contract"]["state"] == "unverified"
    run.truth = pd.DataFrame(
        {
            "id": [f"r{i}" for i in range(4)],
            "worker": 0,
            "incarnation": "w0-1",
            "received": [5.0, 6.0, 7.0, 8.0],
            "first_scheduled": [10.0, 11.0, 12.0, 13.0],
        }
    )
    assert judge(run)["cache"]["contract"]["state"] == "held"
    run.records.loc[0, "cache_read"] = 16
    assert judge(run)["cache"]["contract"]["state"] == "violated"
    run.truth.loc[3, "first_scheduled"] = np.nan  # it died with a worker: who knows what it left there
    assert judge(run)["cache"]["contract"]["state"] == "unverified"


def test_vacuous_slo_decides_nothing(record: Make, run_of: MakeRun) -> None:
    """Where answers of several tokens have no token times, attainment is open; single tokens are not."""
    goal = {"default": ClassGoal(slo={"itl": 0.1})}
    run = run_of(many(record, 100, n_out=50, event_tokens=None), classes=goal)
    assert gate_of(run, "attainment > 1%")["verdict"] == "INCONCLUSIVE"
    single = run_of(many(record, 100, e2e_ms=100.0, n_out=1), classes=goal)
    assert gate_of(single, "attainment > 1%")["verdict"] == "PASS"


def faulty(record: Make, run_of: MakeRun, **fault: Any) -> RunData:
    """Slow requests from 4 s to 6 s, while the fault is there."""
    records = [
        record(i, due_ms=50 * i, ttft_ms=1000.0 if 80 <= i < 120 else 100.0, e2e_ms=1100.0)
        for i in range(200)
    ]
    run = run_of(records)
    times = {"injected": 4 * SECOND, "proven": 4 * SECOND, "healed": 5 * SECOND, "recovered": 6 * SECOND}
    run.faults.append({"id": "crash", "type": "kill_worker", "target": "worker 1"} | times | fault)
    return run


def test_during_a_fault_and_steady(record: Make, run_of: MakeRun) -> None:
    """Requests whose life meets the fault's span are judged apart from the others."""
    run = faulty(record, run_of)
    during = gate_of(run, "ttft.p90 during crash < 500ms")
    steady = gate_of(run, "ttft.max during steady < 500ms")
    assert during["verdict"] == "FAIL"
    assert steady["verdict"] == "PASS"
    assert during["n"] + steady["n"] == 200
    assert gate_of(run, "recovery.seconds during crash < 3s")["value"] == pytest.approx(2.0)
    assert gate_of(run, "asked_rate during crash > 19/s")["value"] == pytest.approx(20.0)


def test_a_fault_that_was_not_seen_decides_nothing(record: Make, run_of: MakeRun) -> None:
    """Unproven or never injected, its gates are open and a finding says so."""
    for fault in ({"proven": None}, {"injected": None, "proven": None, "healed": None, "recovered": None}):
        run = faulty(record, run_of, **fault)
        assert gate_of(run, "ttft.p90 during crash < 10s")["verdict"] == "INCONCLUSIVE"
        assert any(f["code"].startswith("fault_not") for f in judge(run)["findings"])


def test_a_fault_that_met_nobody_decides_nothing(record: Make, run_of: MakeRun) -> None:
    """Zero failures among zero requests is no pass (FLEET F60), and neither is a rate beyond the window."""
    run = run_of(many(record, 200))
    times = {"injected": 40 * SECOND, "proven": 40 * SECOND, "healed": 41 * SECOND}
    run.faults.append({"id": "late", "type": "kill_worker", "target": "worker 1"} | times)
    for text in ("failed == 0", "incorrect == 0", "asked_rate >= 0/s", "attainment >= 0%"):
        metric, rest = text.split(" ", 1)
        assert gate_of(run, f"{metric} during late {rest}")["verdict"] == "INCONCLUSIVE", text


def test_rates_during_a_fault_are_over_its_part_of_the_window(record: Make, run_of: MakeRun) -> None:
    """The drain after the window has no load; a span that reaches into it does not thin the rate."""
    run = run_of(many(record, 200))
    times = {"injected": 5 * SECOND, "proven": 5 * SECOND, "healed": 6 * SECOND}
    run.faults.append({"id": "crash", "type": "kill_worker", "target": "worker 1"} | times)
    assert gate_of(run, "asked_rate during crash > 1/s")["value"] == pytest.approx(88 / 5)


def test_a_fault_that_was_not_played_leaves_the_run_open(record: Make, run_of: MakeRun) -> None:
    """What the scenario scripted did not happen, or was not healed: gates that fail still fail, no pass."""
    for fault in ({"injected": None, "proven": None}, {"error": "worker 1 is not back"}):
        run = faulty(record, run_of, **fault)
        passing = judge(run, replace(run.judging, gates=("dropped == 0",)))
        assert (passing["verdict"], passing["exit"]) == ("inconclusive", 4)
        assert "crash" in passing["reason"]
        assert judge(run, replace(run.judging, gates=("completed == 0",)))["exit"] == 1
        assert gate_of(run, "recovery.seconds < 60s")["verdict"] == (
            "PASS" if fault.get("proven", 1) else "INCONCLUSIVE"
        )


def test_counts_of_no_request_decide_nothing(record: Make, run_of: MakeRun) -> None:
    """In a window, class or slice without requests nothing failed, and nothing was shown."""
    run = run_of(many(record, 20), classes={"default": ClassGoal(), "other": ClassGoal()})
    assert gate_of(run, "other.failed == 0")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "default{turn=later}.failed == 0")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "failed == 0")["verdict"] == "PASS"


def test_one_vacuous_class_is_enough(record: Make, run_of: MakeRun) -> None:
    """A large class does not hide another one, over 1 % of whose answers leave an SLO undefined."""
    records = many(record, 995, class_="a") + [
        record(1000 + i, class_="b", ttft_ms=1, e2e_ms=2, event_tokens=None, n_out=9) for i in range(5)
    ]
    goal = ClassGoal(slo={"itl": 1.0})
    run = run_of(records, classes={"a": goal, "b": goal})
    assert gate_of(run, "attainment > 0%")["verdict"] == "INCONCLUSIVE"
    assert gate_of(run, "a.attainment > 0%")["verdict"] == "PASS"


def test_weighted_tpot_counts_spans_of_zero(record: Make, run_of: MakeRun) -> None:
    """An answer whose events came in one read has its tokens in the denominator like any other."""
    slow, burst = record(0, ttft_ms=10, gaps_ms=[100.0] * 4), record(1, ttft_ms=10, gaps_ms=[0.0] * 4)
    weighted = judge(run_of([slow, burst]))["all"]["tokens"]["tpot_token_weighted"]
    assert weighted == pytest.approx(0.4 / 8)


def test_whole_answers_have_tokens_per_second(record: Make, run_of: MakeRun) -> None:
    """Without events, an answer's tokens count at its end: 0 would say that none came."""
    whole = record(0, streamed=False, n_out=40, due_ms=0, e2e_ms=300)
    whole.event_us, whole.first_token, whole.first_visible = [], None, None
    rates = judge(run_of([whole]))["all"]["rates"]
    assert (rates["out_tps"], rates["peak_tps"]) == (4.0, 40.0)


def test_intervals_hold_their_points(record: Make, run_of: MakeRun) -> None:
    """Two requests give no interval at all, and no interval leaves out its own value."""
    two = [record(i, ttft_ms=10, gaps_ms=[100.0 + 30 * i] * 5) for i in range(2)]
    table = judge(run_of(two))["all"]["metrics"]["itl"]
    assert table["ci95"]["p50"] == [None, None]
    assert table["ci95"]["mean"] == [None, None]
    few = [record(i, ttft_ms=10, gaps_ms=[100.0 + 7 * i, 90.0 + i * i]) for i in range(5)]
    for name, (low, high) in (table := judge(run_of(few))["all"]["metrics"]["itl"])["ci95"].items():
        assert low <= table[name] <= high, name


@pytest.mark.parametrize(
    ("gates", "change", "expected"),
    [
        ((), {}, ("pass", 0)),
        (("ttft.p50 < 1s",), {}, ("pass", 0)),
        (("ttft.p50 < 1ms",), {}, ("fail", 1)),
        (("ttft.p99.9 < 1s",), {}, ("inconclusive", 4)),
        (("ttft.p50 < 1ms", "ttft.p99.9 < 1s"), {"interrupted": True}, ("fail", 1)),
        (("ttft.p50 < 1s",), {"interrupted": True}, ("inconclusive", 4)),
        (("attainment > 100%",), {}, ("fail", 1)),
        (("attainment > 100%",), {"interrupted": True}, ("inconclusive", 4)),
        (("offered_rate > 1000/s",), {"incomplete": "killed"}, ("inconclusive", 4)),
        ((), {"signals": {"lost": 1}}, ("inconclusive", 4)),
        (("ttft.p50 < 1ms",), {"target_error": "http://x: refused"}, ("error", 3)),
        ((), {"incomplete": "killed"}, ("inconclusive", 4)),
    ],
)
def test_exit_code(
    gates: tuple[str, ...], change: dict[str, Any], expected: tuple[str, int], record: Make, run_of: MakeRun
) -> None:
    """Codes 3, 1, 4 take precedence in this order."""
    run = run_of(many(record, 100), gates=gates)
    for name, value in change.items():
        setattr(run, name, value)
    summary = judge(run)
    assert (summary["verdict"], summary["exit"]) == expected
    line = json.loads(last_line(summary, "runs/x"))
    assert line == {
        "verdict": expected[0],
        "client": summary["client"]["verdict"],
        "interrupted": bool(change.get("interrupted")),
        "exit": expected[1],
        "run": "runs/x",
    }


def test_inconclusive_can_be_allowed(record: Make, run_of: MakeRun) -> None:
    """--allow-inconclusive turns exit 4 into 0 and leaves the verdict."""
    run = run_of(many(record, 100), gates=("ttft.p99.9 < 1s",), allow_inconclusive=True)
    summary = judge(run)
    assert (summary["verdict"], summary["exit"]) == ("inconclusive", 0)


def test_shedding_does_not_look_like_speed(record: Make, run_of: MakeRun) -> None:
    """FLEET C13: refusing 15 % fast is 85 % good of what was offered, never a better percentile."""
    goal = {"default": ClassGoal(slo={"ttft_sched": 2.0})}
    arm_a = [record(i, due_ms=i, ttft_ms=1000 + 2 * (i + 0.5), e2e_ms=3100) for i in range(1000)]
    arm_b = [
        record(i, "http_error", due_ms=i, after_ms=10, http_status=503)
        if i % 20 < 3
        else record(i, due_ms=i, ttft_ms=500 + i + 0.5, e2e_ms=3100)
        for i in range(1000)
    ]
    timeouts = {"total": 60.0}
    a, b = (judge(run_of(arm, classes=goal, timeouts=timeouts)) for arm in (arm_a, arm_b))
    assert a["classes"]["default"]["attainment"] == 0.5
    block = b["classes"]["default"]
    assert block["attainment"] == 0.85
    assert block["metrics"]["ttft_sched"]["n"] == 850
    assert block["metrics"]["ttft_sched"]["min"] > 0.5
    assert block["all_attempts"]["ttft_sched"]["p99"] is None
    assert block["all_attempts"]["ttft_sched"]["p99_lower_bound"] == 60.0
    assert (block["rates"]["offered"], block["groups"]["rejected"], block["good"]) == (100.0, 150, 850)
    assert any("15.0% of 1000 requests were shed" in f["text"] for f in b["findings"])


def test_requests_cut_by_the_end_are_excluded_not_failed(record: Make, run_of: MakeRun) -> None:
    """Censored requests leave the denominator, and count as misses in the strict share."""
    censored = [record(100 + i, "censored_by_run_end", after_ms=9000) for i in range(10)]
    block = judge(run_of([*many(record, 90), *censored]))["classes"]["default"]
    assert block["attainment"] == 1.0
    assert block["attainment_strict"] == 0.9
    assert block["attainment_for_gates"] == 0.9
    assert block["groups"]["failed"] == 0


def test_phases_are_cut_by_due_time(record: Make, run_of: MakeRun) -> None:
    """A request due before the window is warm-up, whatever the driver called it; rates count any phase."""
    early = record(900, due_ms=-500.0, ttft_ms=100, e2e_ms=900, phase="window")
    block = judge(run_of([early, *many(record, 50)]))["classes"]["default"]
    assert block["planned"] == 50
    assert block["rates"]["completed"] == pytest.approx(5.1)


@pytest.mark.parametrize(
    ("own", "codes"), [(True, {"not_attributed", "scrapes_failed"}), (False, {"not_attributed"})]
)
def test_what_could_not_be_looked_at_is_a_finding(
    record: Make, run_of: MakeRun, own: bool, codes: set[str]
) -> None:
    """Why nothing was attributed, and gaps in the scrapes of our own engine, reach the reader; a foreign
    target without /metrics is no finding."""
    run = run_of(many(record, 40), own_engine=own)
    unseen = {"not_attributed", "scrapes_failed"}
    assert not unseen & {f["code"] for f in judge(run)["findings"]}
    run.manifest |= {
        "observe_error": "OSError: refused",
        "scrape_failures": {"OSError: /metrics: refused": 3},
    }
    found = {f["code"]: f["text"] for f in judge(run)["findings"] if f["code"] in unseen}
    assert set(found) == codes
    assert "OSError: refused" in found["not_attributed"]
    assert not own or found["scrapes_failed"].startswith("3 scrapes")


def test_machines_of_a_cluster_that_may_move_latencies_are_findings(record: Make, run_of: MakeRun) -> None:
    """A clock that may be wrong by more than the floor of latencies, or could not be read at the end, and
    load processes behind others are named; good ones are not."""
    run = run_of(many(record, 40))
    run.manifest["clock"] = {
        host: {"offset_ns": 0, "drift_ns": 0, "bound_ns": bound}
        for host, bound in (("good", 100_000), ("far", 7_000_000), ("mute", None))
    }
    run.manifest["placement"] = [{"host": "good", "niceness": 0}, {"host": "far", "niceness": 15}]
    found = [f for f in judge(run)["findings"] if f["code"] in ("clock_bound", "placement")]
    assert [f["code"] for f in found] == ["clock_bound", "clock_bound", "placement"]
    assert ["far" in f["text"] for f in found] == [True, False, True]
    assert "7.0 ms" in found[0]["text"]
    assert "mute" in found[1]["text"]
    assert not any("good" in f["text"] for f in found)


@pytest.mark.parametrize("late", [None, 0, 7])
def test_requests_that_waited_for_their_body_are_named(
    record: Make, run_of: MakeRun, late: int | None
) -> None:
    """Older runs did not count them, and have no fault by that."""
    run = run_of(many(record, 40))
    run.signals |= {"processes": [{"process": 0, "cpu_ratio": 0.5, "bodies_late": late}]}
    if late is not None:
        run.signals["bodies_late"] = late
    summary = judge(run)
    texts = [f["text"] for f in summary["findings"] if f["code"] == "bodies_late"]
    assert texts == (
        ["7 requests waited for their body, which the client had not made in time"] if late else []
    )
    assert summary["client"]["processes"][0]["bodies_late"] == late


def test_users_who_had_nothing_left_to_ask_leave_the_run_open(record: Make, run_of: MakeRun) -> None:
    """A closed loop that came to the end of its plan in the window was a smaller load than the scenario
    says; one that would have asked again only after the window was not."""
    records = many(record, 9)
    for think_s, state in ((9.0, "pass"), (0.2, "inconclusive")):
        users = {"default": Users((3, 8), round(think_s * SECOND))}
        run = run_of(records, users=users, gates=("default.ttft.p50 < 1s",))
        summary = judge(run)
        assert summary["verdict"] == state
        assert [f["text"] for f in summary["findings"] if f["code"] == "idle_users"] == (
            [] if state == "pass" else ["class default: 2 of 2 users had nothing left to ask from 3.7 s on"]
        )
    assert "nothing left to ask" in summary["reason"]
    assert summary["exit"] == 4
