"""What can never act, and what could never be planned."""

from __future__ import annotations

import pytest

from loadgen.workload.lengths import Choices, Lognormal, Pareto, Uniform
from results.gates import parse_gate
from scenarios.inert import inert_gate
from scenarios.load import ScenarioError, parse
from scenarios.sizes import mean

LOAD = "{type: sessions, turns: 3, system: 400, user: 40, output: 32, think: 2s}"


def errors(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "s.yaml", overrides)
    return caught.value.errors


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("branches: {at: 3, count: 2}", "branches.at: no branch begins at turn 3, no session has it"),
        ("branches: {at: 99, count: 2}", "branches.at: no branch begins at turn 99, no session has it"),
        ("slip: {at_token: 5, turn: 3}", "slip.turn: no clock slips in at turn 3, no session has it"),
        ("slip: {at_token: 5, turn: -1}", "slip.turn: no clock slips in at turn -1, no session has it"),
        ("slip: {at_token: 5, turn: 9, after: 5s}", "slip.turn: no clock slips in at turn 9"),
    ],
)
def test_a_block_for_a_turn_that_never_comes_is_refused(good: str, block: str, says: str) -> None:
    """With its line, and with the turns that there are."""
    (found,) = errors(good.replace("think: 2s}", f"think: 2s, {block}}}"))
    assert found.startswith(f"s.yaml:17: load.0.workload.{says}")
    assert found.endswith("the first turn is 0, the last 2")


def test_a_turn_that_may_come_is_let_in(good: str) -> None:
    """The last one, and one that some sessions have."""
    blocks = "branches: {at: 2, count: 2}, slip: {at_token: 5, turn: 2}"
    parse(good.replace("think: 2s}", f"think: 2s, {blocks}}}"), "s.yaml")
    drawn = good.replace("turns: 3", "turns: {uniform: [1, 9]}")
    parse(drawn.replace("think: 2s}", "think: 2s, branches: {at: 8, count: 2}}"), "s.yaml")


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("attainment >= 200%", "it never holds: it lies between 0 and 1"),
        ("attainment <= 200%", "it always holds: it lies between 0 and 1"),
        ("attainment > 100%", "it never holds"),
        ("attainment != 1.5", "it always holds"),
        ("chat.ttft_sched.p90 < -5s", "it never holds: it is 0 or more"),
        ("chat.ttft_sched.p90 > -5s", "it always holds"),
        ("failed < 0", "it never holds"),
        ("failed == -1", "it never holds"),
        ("goodput < 0/s", "it never holds"),
        ("kv.usage_max > 1", "it never holds"),
    ],
)
def test_a_gate_that_decides_nothing_is_refused(good: str, gate: str, says: str) -> None:
    """Before the run, which would say that it passed, or failed, whatever was measured."""
    (found,) = errors(good.replace("attainment >= 90%", gate))
    assert found.startswith(f"s.yaml:24: gates.0: gate '{gate}': {says}")


@pytest.mark.parametrize(
    "gate",
    [
        *("attainment >= 100%", "attainment >= 0%", "failed == 0", "failed <= 0", "failed.share <= 1"),
        *("chat.send_lag.p50 < -1ms", "chat.slowdown.p50 > 5", "attainment regression > -5%"),
    ],
)
def test_a_gate_at_the_edge_of_what_can_be_is_let_in(gate: str) -> None:
    """It can fail, or it asks that there be a number; a lag and a change may be below 0."""
    assert inert_gate(parse_gate(gate, ("chat",))) is None


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            f"load.0.workload={LOAD.replace('turns: 3', 'turns: 10000').replace('user: 40', 'user: 1')}",
            "load.0.arrival: about 4.5e+08 requests, 1e+04 a session; at most 5,000,000 can be planned",
        ),
        (
            f"load.0.workload={LOAD.replace('2s}', '0s, branches: {at: 1, count: 1000}}')}",
            "load.0.arrival: about 9e+07 requests, 2e+03 a session",
        ),
        (
            "load.0={class: chat, arrival: {type: concurrency, users: 1000}, workload: "
            + LOAD.replace("turns: 3", "turns: 6000, context: 1000000000")
            + "}",
            "load.0.arrival: about 6e+06 requests, 6e+03 a session",
        ),
        ("faults.0.rate=20000000/s", "faults.0.rate: a burst of 40,000,000 requests; at most 5,000,000"),
    ],
)
def test_more_requests_than_a_plan_can_hold_are_refused(good: str, override: str, says: str) -> None:
    """All turns of all sessions count, and a burst too; else drawing them fills the memory."""
    many = "load.0.arrival={type: constant, rate: 1000/s}"
    found = errors(good, *([many] if "arrival" not in override else []), override)
    assert any(says in error for error in found), found


def test_sessions_that_a_context_ends_are_not_counted_in_full(good: str) -> None:
    """10,000 turns were asked for; nine fit."""
    most = LOAD.replace("turns: 3", "turns: 10000, context: 1000")
    parse(good, "s.yaml", ["load.0.arrival={type: constant, rate: 1000/s}", f"load.0.workload={most}"])


def test_drawn_numbers_count_by_their_mean() -> None:
    """Not by the largest that could be drawn: a long tail would refuse what is small."""
    assert mean(7) == 7
    assert mean(Uniform((10, 20))) == pytest.approx(15, rel=0.05)
    assert mean(Choices({"1": 0.9, "10000": 0.1})) == pytest.approx(1000.9, rel=0.5)
    assert 10 < mean(Lognormal(10, 60)) < 20
    assert 1 < mean(Pareto(1.5, 1, 10_000)) < 5
