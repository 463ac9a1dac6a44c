"""The search, the knee, and what a run says of its point: pure, told of made-up targets."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from results.judging import SECOND, ClassGoal
from results.record import Record
from results.run import RunData, scrape_frame
from results.summary import judge
from results.sweep.columns import COLUMNS, columns
from results.sweep.engine import ALLOCATION_FAILURES, increase
from results.sweep.knee import Knee, knee, safe_point
from results.sweep.outcome import conclude
from results.sweep.points import DEFAULT_OBJECTIVE, Decision, decide, objectives
from results.sweep.search import Ask, Found, Kind, Space, Verdict, ask, found, most_left
from results.sweep.spec import AxisSpec, PointRun, SweepSpec, history
from results.sweep.table import frame

Target = Callable[[Ask], Verdict]


def searched(space: Space, target: Target, limit: int = 400) -> tuple[Found, dict[Ask, Verdict]]:
    """Play a search against a target to its end."""
    seen: dict[Ask, Verdict] = {}
    while (asked := ask(space, seen)) is not None:
        assert asked not in seen, "nothing is asked twice"
        assert space.low <= asked.value <= space.high
        seen[asked] = target(asked)
        assert len(seen) < limit
    return found(space, seen), seen


def threshold(at: float) -> Target:
    return lambda asked: Verdict.PASS if asked.value <= at else Verdict.FAIL


spaces = st.builds(
    lambda low, factor, width: Space(low, low * factor, width=width),
    st.floats(0.01, 100),
    st.floats(1.3, 500),
    st.sampled_from([0.02, 0.05, 0.1, 0.25]),
)
whole_spaces = st.builds(
    lambda low, more: Space(low, low + more, whole=True), st.integers(1, 50), st.integers(1, 400)
)


@given(st.one_of(spaces, whole_spaces), st.floats(0, 1))
@example(Space(1, 64), 0.3)
@example(Space(1, 2, whole=True), 0.5)
def test_the_bracket_holds_the_threshold(space: Space, share: float) -> None:
    """Of a target that holds up to some value: its pass is at or below it, its fail above, the two near."""
    at = space.low * (space.high / space.low) ** share
    result, seen = searched(space, threshold(at))
    if at >= space.high:
        assert (result.kind, result.passes, result.fails) == (Kind.AT_LEAST, space.high, None)
        return
    assert result.kind is Kind.BRACKET
    assert result.passes is not None
    assert result.fails is not None
    assert result.passes <= at < result.fails
    assert space.narrow(result.passes, result.fails)
    assert result.passes_confirmed
    assert result.fails_confirmed
    assert len(seen) <= most_runs(space)


def most_runs(space: Space) -> int:
    """Doublings, the halvings of one of them (which may be a little longer), and two second runs."""
    return len(space.ladder()) + math.ceil(math.log2(1 / space.width)) + 1 + 2


@given(st.one_of(spaces, whole_spaces))
def test_even_the_lowest_fails(space: Space) -> None:
    """Then one point and its second run say so."""
    result, seen = searched(space, lambda asked: Verdict.FAIL)
    assert (result.kind, result.passes, result.fails) == (Kind.LOW_FAILS, None, space.low)
    assert list(seen) == [Ask(space.low), Ask(space.low, 1)]


@settings(max_examples=300)
@given(spaces, st.floats(0, 1), st.floats(0, 0.6), st.integers(0, 10**6))
def test_noise_never_puts_a_pass_above_a_confirmed_fail(
    space: Space, share: float, noise: float, seed: int
) -> None:
    """Verdicts near the threshold come out at random, undecided ones included: the ends stay in order,
    what is confirmed was seen twice, and the number of runs stays bounded."""
    at = space.low * (space.high / space.low) ** share
    rng = random.Random(seed)

    def noisy(asked: Ask) -> Verdict:
        if abs(math.log(asked.value / at)) < noise:
            return rng.choice([Verdict.PASS, Verdict.FAIL, Verdict.UNDECIDED])
        return threshold(at)(asked)

    result, seen = searched(space, noisy)
    twice = {
        side: [a.value for a, v in seen.items() if a.repeat == 1 and v is side is seen[Ask(a.value)]]
        for side in (Verdict.PASS, Verdict.FAIL)
    }
    if result.passes is not None:
        assert result.passes_confirmed == (result.passes in twice[Verdict.PASS])
        assert all(result.passes < fails for fails in twice[Verdict.FAIL])
        assert result.fails is None or result.passes < result.fails
    for value in result.disagreed:
        assert seen[Ask(value)] is not seen[Ask(value, 1)]
        assert result.passes is None or value > result.passes
        assert result.fails is None or value < result.fails
    first = [a for a in seen if a.repeat == 0]
    halvings = math.ceil(math.log2(1 / space.width)) + 1
    assert len(first) <= len(space.ladder()) + 3 * halvings
    assert len(seen) <= 2 * len(first)


@given(spaces, st.floats(0.05, 0.95), st.floats(0.05, 0.5))
def test_a_gap_that_no_run_decides_is_narrowed_from_both_sides(
    space: Space, share: float, half: float
) -> None:
    """Around the threshold every run stays open: the bracket encloses the gap, and next to it is narrow."""
    at = space.low * (space.high / space.low) ** share

    def target(asked: Ask) -> Verdict:
        if abs(math.log(asked.value / at)) < half:
            return Verdict.UNDECIDED
        return threshold(at)(asked)

    result, _ = searched(space, target)
    for value in result.undecided:
        assert abs(math.log(value / at)) < half
    if result.passes is not None and result.fails is not None:
        assert result.passes <= at <= result.fails
        inside = result.undecided or (result.fails,)
        assert space.narrow(result.passes, inside[0])
        assert space.narrow(inside[-1], result.fails) or not result.undecided
    if target(Ask(space.low)) is Verdict.UNDECIDED:
        assert result.kind in (Kind.OPEN, Kind.AT_LEAST, Kind.BRACKET)
        assert result.kind is not Kind.LOW_FAILS


def test_two_runs_that_disagree_widen_the_bracket() -> None:
    """6 passes once and fails the second time: the end goes down to 4, which passed too; 6 is named."""

    def target(asked: Ask) -> Verdict:
        if asked == Ask(6, 1):
            return Verdict.FAIL
        return threshold(6)(asked)

    result, _ = searched(Space(1, 64), target)
    assert result.disagreed == (6,)
    assert (result.passes, result.passes_confirmed) == (4, True)
    assert (result.fails, result.fails_confirmed) == (6.5, True)


def test_a_fail_that_its_second_run_does_not_see_is_no_end() -> None:
    """The next fail above stands in; without one, the doubling goes on; at its end, nothing was seen to
    fail."""

    def but(refuted: set[float]) -> Target:
        return lambda a: Verdict.PASS if a.repeat and a.value in refuted else threshold(6)(a)

    result, _ = searched(Space(1, 64), but({6.5}))
    assert (result.passes, result.fails, result.disagreed) == (6, 7, (6.5,))
    result, _ = searched(Space(1, 64), but({6.5, 7, 8}))
    assert (result.passes, result.fails, result.disagreed) == (6, 16, (6.5, 7, 8))
    result, _ = searched(Space(1, 8), but({6.5, 7, 8}))
    assert (result.kind, result.passes, result.fails) == (Kind.AT_LEAST, 6, None)


@given(spaces, st.floats(0, 1))
def test_a_client_at_its_limit_ends_the_search(space: Space, share: float) -> None:
    """Beyond some value the client is invalid: the search stops there and claims no fail."""
    at = space.low * (space.high / space.low) ** share
    result, seen = searched(space, lambda a: Verdict.PASS if a.value <= at else Verdict.CLIENT)
    assert result.fails is None
    if at < space.high:
        assert result.kind is Kind.CLIENT
        assert list(seen.values()).count(Verdict.CLIENT) == 1


def test_a_client_at_its_limit_refutes_nothing() -> None:
    """In the second run of the passing end: what passed once stays, unconfirmed, and no two runs disagree."""
    result, _ = searched(Space(1, 8), lambda a: Verdict.CLIENT if a.repeat else threshold(3)(a))
    assert (result.kind, result.passes, result.passes_confirmed) == (Kind.CLIENT, 3, False)
    assert result.disagreed == ()


@given(st.one_of(spaces, whole_spaces), st.floats(0, 1))
def test_the_estimate_of_what_is_left_ends_at_nothing(space: Space, share: float) -> None:
    """It is never below 1 while there is something to ask, and 0 at the end."""
    at = space.low * (space.high / space.low) ** share
    seen: dict[Ask, Verdict] = {}
    while (asked := ask(space, seen)) is not None:
        assert most_left(space, seen) >= 1
        seen[asked] = threshold(at)(asked)
    assert most_left(space, seen) == 0


# --- knee and safe point


def bracket(low: float | None, high: float | None, sure: bool = True) -> Found:
    return Found(Kind.BRACKET, low, high, sure, sure, (), ())


def test_the_knee_is_below_the_first_over_saturated_value() -> None:
    """What is calm above it is named and does not count; what was not tested is not there."""
    assert knee([(1, False), (2, False), (4, True), (8, True)]) == Knee(2, 4)
    assert knee([(1, False), (2, True), (4, False)]) == Knee(1, 2, (4,))
    assert knee([(1, False), (2, False), (2, True)]) == Knee(1, 2), "one of two runs is enough"
    assert knee([(1, None), (2, None)]) == Knee(None, None)


def test_the_safe_point_is_below_what_binds() -> None:
    """A share below the knee, or below the fail where that comes first; whole where users are counted."""
    assert safe_point(bracket(9, 11), Knee(10, 11), 0.2).value == 8
    assert safe_point(bracket(9, 11), Knee(10, 11), 0.2).binds == "saturation"
    early = safe_point(bracket(4, 4.4), Knee(8, None), 0.2)
    assert (early.value, early.limit, early.binds) == (3.52, 4.4, "objectives")
    untested = safe_point(bracket(4, 4.4), Knee(None, None), 0.2)
    assert (untested.value, untested.binds) == (3.52, "objectives")
    assert safe_point(bracket(8, None), Knee(8, None), 0.25).value == 6
    assert safe_point(bracket(7, 9), Knee(8, 9), 0.2, whole=True).value == 6
    assert safe_point(bracket(1, 2), Knee(1, 2), 0.2, whole=True).value is None


def test_no_safe_point_rests_on_one_run() -> None:
    """Without a pass, or with one that no second run confirms, there is none, and the reason is given."""
    for low, sure in ((None, True), (4.0, False)):
        safe = safe_point(bracket(low, 5, sure), Knee(4, 5), 0.2)
        assert safe.value is None
        assert safe.reason


@given(st.floats(0.1, 100), st.floats(1.01, 3), st.floats(0.5, 3), st.floats(0, 0.9))
def test_a_safe_point_is_never_above_a_pass(low: float, fail: float, calm: float, headroom: float) -> None:
    """Wherever the knee is."""
    safe = safe_point(bracket(low, low * fail), Knee(low * calm, None), headroom)
    assert safe.value is not None
    assert safe.value <= low * (1 + 1e-5)


# --- what a run says of its point


@pytest.fixture
def summary(run_of: Callable[..., RunData], record: Callable[..., Record]) -> Callable[..., dict[str, Any]]:
    """Of a made-up run: ``ttft_ms`` of each of ``n`` requests, one a second."""

    def made(ttft_ms: list[float], gates: tuple[str, ...], window_s: float = 40.0) -> dict[str, Any]:
        records = [
            record(i, due_ms=1000 * i * window_s / len(ttft_ms), ttft_ms=ttft, e2e_ms=ttft + 50)
            for i, ttft in enumerate(ttft_ms)
        ]
        goal = {"default": ClassGoal(slo={"ttft_sched": 0.5})}
        return judge(run_of(records, window_s, gates=gates, classes=goal))

    return made


Made = Callable[..., dict[str, Any]]
P50 = ("default.ttft_sched.p50 < 300ms",)


def said(summary: dict[str, Any], *, longest: bool = False) -> Decision:
    return decide(summary, own_engine=True, longest=longest).decision


def test_a_point_passes_with_the_whole_interval_only(summary: Made) -> None:
    """All well inside: pass. All well outside: fail. The bound within the interval: longer, and at the
    longest window inconclusive, though the value itself meets the bound."""
    assert said(summary([100.0] * 80, P50)) is Decision.PASS
    assert said(summary([900.0] * 80, P50)) is Decision.FAIL
    spread = summary([280.0, 320.0, 290.0, 310.0, 270.0] * 8, P50)
    assert spread["gates"][0]["verdict"] == "PASS"
    assert said(spread) is Decision.LONGER
    assert said(spread, longest=True) is Decision.UNDECIDED
    assert "interval reaches the bound" in decide(spread, own_engine=True, longest=True).why[0]


def test_over_saturation_is_no_pass(summary: Made) -> None:
    """With every objective met it runs longer; in the longest window it fails, with that reason."""
    over = summary([100.0] * 80, P50)
    over["saturation"] = {"over": True, "reason": None}
    assert said(over) is Decision.LONGER
    found = decide(over, own_engine=True, longest=True)
    assert (found.decision, found.why) == (Decision.FAIL, ("over-saturated in the longest window",))
    outside = summary([900.0] * 80, P50)
    outside["saturation"] = {"over": True, "reason": None}
    assert said(outside) is Decision.FAIL


def test_an_invalid_client_says_nothing_of_the_target(summary: Made) -> None:
    """Whatever the gates say."""
    for ttft in (100.0, 900.0):
        made = summary([ttft] * 80, P50)
        made["client"]["verdict"] = "invalid"
        made["client"]["rows"]["H1"]["state"] = "invalid"
        found = decide(made, own_engine=True, longest=False)
        assert found.decision is Decision.CLIENT
        assert "the client, not the target" in found.why[0]
        assert "H1" in found.why[0]


def test_a_window_without_requests_is_open(summary: Made, run_of: Callable[..., RunData]) -> None:
    """Nothing due, nothing known."""
    empty = judge(run_of([], 40.0, gates=("kv.leaked_blocks == 0",)))
    assert said(empty) is Decision.LONGER
    assert said(empty, longest=True) is Decision.UNDECIDED


def test_nothing_completed_is_a_fail_in_the_end(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """Every request was reset: no gate on a latency has a value, and still it does not stay open."""
    records = [record(i, "reset", due_ms=1000 * i, after_ms=5) for i in range(30)]
    dead = judge(run_of(records, 40.0, gates=P50))
    assert said(dead) is Decision.LONGER
    assert said(dead, longest=True) is Decision.FAIL


def test_a_fault_that_was_not_played_leaves_a_point_open(summary: Made) -> None:
    """What holds only because nothing broke does not pass."""
    made = summary([100.0] * 80, P50)
    made["faults"] = [{"id": "crash", "proven": None, "error": None}]
    assert said(made) is Decision.LONGER


def test_users_with_nothing_left_to_ask_leave_a_point_open(summary: Made) -> None:
    """What holds because the closed loop stood idle does not hold its number of users."""
    made = summary([100.0] * 80, P50)
    made["findings"].append({"code": "idle_users", "text": "class chat: 2 of 2 users ..", "remedy": ".."})
    assert said(made) is Decision.LONGER
    assert decide(made, own_engine=True, longest=True).why == ("class chat: 2 of 2 users ..",)


def test_counters_that_a_foreign_target_lacks_are_set_aside(summary: Made) -> None:
    """Of our own engine they leave the point open; of a URL they are named and not asked."""
    made = summary([100.0] * 80, (*P50, "kv.leaked_blocks == 0"))
    assert said(made) is Decision.LONGER
    foreign = decide(made, own_engine=False, longest=False)
    assert foreign.decision is Decision.PASS
    assert foreign.set_aside == ("kv.leaked_blocks == 0: the target was not audited",)


def test_objectives_are_the_gates_that_can_be_judged() -> None:
    """A regression needs a baseline, which a point has not; without gates attainment stands in, if there
    is an SLO for it."""
    gates = ["attainment >= 99%", "chat.tpot.mean regression < 5%"]
    assert objectives(gates, True, ["chat"]) == (gates[:1], gates[1:])
    assert objectives([], True, ["chat"]) == ([DEFAULT_OBJECTIVE], [])
    assert objectives(gates[1:], True, ["chat"]) == ([DEFAULT_OBJECTIVE], gates[1:])
    assert objectives([], False, ["chat"]) == ([], [])


# --- columns


def test_every_column_is_a_number_or_has_a_reason(run_with_everything: RunData) -> None:
    """By class and in all, also of a target that says nothing about itself."""
    for data in (run_with_everything, replace(run_with_everything, truth=None, scrapes=None)):
        rows = columns(data, judge(data))
        assert set(rows) == {"chat", "batch", "all"}
        for row in rows.values():
            assert tuple(row.values) == COLUMNS
            missing = {name for name, value in row.values.items() if value is None}
            assert missing == set(row.reasons)
            assert all(row.reasons.values())
    assert rows["all"].values["preemptions"] is None
    assert rows["all"].values["good_rate"] is not None


def test_columns_are_those_of_the_summary(run_with_everything: RunData) -> None:
    """Rates, groups and quantiles are taken over, not made up anew; classes add up to all."""
    summary = judge(run_with_everything)
    rows = columns(run_with_everything, summary)
    for name in ("chat", "all"):
        block = summary["classes"].get(name, summary["all"])
        values = rows[name].values
        assert values["good_rate"] == block["rates"]["good"]
        assert values["ttft_sched_p90"] == block["metrics"]["ttft_sched"]["p90"]
        assert values["cancelled"] == block["groups"]["cancelled"]
    for column in ("asked_rate", "planned", "decode_tokens_s", "cached_tokens_device"):
        parts = [rows[name].values[column] for name in ("chat", "batch")]
        assert sum(part or 0 for part in parts) == pytest.approx(rows["all"].values[column])


def test_prompt_tokens_count_where_they_were_computed(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """A prompt of 100 tokens, half of its prefill in the window: 5 tokens/s over 10 s; recomputed ones
    count, cached ones do not."""
    data = run_of([record(0, due_ms=9000, ttft_ms=2000, e2e_ms=2500)], 10.0, own_engine=True)
    data.records["request_id"] = "a"
    data.manifest = {"t0_ns": 5 * SECOND}
    truth = {"id": "a", "worker": 0, "received": 14 * SECOND, "first_scheduled": 14 * SECOND}
    truth |= {"prefill_done": 16 * SECOND, "prompt": 180, "computed": 90, "recomputed": 10, "hit_device": 80}
    data.truth = pd.DataFrame([truth])
    rows = columns(data, judge(data))
    assert rows["all"].values["prefill_tokens_s"] == pytest.approx(5.0)
    assert rows["all"].values["cached_tokens_device"] == 80


def sample(t: int, name: str, value: float, worker: str = "0") -> dict[str, Any]:
    return {"t": t, "target": "t", "name": name, "labels": {"worker": worker}, "value": value}


def test_a_counter_that_restarts_counts_on() -> None:
    """A worker that died began again at 0, one that came later began at 0; labels are summed."""
    name = f"{ALLOCATION_FAILURES[0]}_total"
    rows = [sample(0, name, 5), sample(1, name, 7), sample(2, name, 1), sample(2, name, 3, "1")]
    assert increase(scrape_frame(rows), ALLOCATION_FAILURES) == (6.0, "")
    assert increase(scrape_frame(rows[:1]), ALLOCATION_FAILURES)[0] is None
    assert increase(None, ALLOCATION_FAILURES)[0] is None


def test_what_other_engines_export_is_read(
    record: Callable[..., Record], run_of: Callable[..., RunData]
) -> None:
    """KV usage and preemptions of a target without truth come from its own names; in all, not by class."""
    data = run_of([record(0, due_ms=1000, ttft_ms=10, e2e_ms=20)], 10.0)
    seconds = {0: (0.9, 0), 2: (0.2, 1), 6: (0.6, 4), 12: (0.8, 5)}
    shares = [sample(t * SECOND, "vllm:kv_cache_usage_perc", share) for t, (share, _) in seconds.items()]
    data.scrapes = scrape_frame(
        [*shares, *(sample(t * SECOND, "vllm:num_preemptions_total", n) for t, (_, n) in seconds.items())]
    )
    rows = columns(data, judge(data))
    values = rows["all"].values
    assert (values["kv_mean"], values["kv_max"]) == (pytest.approx((0.9 + 0.2 + 0.6) / 3), 0.9)
    assert values["preemptions"] == 5
    assert values["allocation_failures"] is None
    assert rows["default"].values["preemptions"] is None


# --- the document


RATE = AxisSpec("chat.rate", "/s", low=1.0, high=8.0)
CHUNK = AxisSpec("engine.scheduler.prefill_chunk", values=("64", "256"))


def a_spec(axes: tuple[AxisSpec, ...], cells: tuple[dict[str, str], ...]) -> SweepSpec:
    return SweepSpec(
        "x", "?", True, True, (1, 2), (30.0, 60.0), 0.2, 0.1, ("attainment >= 90%",), False, (), axes, cells
    )


def a_run(spec: SweepSpec, n: int, cell: int, asked: Ask | None, decision: Decision) -> PointRun:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 1.0) | {"over_saturated": False, "reasons": {}}
    searched = spec.searched
    at = dict(spec.cells[cell])
    if asked is not None and searched is not None:
        at[searched.key] = searched.text(asked.value)
    return PointRun(
        n=n,
        cell=cell,
        value=None if asked is None else asked.value,
        at=at,
        repeat=0 if asked is None else asked.repeat,
        seed=1,
        window=30.0,
        run=f"points/{n:03d}",
        decision=decision,
        why=(),
        set_aside=(),
        client="invalid" if decision is Decision.CLIENT else "valid",
        over_saturated=decision is Decision.FAIL,
        saturation_reason=None,
        gates=(),
        rows={"chat": row, "all": row},
    )


def play(spec: SweepSpec, targets: list[Target]) -> list[PointRun]:
    """A whole sweep of made-up targets, one for each cell."""
    runs: list[PointRun] = []
    assert spec.space is not None
    for cell, target in enumerate(targets):
        own: list[PointRun] = []
        while (asked := ask(spec.space, history(own))) is not None:
            own.append(a_run(spec, len(runs) + len(own) + 1, cell, asked, Decision(target(asked).value)))
        runs += own
    return runs


CROSSED = ({CHUNK.key: "64"}, {CHUNK.key: "256"})


@pytest.mark.parametrize(
    ("targets", "exit_code", "best"),
    [
        ((threshold(3), threshold(5)), 0, [1]),
        ((threshold(3), threshold(3)), 0, [0, 1]),
        ((threshold(3), threshold(0.5)), 0, [0]),
        ((threshold(0.5), threshold(0.5)), 1, []),
        ((threshold(0.5), lambda a: Verdict.UNDECIDED), 4, []),
        ((lambda a: Verdict.CLIENT, lambda a: Verdict.CLIENT), 4, []),
    ],
)
def test_one_cell_with_a_safe_point_is_enough(
    targets: tuple[Target, ...], exit_code: int, best: list[int]
) -> None:
    """The question is whether there is one: 0 if some cell has it, 1 if all fail at their lowest."""
    spec = a_spec((CHUNK, RATE), CROSSED)
    document = conclude(spec, play(spec, list(targets)))
    assert (document["exit"], document["best"], document["complete"]) == (exit_code, best, True)
    if best == [1]:
        said = "2 of 2 cells hold; the largest safe operating point, 4/s, is at prefill_chunk=256."
        assert document["reason"] == said


def test_the_words_say_what_was_found() -> None:
    """Bracket, knee and safe point; a client at its limit; a lowest value that fails."""
    spec = a_spec((RATE,), ({},))
    whole = conclude(spec, play(spec, [threshold(3)]))["cells"][0]
    assert whole["bracket"]["pass"] == 3
    assert whole["words"].startswith("chat.rate: holds 3/s (seen twice), fails at 3.25/s (seen twice).")
    assert "Knee: not over-saturated at 3/s, over-saturated at 3.25/s." in whole["words"]
    assert "Safe operating point: 2.4/s, 20 % of headroom below the knee, 3/s." in whole["words"]
    at_least = conclude(spec, play(spec, [threshold(9)]))["cells"][0]["words"]
    assert "holds at least 8/s (seen twice), all that was asked" in at_least
    assert "Knee not reached" in at_least
    low = conclude(spec, play(spec, [threshold(0.1)]))["cells"][0]["words"]
    assert "fails already at 1/s, the lowest value (seen twice)" in low
    client = conclude(spec, play(spec, [lambda a: Verdict.PASS if a.value < 3 else Verdict.CLIENT]))
    assert client["exit"] == 4
    assert client["client"] == "invalid"
    assert client["reason"] == "the client, not the target"
    assert "the client, not the target" in client["cells"][0]["words"]
    assert client["cells"][0]["safe"]["value"] is None


def test_a_target_that_is_gone_comes_before_all_else() -> None:
    """Exit 3; an interrupted sweep is inconclusive, whatever it has found."""
    spec = a_spec((RATE,), ({},))
    runs = play(spec, [threshold(3)])
    assert conclude(spec, runs, error="gone", interrupted=True)["exit"] == 3
    assert conclude(spec, runs, interrupted=True)["exit"] == 4
    assert conclude(spec, runs[:2])["complete"] is False
    assert conclude(spec, [])["complete"] is False


def test_what_is_written_is_read_back() -> None:
    """Spec and runs are the same after a round through JSON's types."""
    spec = a_spec((CHUNK, RATE), CROSSED)
    runs = play(spec, [threshold(3), threshold(5)])
    assert SweepSpec.from_dict(spec.as_dict()) == spec
    assert [PointRun.from_dict(run.as_dict()) for run in runs] == runs


def test_the_table_has_a_row_for_each_run_and_class() -> None:
    """With the axes as columns, and every column of C46."""
    spec = a_spec((CHUNK, RATE), CROSSED)
    runs = play(spec, [threshold(3), threshold(5)])
    table = frame(spec, runs)
    assert len(table) == 2 * len(runs)
    assert set(table[CHUNK.key]) == {"64", "256"}
    assert set(COLUMNS) <= set(table)
    assert frame(spec, []).empty
