"""Users who wait: how a closed loop is planned before anyone knows how fast the target is."""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Concurrency, Poisson
from loadgen.demand import CLOSED_LOOP, demand, planned_arrivals
from loadgen.load import LEAST_REQUEST_S
from loadgen.plan import Load, Opening, Part, Phases, Plan, Shot, Turn
from loadgen.planning import last_of_users
from loadgen.workload import Fixed

S = 10**9


class Chats:
    """Sessions of ``turns`` turns, each thought about for 1 s; every other one sends a sub-agent last."""

    def __init__(self, turns: int, subagent: bool = False) -> None:
        self._turns, self._subagent = turns, subagent

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        prompt = (Part("user", 10, f"{opening.key}/u{opening.index}"),)
        own = [Turn(prompt, 5, S if k else None) for k in range(self._turns)]
        agent = [Turn(prompt, 5, lineage=1, parent=self._turns - 1)] if self._subagent else []
        return (*own, *agent)


def users_of(plan: Plan) -> list[list[Shot]]:
    """The shots of each user, in order, by following parents to the first one."""
    users: dict[int, list[Shot]] = defaultdict(list)
    root: dict[int, int] = {}
    for shot in plan.shots:
        root[shot.id] = shot.id if shot.parent is None else root[shot.parent]
        users[root[shot.id]].append(shot)
    return list(users.values())


def test_a_user_begins_the_next_session_after_the_end_of_the_one_before() -> None:
    """First turns: due by the ramp, then `think` after the last turn of the session before, whatever came
    of it; each session has its number and its text, and all of a user's are on one load process."""
    load = Load("c", Concurrency(3, think=2.0, ramp_up=6.0, requests=8), Chats(turns=2))
    plan = Plan.make([load], Phases(window=60.0), 7, slices=2)
    users = users_of(plan)
    assert [user[0].due_ns for user in users] == [0, 2 * S, 4 * S]
    for k, user in enumerate(users):
        assert len(user) == 8
        assert {shot.slice for shot in user} == {k % 2}
        assert [shot.turn for shot in user] == [0, 1] * 4
        for before, shot in pairwise(user):
            assert (shot.due_ns, shot.parent) == (None, before.id)
            assert shot.fresh == (shot.turn == 0)
            assert shot.after_ns == (2 * S if shot.fresh else S)
            assert (shot.session == before.session) == (not shot.fresh)
    texts = {shot.prompt[0].text_key for shot in plan.shots}
    assert len(texts) == len({shot.session for shot in plan.shots}) == 12


def test_a_session_that_was_begun_is_planned_whole() -> None:
    """`requests` says after how many no new one begins."""
    load = Load("c", Concurrency(2, requests=4), Chats(turns=3))
    assert [len(user) for user in users_of(Plan.make([load], Phases(window=9.0), 1))] == [6, 6]
    once = Load("c", Concurrency(2, requests=1), Chats(turns=3))
    assert [len(user) for user in users_of(Plan.make([once], Phases(window=9.0), 1))] == [3, 3]


def test_without_a_number_enough_is_planned_for_a_fast_target() -> None:
    """As many sessions as fit into the load if every request took only 50 ms, think times beside."""
    load = Load("c", Concurrency(2, think=0.5, ramp_up=10.0), Chats(turns=2))
    plan = Plan.make([load], Phases(window=9.0, warmup=1.0), 1)
    each = 2 * LEAST_REQUEST_S + 1.0 + 0.5
    sessions = [sum(shot.turn == 0 for shot in user) for user in users_of(plan)]
    assert sessions == [int(10.0 // each) + 1, int(5.0 // each) + 1]
    assert demand(plan)["c"].reason == CLOSED_LOOP


def test_the_next_session_does_not_wait_for_a_sub_agent() -> None:
    """The user waits for the session itself; its sub-agent has a session number and may go on."""
    load = Load("c", Concurrency(1, requests=9), Chats(turns=2, subagent=True))
    plan = Plan.make([load], Phases(window=60.0), 1)
    assert [(s.session, s.turn, s.parent, s.fresh) for s in plan.shots[:6]] == [
        (0, 0, None, False),
        (0, 1, 0, False),
        (1, 0, 1, False),
        (2, 0, 1, True),
        (2, 1, 3, False),
        (3, 0, 4, False),
    ]
    assert last_of_users(plan.shots) == {7}


def test_a_class_may_have_users_who_wait_beside_those_who_do_not() -> None:
    """Open arrivals are drawn as if the closed loop were not there; both have their own sessions."""
    phases = Phases(window=20.0)
    open_loop = Load("chat", Poisson(2.0), Fixed(8, 4))
    closed = Load("batch", Concurrency(4, think=1.0), Fixed(50, 9))
    alone, both = (Plan.make(loads, phases, 3) for loads in ([open_loop], [open_loop, closed]))
    assert (open_loop.closed, closed.closed) == (False, True)
    due = [shot.due_ns for shot in both.shots if shot.class_ == "chat"]
    assert due == [shot.due_ns for shot in alone.shots]
    wants = demand(both)
    assert wants["batch"].requests_s is wants["batch"].prefill_tokens_s is None
    assert wants["chat"].requests_s == len(alone.shots) / 20
    facts = planned_arrivals(both)
    assert facts["batch"].n == 4  # only the users' first requests have a due time
    assert facts["chat"].n == len(alone.shots)


@settings(max_examples=60, deadline=None)
@given(
    users=st.integers(1, 9),
    think=st.floats(0.0, 3.0),
    ramp_up=st.floats(0.0, 8.0),
    requests=st.none() | st.integers(1, 30),
    turns=st.integers(1, 4),
    subagent=st.booleans(),
    slices=st.integers(1, 8),
)
def test_any_closed_loop_is_one_chain_a_user(
    users: int,
    think: float,
    ramp_up: float,
    requests: int | None,
    turns: int,
    subagent: bool,
    slices: int,
) -> None:
    """Ids are dense, parents precede, nobody waits for two, nobody stays without a due time or a parent;
    as many last requests as users."""
    load = Load("c", Concurrency(users, think, ramp_up, requests), Chats(turns, subagent))
    plan = Plan.make([load], Phases(window=6.0, warmup=1.0), 5, slices)
    assert [shot.id for shot in plan.shots] == list(range(len(plan.shots)))
    for shot in plan.shots:
        assert (shot.due_ns is None) == (shot.after_ns is not None) == (shot.parent is not None)
        assert shot.parent is None or shot.parent < shot.id
        if shot.parent is not None:
            assert shot.slice == plan.shots[shot.parent].slice
    chains = users_of(plan)
    starting = sum(user * ramp_up / users < 7.0 for user in range(users))
    assert len(chains) == starting
    more_than_one = sum(any(shot.fresh for shot in chain) for chain in chains)
    assert len(last_of_users(plan.shots)) == more_than_one
    assert plan.digest == Plan.make([load], Phases(window=6.0, warmup=1.0), 5).digest


@pytest.mark.parametrize(("latency", "think"), [(0.05, 0.0), (0.4, 0.0), (0.4, 1.1)])
def test_the_rate_is_the_targets(latency: float, think: float) -> None:
    """Played on a target that takes a fixed time, n users send n / (latency + think) requests/s, and no
    user comes to the end of what was planned."""
    load = Load("c", Concurrency(5, think), Fixed(8, 4))
    plan = Plan.make([load], Phases(window=30.0), 1)
    followers = {shot.parent: shot for shot in plan.shots if shot.parent is not None}
    waiting = [(shot.due_ns / S, shot.id) for shot in plan.shots if shot.due_ns is not None]
    heapq.heapify(waiting)
    sent: set[int] = set()
    while waiting:
        start, id = heapq.heappop(waiting)
        sent.add(id)
        later = followers.get(id)
        if later is not None and (due := start + latency + (later.after_ns or 0) / S) < 30.0 - 1e-9:
            heapq.heappush(waiting, (due, later.id))
    assert len(sent) == pytest.approx(5 * 30.0 / (latency + think), abs=5)
    assert latency == LEAST_REQUEST_S or not sent & last_of_users(plan.shots)
