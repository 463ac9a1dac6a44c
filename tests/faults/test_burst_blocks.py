"""A burst of a class that replays a trace: prefix blocks are shared as the class itself shares them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from faults.burst import Burst
from faults.conductor import edit
from loadgen.arrivals import Concurrency
from loadgen.demand import theoretical_hits
from loadgen.plan import Load, Part, Phases, Plan, Shot
from loadgen.workload import Fixed

RUSH = Burst("rush", "trace", at=4.0, for_=2.0, rate=5.0)
BLOCK = 16


def replay(*prompts: list[tuple[int, int]]) -> Plan:
    """One session a second for each list of block runs."""

    def shot(k: int, runs: list[tuple[int, int]]) -> Shot:
        tokens = BLOCK * sum(n for _, n in runs) - 3
        part = Part("user", tokens, "mooncake", blocks=tuple(runs), block_tokens=BLOCK)
        return Shot(k, "trace", "window", k, 0, (part,), tokens, 9, due_ns=k * 10**9)

    return Plan(tuple(shot(k, runs) for k, runs in enumerate(prompts)), Phases(window=30.0), 1)


def blocks_of(shot: Shot) -> list[int]:
    return [id for first, n in shot.prompt[0].blocks for id in range(first, first + n)]


def test_shared_leading_blocks_stay_and_the_rest_is_new() -> None:
    """What only one session has, also behind blocks that others have, no other request of the burst has."""
    base = replay([(0, 4), (10, 3)], [(0, 4), (20, 2)], [(0, 2), (30, 5), (21, 1)])
    added = edit([RUSH], base, seed=3).shots[3:]
    planned = {id for shot in base.shots for id in blocks_of(shot)}
    new: list[int] = []
    for shot in added:
        ids = blocks_of(shot)
        lead = 4 if ids[:4] == [0, 1, 2, 3] else 2
        assert ids[:lead] == list(range(lead))
        assert not set(ids[lead:]) & planned
        new += ids[lead:]
        assert sum(n for _, n in shot.prompt[0].blocks) == -(-shot.n_in_asked // BLOCK)
    assert len(new) == len(set(new)) > 0


runs = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(runs, min_size=2, max_size=8), st.integers(0, 99))
def test_no_request_of_a_burst_hits_more_than_blocks_that_sessions_share(
    prompts: list[list[tuple[int, int]]], seed: int
) -> None:
    """A burst repeats no prompt: an endless cache holds of it what several sessions of the class had."""
    base = replay(*prompts)
    edited = edit([RUSH], base, seed)
    assert edited.shots[: len(base.shots)] == base.shots
    sessions: dict[int, set[int]] = {}
    for shot in base.shots:
        for id in blocks_of(shot):
            sessions.setdefault(id, set()).add(shot.session)
    held = theoretical_hits(edited.shots)
    for shot in edited.shots[len(base.shots) :]:
        ids = blocks_of(shot)
        lead = next((k for k, id in enumerate(ids) if len(sessions.get(id, ())) < 2), len(ids))
        assert held[shot.id] <= lead * BLOCK


def test_a_burst_beside_a_closed_loop_does_not_wait() -> None:
    """Its requests are due by the clock, whoever else of the class waits for answers."""
    load = Load("trace", Concurrency(2, think=1.0), Fixed(20, 4))
    base = Plan.make([load], Phases(window=10.0), 1, slices=2)
    added = edit([RUSH], base, seed=1).shots[len(base.shots) :]
    assert len(added) == 10
    assert all(s.due_ns is not None and s.parent is None and not s.fresh for s in added)
    assert len({s.session for s in added} | {s.session for s in base.shots}) == 10 + len(base.shots)
