"""Metrics per request, pooled metrics, rates and slices (MEASUREMENT 3, C35, C45)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.goodput import mark
from results.judging import SECOND
from results.metrics import METRICS, Kind, tpot
from results.outcomes import group_of, prepared
from results.rates import rates
from results.record import Outcome, Record
from results.recordfile import frame
from results.run import RunData
from results.signals import collect
from results.slices import hit_bucket, length_bucket, select
from results.stats.saturation import in_flight, integral
from results.summary import judge
from results.token_events import icl, itl, itl_seen, stall
from results.validity import health
from results.view import View

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]


def test_times_count_from_send_and_from_the_due_time(record: Make) -> None:
    """The send clock starts at the send, the schedule clock at the due time."""
    data = frame([record(0, due_ms=1000, lag_ms=30, ttft_ms=100, gaps_ms=[20.0, 20.0])])
    found = {n: m.per_request(data)[0] for n, m in METRICS.items() if m.per_request is not None}
    expected = {
        "ttft": 0.1,
        "ttft_sched": 0.13,
        "e2e": 0.14,
        "e2e_sched": 0.17,
        "tpot": 0.02,
        "send_lag": 0.03,
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
    assert np.isnan(found["queue_wait"])
    assert np.isnan(found["connect"])
    assert found["pool_wait"] == 0


def test_send_lag_is_what_the_cap_and_the_client_are_to_blame_for(record: Make) -> None:
    """send_lag = cap_wait + client_lag, of what was sent; a dropped request has neither."""
    sent = record(0, due_ms=100, lag_ms=30, ttft_ms=1, e2e_ms=2, cap_wait=20_000_000)
    kept = Record(1, "default", "window", Outcome.DROPPED, due=100)
    data = frame([sent, kept])
    of = {name: METRICS[name].per_request for name in ("send_lag", "cap_wait", "client_lag")}
    found = {name: per_request(data) for name, per_request in of.items() if per_request is not None}
    np.testing.assert_allclose(found["send_lag"], [0.03, np.nan])
    np.testing.assert_allclose(found["cap_wait"], [0.02, np.nan])
    np.testing.assert_allclose(found["client_lag"], [0.01, np.nan])


def test_the_gap_after_thinking(record: Make) -> None:
    """From the last reasoning event to the first visible one; without reasoning there is none."""
    thought = record(0, ttft_ms=100, gaps_ms=[50.0, 50.0])
    assert thought.first_token is not None
    thought.last_reasoning = thought.first_token + 50_000_000
    thought.first_visible = thought.first_token + 100_000_000
    of = METRICS["think_gap"].per_request
    assert of is not None
    np.testing.assert_allclose(of(frame([thought, record(1, ttft_ms=100)])), [0.05, np.nan])


def test_slowdown_is_against_the_idle_target(record: Make, run_of: MakeRun) -> None:
    """e2e over that of the same request alone; who has no such time has no slowdown."""
    run = run_of([record(i, ttft_ms=100, e2e_ms=600) for i in range(40)])
    run.alone = dict.fromkeys(range(30), 0.2) | {39: 0.0}
    table = judge(run)["classes"]["default"]["metrics"]["slowdown"]
    assert (table["n"], table["p50"]) == (30, pytest.approx(3.0))
    run.judging = replace(run.judging, gates=("slowdown.p50 < 4", "slowdown.mean < 2"))
    assert [gate["verdict"] for gate in judge(run)["gates"]] == ["PASS", "FAIL"]
    run.alone = None
    assert judge(run)["gates"][0]["verdict"] == "INCONCLUSIVE"


def test_numbers_of_a_class_can_be_gated(record: Make, run_of: MakeRun) -> None:
    """The weighted tpot and the share of new connections are metrics like others."""
    records = [record(i, ttft_ms=10, gaps_ms=[10.0, 30.0], conn_new=i < 10) for i in range(40)]
    run = run_of(records, gates=("tpot_token_weighted <= 20ms", "conn_new == 25%", "conn_new > 90%"))
    gates = judge(run)["gates"]
    assert [gate["verdict"] for gate in gates] == ["PASS", "PASS", "FAIL"]
    assert gates[0]["value"] == pytest.approx(0.02)
    assert judge(run)["client"]["conn_new_share"] == 0.25


events = st.lists(st.lists(st.integers(0, 10**6), max_size=6).map(sorted), max_size=8)


@given(events)
def test_gaps_belong_to_their_requests(times: list[list[int]]) -> None:
    """No gap spans two requests; the largest of each is its stall, and their sum its span."""
    data = frame([Record(i, "c", "window", Outcome.COMPLETED, event_us=t) for i, t in enumerate(times)])
    gaps, largest = icl(data), stall(data)
    for row, one in enumerate(times):
        own = gaps.values[gaps.owners == row]
        assert len(own) == max(len(one) - 1, 0)
        assert own.sum() == pytest.approx((one[-1] - one[0]) * 1e-6 if one else 0)
        assert np.isnan(largest[row]) if not len(own) else largest[row] == own.max()


counted = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5)), min_size=1, max_size=6)


@given(st.lists(counted, min_size=1, max_size=6))
def test_time_per_token_shares_the_same_time(requests: list[list[tuple[int, int]]]) -> None:
    """Shared evenly or seen as gap and zeros, the tokens after the first event take the same time."""
    rows = []
    for i, one in enumerate(requests):
        times, tokens = sorted(t for t, _ in one), [n for _, n in one]
        rows.append(Record(i, "c", "window", Outcome.COMPLETED, event_us=times, event_tokens=tokens))
    data = frame(rows)
    even, seen = itl(data), itl_seen(data)
    assert even.n == seen.n == sum(n for one in requests for _, n in one[1:])
    for row in range(len(requests)):
        assert even.values[even.owners == row].sum() == pytest.approx(seen.values[seen.owners == row].sum())


def test_unstreamed_answers_have_end_to_end_times_only(record: Make) -> None:
    """Token times of a whole answer are undefined; it ends with its terminal stamp."""
    one = record(0, ttft_ms=100, e2e_ms=500, streamed=False, first_token=None, last_token=None)
    data = frame([one])
    assert METRICS["e2e"].per_request is not None
    assert METRICS["e2e"].per_request(data)[0] == pytest.approx(0.5)
    for name in ("ttft", "tpot", "stall", "stream_close"):
        of = METRICS[name].per_request
        assert of is not None
        assert np.isnan(of(data)[0])


def test_several_tokens_in_an_event(record: Make) -> None:
    """itl shares a gap among the tokens that end it, itl_seen shows it once and then zeros."""
    one = record(0, ttft_ms=100, gaps_ms=[30.0, 60.0], event_tokens=[1, 3, 2], n_out=6)
    data = frame([one])
    np.testing.assert_allclose(icl(data).values, [0.03, 0.06])
    np.testing.assert_allclose(itl(data).values, [0.01, 0.01, 0.01, 0.03, 0.03])
    np.testing.assert_allclose(itl_seen(data).values, [0.03, 0, 0, 0.06, 0])
    np.testing.assert_allclose(stall(data), [0.06])
    np.testing.assert_allclose(tpot(data), [0.09 / 5])


def test_unknown_counts_are_not_guessed(record: Make) -> None:
    """Without counts itl is undefined, unless every event must be one token."""
    unknown = frame([record(0, ttft_ms=100, gaps_ms=[30.0, 60.0], n_out=9)])
    assert itl(unknown).n == 0
    known = frame([record(0, ttft_ms=100, gaps_ms=[30.0, 60.0])])
    np.testing.assert_allclose(itl(known).values, [0.03, 0.06])


def test_hidden_reasoning_is_not_divided_by(record: Make) -> None:
    """Reasoning that came in no event leaves tpot to the visible tokens; what came later, between visible
    ones, has its time in the span and its tokens in the count."""
    known = {"ttft_ms": 100, "gaps_ms": [20.0, 20.0]}
    hidden = record(0, **known, n_out=103, n_reasoning=100, warnings=["hidden_reasoning"])
    shown = record(1, **known, n_out=3, n_reasoning=1)
    np.testing.assert_allclose(tpot(frame([hidden, shown])), [0.02, 0.02])


@pytest.mark.parametrize(
    ("outcome", "status", "group"),
    [
        ("completed", 200, "ok"),
        ("http_error", 429, "rejected"),
        ("http_error", 503, "rejected"),
        ("http_error", 500, "failed"),
        ("http_error", 504, "failed"),
        ("expired", 504, "expired"),
        ("client_timeout", None, "failed"),
        ("cancelled_by_plan", 200, "cancelled"),
        ("not_sent", None, "excluded"),
        ("unknown", None, "unknown"),
    ],
)
def test_groups(outcome: str, status: float | None, group: str) -> None:
    """Every outcome class is in the group of C23."""
    assert group_of(outcome, status) == group


def test_tokens_are_counted_when_they_come(record: Make, run_of: MakeRun) -> None:
    """out_tps counts tokens by event time, peak_tps those of the fullest second."""
    run = run_of([record(0, ttft_ms=500, gaps_ms=[100.0, 100.0, 2000.0])], window_s=2)
    data = prepared(run.records, run.judging)
    found = rates(data, mark(data, run.judging), ((0, 2 * SECOND),))
    assert found["out_tps"] == 1.5
    assert found["peak_tps"] == 3.0
    assert found["completed"] == 0.0


lives = st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 100)), min_size=1, max_size=30)


@settings(max_examples=30)
@given(lives)
def test_littles_law_holds_exactly(spans: list[tuple[int, int]]) -> None:
    """The mean number in flight times the window is the sum of the clipped lives."""
    records = [
        Record(i, "c", "window", "completed", due=a, start=a, closed=a + n) for i, (a, n) in enumerate(spans)
    ]  # type: ignore[arg-type]
    data = frame(records)
    bins = in_flight(data, 0, 120, 60)
    assert bins.sum() * 2 == pytest.approx(integral(data, 0, 120))
    assert (bins >= 0).all()


def test_buckets_and_slices(record: Make) -> None:
    """Lengths are cut at [lo, hi), cached shares at their bounds; what is unknown is its own slice."""
    assert [length_bucket(n) for n in (0, 255, 256, 999, 1000, 300_000, None)] == [
        "0-256",
        "0-256",
        "256-1k",
        "256-1k",
        "1k-4k",
        "256k-",
        "unknown",
    ]
    assert [hit_bucket(r, 100.0) for r in (0, 49, 50, 89, 90, 100)] == [
        "0",
        "0-50%",
        "50-90%",
        "50-90%",
        "90-100%",
        "90-100%",
    ]
    data = frame([record(i, turn=i, n_in=n, tenant="t") for i, n in enumerate((100, 1500, None))])
    assert list(select(data, {"turn": "later"})) == [False, True, True]
    assert list(select(data, {"turn": "2"})) == [False, False, True]
    assert list(select(data, {"in": "1k-4k"})) == [False, True, False]
    assert list(select(data, {"in": "unknown"})) == [False, False, True]
    assert list(select(data, {"worker": "unknown", "tenant": "t"})) == [True, True, True]


def test_signals_are_read_off_the_run(run_with_everything: RunData) -> None:
    """Lags, rates, missing records, gateway counters and the gateway's own TTFT become rows of health."""
    run = run_with_everything
    found = health(collect(run, View.of(run)), run.judging.limits)
    assert found.verdict == "valid"
    assert found.rows["H9"]["value"] == 0
    assert found.rows["H10"]["value"] == 0
    assert 0 < found.rows["H12"]["value"] < 0.001
    assert found.rows["H6"]["state"] is None
    assert found.rows["H6"]["reason"]


@pytest.mark.parametrize(("counted", "residual"), [(7, 0), (8, 0), (9, 0), (10, 1), (6, -1)])
def test_the_gateways_count_is_met_within_what_nobody_knows(
    counted: int, residual: int, record: Make, run_of: MakeRun
) -> None:
    """H10: a request cut off before any answer, or lost with the load process, may have arrived or not."""
    rows = [record(i, ttft_ms=10, e2e_ms=20) for i in range(7)]
    rows += [record(7, "cancelled_by_plan"), record(8, "unknown"), record(9, "connect_error")]
    for row in rows[8:]:
        row.sent = None
    run = run_of(rows)
    run.signals = {"gateway_requests": counted}
    run.judging = replace(run.judging, own_engine=True)
    assert health(collect(run, View.of(run)), run.judging.limits).rows["H10"]["value"] == residual


def test_a_missing_record_makes_the_client_invalid(run_with_everything: RunData) -> None:
    """One planned request without a record is enough."""
    run = run_with_everything
    values = {name: getattr(run, name) for name in RunData.__slots__}
    short = RunData(**(values | {"records": run.records.iloc[1:]}))
    found = health(collect(short, View.of(short)), run.judging.limits)
    assert found.verdict == "invalid"
    assert "H9" in found.reasons


def test_every_metric_has_a_meaning_and_a_unit() -> None:
    """The table documents itself."""
    for metric in METRICS.values():
        assert metric.meaning
        assert (metric.unit == "s") == (metric.kind in (Kind.LATENCY, Kind.LAG))
