"""The language of gates (MEASUREMENT 9)."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.counters import COUNTERS
from results.gates import OPERATORS, OUTCOMES, Gate, GateError, parse_gate, planned_warnings, wrong_clock
from results.judging import ClassGoal
from results.metrics import METRICS, Kind

CLASSES = ("chat", "batch", "long-docs")
FAULTS = ("crash", "rush")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "chat.ttft_sched.p99 < 800ms",
            {"scope": "chat", "metric": "ttft_sched", "stat": "p99", "bound": 0.8},
        ),
        ("chat.ttft.p99.9<1s", {"stat": "p99.9", "op": "<", "bound": 1.0}),
        ("all.e2e.mean <= 2m", {"scope": None, "stat": "mean", "bound": 120.0}),
        ("ttft.p50 >= 1us", {"scope": None, "bound": pytest.approx(1e-6)}),
        ("chat{turn=later}.ttft.p95 during crash < 2s", {"where": (("turn", "later"),), "during": "crash"}),
        ("all{in=1k-4k, hit=0-50%}.e2e.max < 3s", {"where": (("in", "1k-4k"), ("hit", "0-50%"))}),
        ("ttft.p90 during steady < 1s", {"during": "steady"}),
        ("chat.tpot.mean regression < 5%", {"regression": True, "bound": pytest.approx(0.05)}),
        ("attainment >= 90%", {"kind": Kind.RATIO, "bound": pytest.approx(0.9)}),
        ("long-docs.attainment >= 0.9", {"scope": "long-docs", "bound": 0.9}),
        ("goodput >= 120/m", {"kind": Kind.RATE, "bound": pytest.approx(2.0)}),
        ("goodput.rate >= 90%", {"metric": "attainment"}),
        ("dropped == 0", {"stat": "count", "kind": Kind.COUNT}),
        ("chat.http_error.share < 1%", {"stat": "share", "kind": Kind.RATIO}),
        ("rejected.share < 1%", {"metric": "rejected"}),
        ("chat.ttft.count >= 100", {"kind": Kind.COUNT, "bound": 100.0}),
        ("kv.leaked_blocks == 0", {"group": "kv", "metric": "leaked_blocks", "scope": None}),
        ("attribution.missed_tokens.app_reset == 0", {"metric": "missed_tokens.app_reset"}),
        ("recovery.seconds during crash < 20s", {"group": "recovery", "during": "crash", "bound": 20.0}),
        ("hit_token_weighted > 50%", {"metric": "hit_token_weighted"}),
    ],
)
def test_parse(text: str, expected: dict[str, object]) -> None:
    """Every form of the grammar is understood."""
    gate = parse_gate(text, CLASSES, FAULTS)
    assert {name: getattr(gate, name) for name in expected} == expected
    assert gate.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chat.ttfft.p99 < 1s", "did you mean 'ttft'"),
        ("chta.ttft.p99 < 1s", "did you mean 'chat'"),
        ("ttft.p90 during crsh < 1s", "did you mean 'crash'"),
        ("ttft.p90 durng crash < 1s", "did you mean 'during'"),
        ("kv.leaked == 0", "did you mean 'leaked_blocks'"),
        ("chat{trun=later}.ttft.p90 < 1s", "did you mean 'turn'"),
        ("chat{in=big}.ttft.p90 < 1s", "1k-4k"),
        ("chat{turn}.ttft.p90 < 1s", "dim=value"),
        ("chat{turn=later} < 1s", "comes '.' and a metric"),
        ("ttft < 1s", "needs a statistic"),
        ("ttft.p100 < 1s", "no statistic"),
        ("ttft.p0 < 1s", "use min"),
        ("ttft.p99 < 1", "needs a unit"),
        ("ttft.p99 < 1/s", "wrong unit"),
        ("goodput > 3", "needs a unit"),
        ("attainment.p90 > 1%", "one number"),
        ("dropped.p50 == 0", "count and share"),
        ("ttft.p99", "no comparison"),
        ("ttft.p99 < fast", "not a number"),
        ("a..b < 1s", "empty part"),
        ("kv.leaked_blocks during crash == 0", "whole run"),
        ("kv{in=0-256}.leaked_blocks == 0", "no slices"),
        ("ttft.p99 < 1e999s", "beyond all numbers"),
        ("", "no comparison"),
    ],
)
def test_refuse(text: str, message: str) -> None:
    """What cannot mean anything is refused with what was probably meant."""
    with pytest.raises(GateError, match=message) as refusal:
        parse_gate(text, CLASSES, FAULTS)
    assert repr(text) in str(refusal.value)


def _texts() -> st.SearchStrategy[str]:
    latency = st.sampled_from([n for n, m in METRICS.items() if m.samples is not None])
    stat = st.sampled_from(["p50", "p99.9", "mean", "min", "max"])
    timed = st.tuples(latency, stat).map(lambda t: (f"{t[0]}.{t[1]}", METRICS[t[0]].unit))
    outcome = st.sampled_from(OUTCOMES).map(lambda o: (f"{o}.count", ""))
    counter = st.sampled_from([(g, c) for g, names in COUNTERS.items() for c in names])
    counted = counter.map(lambda t: (".".join(t), {Kind.LATENCY: "s"}.get(COUNTERS[t[0]][t[1]], "")))
    scope = st.sampled_from(["", "chat.", "all.", "batch{turn=first}."])
    scoped = st.tuples(scope, st.one_of(timed, outcome)).map(lambda t: (t[0] + t[1][0], t[1][1]))
    op, space = st.sampled_from(list(OPERATORS)), st.sampled_from(["", " ", "  "])
    parts = st.tuples(st.one_of(scoped, counted), space, op, space, st.integers(0, 10_000))
    return parts.map(lambda p: f"{p[0][0]}{p[1]}{p[2]}{p[3]}{p[4]}{p[0][1]}")


@given(_texts())
def test_every_name_of_the_tables_parses(text: str) -> None:
    """Every metric, outcome and counter can be gated, with any operator and spacing."""
    gate = parse_gate(text, CLASSES, FAULTS)
    assert isinstance(gate, Gate)
    assert parse_gate(gate.text, CLASSES, FAULTS) == gate


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """Nothing else than GateError ever comes out."""
    with suppress(GateError):
        assert isinstance(parse_gate(text, CLASSES, FAULTS), Gate)


def test_gates_that_the_planned_n_cannot_decide_are_warned_of() -> None:
    """A p99 gate on 50 planned requests says that 100 are needed; pooled metrics are left out."""
    gates = [parse_gate(t) for t in ("chat.ttft.p99 < 1s", "chat.ttft.p90 < 1s", "chat.itl.p99 < 1s")]
    (warning,) = planned_warnings(gates, {"chat": 50})
    assert "100 requests" in warning
    assert "50 are planned" in warning


OPEN, CLOSED, CAPPED = ClassGoal(), ClassGoal(open_loop=False), ClassGoal(cap=4)


@pytest.mark.parametrize(
    ("text", "classes", "said"),
    [
        ("chat.ttft_sched.p90 < 1s", {"chat": CLOSED}, "use ttft"),
        ("e2e_sched.p90 < 1s", {"chat": CLOSED, "batch": CLOSED}, "use e2e"),
        ("e2e_sched.p90 < 1s", {"chat": CLOSED, "batch": OPEN}, None),
        ("chat.ttft.p90 < 1s", {"chat": CLOSED}, None),
        ("chat.ttft.p90 < 1s", {"chat": CAPPED}, "use ttft_sched"),
        ("ttfo.max < 1s", {"chat": OPEN, "batch": CAPPED}, "class batch; use ttfo_sched"),
        ("slowdown.p90 < 3", {"chat": CAPPED}, "leaves out the wait"),
        ("chat.e2e.p90 < 1s", {"chat": OPEN, "batch": CAPPED}, None),
        ("chat.e2e_sched.p90 < 1s", {"chat": CAPPED}, None),
        ("chat.itl.p90 < 1s", {"chat": CAPPED}, None),
        ("chat.ttft.p90 < 1s", {"chat": ClassGoal(open_loop=False, cap=4)}, None),
        ("chat.attainment > 50%", {"chat": CAPPED}, None),
        ("kv.leaked_blocks == 0", {"chat": CAPPED}, None),
    ],
)
def test_a_gate_on_the_wrong_clock_is_refused(
    text: str, classes: dict[str, ClassGoal], said: str | None
) -> None:
    """A closed loop has no schedule clock (MEASUREMENT 3); behind a cap the send clock leaves out the
    wait for it (C17)."""
    found = wrong_clock(parse_gate(text, tuple(classes)), classes)
    assert found is None if said is None else said in str(found)
