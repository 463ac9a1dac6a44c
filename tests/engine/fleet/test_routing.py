"""The choice of a worker (FLEET F21-F27, fleet cases C5 and C6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CostModel
from engine.fleet.router import ROUTINGS, Candidate, Overlap, Query, Setting, least_cost, terms_of

SETTING = Setting()
TEN_AND_A_HALF = 10 * 16 + 8


def switch(overlap: Overlap, decode: bool = False, setting: Setting = SETTING) -> float:
    """The backlog of the holder, in blocks, at which the request turns to the idle worker."""
    for quarter in range(4 * 30 + 1):
        backlog = quarter / 4
        holder = Candidate(
            0,
            prefill=0 if decode else round(backlog * 16),
            decode=round(backlog) if decode else 0,
            overlap=overlap,
        )
        if least_cost(Query(1, TEN_AND_A_HALF), [holder, Candidate(1)], setting).worker == 1:
            return backlog
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("overlap", "blocks"),
    [
        (Overlap(device=10), 10),
        (Overlap(host=10), 7.5),
        (Overlap(disk=10), 2.5),
        (Overlap(device=6, host=4), 9),
        (Overlap(), 0),
    ],
)
def test_the_holder_wins_while_its_wait_is_below_what_it_saves(overlap: Overlap, blocks: float) -> None:
    """The switch comes where the backlog equals the credit, within the tie of half a block (C6 c)."""
    assert blocks - 0.5 <= switch(overlap) <= blocks + 0.75


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_a_decode_backlog_switches_at_its_price(weight: float) -> None:
    """Decode blocks count a each, yet do not delay the first token (C6 c, F23)."""
    at = switch(Overlap(device=10), decode=True, setting=Setting(decode_weight=weight))
    assert abs(at - 10 / weight) <= 0.5 / weight + 0.5, "a tie of half a block, and whole blocks"
    idle, busy = (
        terms_of(Query(1, TEN_AND_A_HALF), Candidate(0, decode=blocks), SETTING, 10) for blocks in (0, 30)
    )
    assert idle.ttft == busy.ttft
    assert idle.cost < busy.cost


def test_unique_prompts_leave_the_busy_worker_alone() -> None:
    """50 requests wait on W0, W1 is idle and has a large index: all unique prompts go to W1 (C6 a)."""
    busy = Candidate(0, prefill=50 * 300, decode=50 * 20, requests=50)
    chosen = [least_cost(Query(id, 300), [busy, Candidate(1)], SETTING).worker for id in range(20)]
    assert chosen.count(1) >= 18


def test_one_hot_worker_does_not_turn_affinity_off() -> None:
    """W0 runs away; a request whose prefix is on W2 goes to W2 although W1 is as short (C6 b)."""
    fleet = [
        Candidate(0, prefill=200 * 100, requests=200),
        Candidate(1, prefill=5 * 100, requests=5),
        Candidate(2, prefill=5 * 100, requests=5, overlap=Overlap(device=10)),
    ]
    choice = least_cost(Query(1, 200), fleet, SETTING)
    assert (choice.worker, choice.reason, choice.predicted_hit) == (2, "overlap", 160)


@given(
    prompt=st.integers(1, 2000),
    device=st.integers(0, 200),
    backlog=st.integers(0, 4000),
    decode=st.integers(0, 200),
)
def test_a_backlog_of_the_whole_prompt_cannot_be_won_back(
    prompt: int, device: int, backlog: int, decode: int
) -> None:
    """Credit never exceeds P/B, so P/B blocks more backlog never win (F23)."""
    holder = Candidate(0, prefill=backlog + prompt + 16, decode=decode, overlap=Overlap(device=device))
    other = Candidate(1, prefill=backlog, decode=decode)
    assert least_cost(Query(1, prompt), [holder, other], SETTING).worker == 1


def test_the_last_token_is_never_credited() -> None:
    """A prompt of exactly ten blocks, all cached, can hit nine (E17)."""
    choice = least_cost(Query(1, 160), [Candidate(0, overlap=Overlap(device=10))], SETTING)
    assert choice.predicted_hit == 144
    assert choice.terms[0].new == 1


def test_a_deadline_that_the_winner_breaks_and_another_keeps_decides() -> None:
    """The cheapest that keeps the deadline wins, although the holder is cheaper (F23)."""
    cost = CostModel(a=0.0, b=0.001, c=0.1, d=0.0, g0=0.0, g1=0.0)
    setting = Setting(cost=cost)
    slow = Candidate(0, running=10, overlap=Overlap(device=10))
    fleet = [slow, Candidate(1), Candidate(2, prefill=64)]
    assert least_cost(Query(1, 168), fleet, setting).worker == 0
    hurried = least_cost(Query(1, 168, left=0.5), fleet, setting)
    assert (hurried.worker, hurried.reason) == (1, "escape")
    hopeless = least_cost(Query(1, 168, left=0.01), fleet, setting)
    assert hopeless.worker == 0, "nobody keeps it, so cost decides"


def test_ties_go_to_the_session_then_to_the_fewest_requests() -> None:
    """A session's last worker wins ties only (F24, F25, C5)."""
    fleet = [Candidate(0, requests=5), Candidate(1, requests=5), Candidate(2, requests=4)]
    assert least_cost(Query(1, 100, session=1), fleet, SETTING).worker == 1
    assert least_cost(Query(1, 100, session=1), fleet, SETTING).reason == "session"
    assert least_cost(Query(1, 100), fleet, SETTING).worker == 2
    loaded = [Candidate(0), Candidate(1, prefill=200)]
    assert least_cost(Query(1, 100, session=1), loaded, SETTING).worker == 0


def test_equal_workers_share_and_the_order_of_the_list_means_nothing() -> None:
    """A burst of ties spreads by a seeded hash: max/mean <= 1.5, the same for a reversed list (I23)."""
    fleet = [Candidate(worker) for worker in range(4)]
    chosen = [least_cost(Query(id, 100), fleet, SETTING).worker for id in range(200)]
    assert chosen == [least_cost(Query(id, 100), fleet[::-1], SETTING).worker for id in range(200)]
    assert max(chosen.count(worker) for worker in range(4)) / 50 <= 1.5
    other = Setting(seed=1)
    assert chosen != [least_cost(Query(id, 100), fleet, other).worker for id in range(200)]


def test_who_waits_for_a_worker_keeps_waiting_within_a_tie() -> None:
    """Costs that move by no more than half a block change no choice (F29)."""
    fleet = [Candidate(0, prefill=8), Candidate(1)]
    assert least_cost(Query(1, 100, waits_for=0), fleet, SETTING).worker == 0
    moved = [Candidate(0, prefill=9), Candidate(1)]
    assert least_cost(Query(1, 100, waits_for=0), moved, SETTING).worker == 1


def test_load_only_ignores_what_is_cached() -> None:
    """Its least cost counts the whole prompt as new everywhere."""
    fleet = [Candidate(0, prefill=32, overlap=Overlap(device=10)), Candidate(1)]
    choice = ROUTINGS["load_only"](Query(1, 168), fleet, SETTING)
    assert choice.worker == 1
    assert ROUTINGS["cost"](Query(1, 168), fleet, SETTING).worker == 0


def test_round_robin_takes_turns_over_who_is_there() -> None:
    """The next by number after the last chosen, wrapping round; a waiting request keeps its turn."""
    fleet = [Candidate(2), Candidate(0), Candidate(3)]
    turns = [
        ROUTINGS["round_robin"](Query(1, 10), fleet, Setting(last=last)).worker for last in (None, 0, 2, 3)
    ]
    assert turns == [0, 2, 3, 0]
    assert ROUTINGS["round_robin"](Query(1, 10, waits_for=3), fleet, Setting(last=0)).worker == 3


@pytest.mark.parametrize("policy", ROUTINGS)
def test_every_policy_names_the_only_worker_and_its_terms(policy: str) -> None:
    """One candidate is chosen by all, with the reason ``only`` and its terms recorded."""
    choice = ROUTINGS[policy](Query(1, 100), [Candidate(3, prefill=32)], SETTING)
    assert (choice.worker, choice.reason) == (3, "only")
    assert choice.terms[3].prefill == 2
