"""Who gives its blocks back, how it comes back, and when nobody may be made to (ENGINE E26, E27)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.config_io import config_from_dict
from engine.fleet.controls import changed, effective
from engine.plain import PlainError
from engine.request import Finish
from engine.sched import victims
from engine.sched.admission import ADMISSIONS
from engine.sched.capacity import LIFETIME_AFTER
from engine.sched.controls import apply_changes
from engine.sched.sequence import State

POLICIES = tuple(ADMISSIONS)


def preempted(b, **labels):
    return b.count("preemptions_total", **(labels or {"cause": "memory"}))


class TestVictim:
    """The order in which running requests would have to go."""

    def running(self, b, *shapes):
        """(rank, prompt) each, admitted in this order, all their prompts computed."""
        ids = [b.submit(length, 40, rank=rank) for rank, length in shapes]
        b.step()
        return [b.worker.scheduler.running[id, 0] for id in ids]

    def test_order(self, bench):
        """Lowest class, then fewest tokens to recompute, then last admitted."""
        b = bench(blocks=100, budget=200, policy="prompt")
        first, short, long, last, urgent = self.running(b, (1, 12), (1, 8), (1, 30), (1, 8), (0, 4))
        gone = []
        while (victim := victims.choose(b.worker.scheduler.running.values(), gone)) is not None:
            gone.append(victim)
        assert gone == [last, short, first, long, urgent]

    def test_only_a_lower_class(self, bench):
        """For an urgent candidate nobody of its own class or above may be made to go."""
        b = bench(blocks=100, budget=200)
        self.running(b, (1, 12), (0, 8))
        running = b.worker.scheduler.running.values()
        assert victims.choose(running, (), above=1) is None
        assert victims.choose(running, (), above=0).request.rank == 1

    def test_a_scheduled_victim_returns_its_budget(self, bench):
        """It had its row in the step already; the token goes to who would have got none."""
        b = bench(blocks=9, policy="prompt")
        b.send(m.Configure({"kv_headroom": 0.0}))
        victim, *others = b.submit(7, 20), b.submit(12, 20), b.submit(16, 20)
        b.step()
        b.send(m.Configure({"max_step_tokens": 2}))
        plan = b.step()
        assert b.worker.scheduler.waiting.keys() == {(victim, 0)}
        assert [row.id for row in plan.rows] == others
        b.run()
        b.drained()


class TestComingBack:
    """A victim goes to the front of its class and comes back when there is room for it."""

    def test_front_of_its_class(self, bench):
        """Behind the more urgent ones, before its own class."""
        b = bench(blocks=16, policy="prompt", budget=64)
        a, victim = b.submit(24, 30, rank=0), b.submit(24, 30, rank=1)
        b.step()
        waiting = [b.submit(40, 4, rank=rank) for rank in (1, 0, 2)]
        while not preempted(b):
            b.step()
        assert [id for id, _ in b.worker.scheduler.waiting] == [waiting[1], victim, waiting[0], waiting[2]]
        b.run()
        assert b.done[a].truth.preemptions == 0
        b.drained()

    def test_only_with_room_for_all_it_has(self, bench):
        """It resumes when its tokens so far fit, not when one block is free."""
        b = bench(blocks=8, policy="prompt", budget=64)
        stays, victim = b.submit(12, 20), b.submit(8, 20)
        while not preempted(b):
            b.step()
        sequence = b.worker.scheduler.waiting[victim, 0]
        while sequence.state is State.WAITING:
            need = -(-len(sequence.tokens) // 4)
            free = b.worker.pool.free
            b.step()
            if free < need:
                assert sequence.state is State.WAITING
        assert stays in b.done
        b.run()
        b.drained()

    def test_after_three_preemptions_under_lifetime(self, bench):
        """Its prompt would fit beside the other; its whole life would not, so it waits."""
        b = bench(blocks=20, policy="prompt", budget=64)
        other = b.submit(20, 40)
        b.step()
        id = b.submit(8, 40)
        sequence = b.worker.scheduler.waiting[id, 0]
        sequence.truth.preemptions = LIFETIME_AFTER
        b.step()
        assert sequence.state is State.WAITING
        sequence.truth.preemptions = LIFETIME_AFTER - 1
        b.step()
        assert sequence.state is State.RUNNING
        b.run()
        assert other in b.done
        b.drained()

    def test_fenced_blocks_are_no_reason_for_a_victim(self, bench):
        """Blocks that come free with the step under way are waited for."""
        b = bench(blocks=12, policy="prompt")
        ids = [b.submit(11, 5), b.submit(12, 4), b.submit(12, 4)]
        b.step()
        pool = b.worker.pool
        pool.release(pool.allocate(3, b.now), b.now, fence=1)  # as if a copy of step 1 still wrote them
        plan = b.step()
        assert [row.id for row in plan.rows] == ids[:1]
        assert preempted(b) == 0
        b.run()
        assert preempted(b) == 0
        b.drained()

    def test_one_is_always_kept(self, bench):
        """Alone in a pool that a fault has shrunk, a request ends with length, under every policy."""
        for policy in POLICIES:
            b = bench(blocks=8, policy=policy)
            id = b.submit(8, 24)
            b.step()
            b.send(m.Ballast(5))
            b.run()
            assert b.done[id].reason is Finish.LENGTH
            assert preempted(b) == 0
            b.send(m.Ballast(0))
            b.drained()


def test_a_preemption_corrects_the_estimate(bench):
    """Who let in too many by a small rho takes what has really been generated, and sinks from there."""
    b = bench(blocks=16, policy="estimate")
    outlook = b.worker.scheduler.outlook
    outlook.ratio = 0.098
    ids = [b.submit(8, 24), b.submit(8, 24), b.submit(8, 24)]
    while not preempted(b):
        assert outlook.ratio == pytest.approx(0.098)
        b.step()
    stay = [s.generated for s in b.worker.scheduler.running.values()]
    assert outlook.ratio == pytest.approx(
        min(1.0, sum(out + 20 for out in stay) / (24 * len(stay))), abs=0.05
    )
    b.run()
    assert {b.done[id].truth.generated for id in ids} == {24}
    b.send(m.Configure({"admission": "prompt"}))
    b.send(m.Configure({"admission": "estimate"}))
    assert outlook.ratio == 0.7
    b.drained()


class TestPriority:
    """With priority_preemption an urgent request takes what lower classes hold."""

    def full(self, bench, **more):
        """Bulk requests hold 12 of 16 blocks, or all that their policy gives them."""
        b = bench(blocks=16, budget=64, **more)
        b.send(m.Configure({"priority_preemption": True, "kv_headroom": 0.0}))
        bulk = [b.submit(length, 4, rank=2) for length in (16, 12, 20)]
        b.step()
        return b, bulk

    @pytest.mark.parametrize("policy", POLICIES)
    def test_gets_in_at_once(self, bench, policy):
        """The cheapest of the lowest class goes, the urgent one is computed in that very step."""
        b, bulk = self.full(bench, policy=policy)
        urgent = b.submit(20, 4)
        b.step()
        assert urgent in b.steps_of
        assert preempted(b, cause="priority") >= 1
        assert b.worker.scheduler.waiting[bulk[1], 0].truth.preemptions == 1
        b.run()
        assert all(b.done[id].truth.generated == 4 for id in (*bulk, urgent))
        b.drained()

    def test_not_from_its_own_class(self, bench):
        """Its own class and those above it keep what they have."""
        b, _ = self.full(bench)
        same = b.submit(12, 4, rank=2)
        b.step()
        assert same not in b.steps_of
        assert preempted(b, cause="priority") == 0
        b.run()
        b.drained()

    def test_nobody_in_vain(self, bench):
        """If all that the lower classes hold is too little, they keep it."""
        b = bench(blocks=16, budget=64)
        b.send(m.Configure({"priority_preemption": True}))
        b.submit(36, 4, rank=0)
        b.submit(12, 4, rank=2)
        b.step()
        urgent = b.submit(40, 4, rank=1)
        b.step()
        assert urgent not in b.steps_of
        assert preempted(b, cause="priority") == 0
        b.run()
        b.drained()

    def test_nobody_for_want_of_an_adapter(self, bench):
        """Room would not help it: the one place for an adapter is taken by a more urgent request."""
        b = bench(blocks=16, budget=64, max_adapters=1, priority_preemption=True)
        for name in ("x", "y"):
            b.send(m.LoadAdapter(name, f"/{name}"))
        b.submit(16, 20, rank=0, adapter="x", root=b.root(adapter="x"))
        b.submit(20, 4, rank=2)
        b.step()
        urgent = b.submit(16, 4, rank=1, adapter="y", root=b.root(adapter="y"))
        b.step()
        assert urgent not in b.steps_of
        assert preempted(b, cause="priority") == 0
        b.run()
        b.drained()

    def test_says_nothing_about_estimates(self, bench):
        """Only who ran out of memory was let in by an estimate that was wrong: rho stays as it is."""
        b, _ = self.full(bench, policy="estimate")
        b.submit(20, 4)
        b.step()
        assert preempted(b, cause="priority")
        assert b.worker.scheduler.outlook.ratio < 0.7

    def test_takes_a_place(self, bench):
        """A batch that is full of lower classes makes room too."""
        b = bench(blocks=64, budget=64, max_running=2)
        b.send(m.Configure({"priority_preemption": True}))
        bulk = [b.submit(8, 10, rank=1) for _ in range(2)]
        b.step()
        urgent = b.submit(8, 2)
        b.step()
        assert urgent in b.steps_of
        b.run()
        assert b.done[bulk[1]].truth.preemptions == 1
        b.drained()

    def test_passes_a_lower_class_that_waits(self, bench):
        """It would take the blocks of those who run; it passes those of its victims' class who wait."""
        b, _ = self.full(bench)
        behind = b.submit(16, 4, rank=2)
        urgent = b.submit(12, 4)
        b.step()
        assert urgent in b.steps_of
        assert behind not in b.steps_of
        b.run()
        b.drained()

    def test_off_by_default(self, bench):
        """Without it an urgent request waits."""
        b, _ = self.full(bench)
        b.send(m.Configure({"priority_preemption": False}))
        urgent = b.submit(12, 4)
        b.step()
        assert urgent not in b.steps_of
        b.run()
        b.drained()


class TestNone:
    """``preemption: none`` needs ``lifetime``."""

    def test_refused_at_start(self):
        """Any other policy would let requests in that it could not finish; the message names both keys."""
        words = "preemption: none takes no blocks back, which needs admission.policy lifetime, not prompt"
        with pytest.raises(PlainError) as refused:
            config_from_dict({"preemption": "none", "admission": {"policy": "prompt"}})
        assert str(refused.value) == words
        assert config_from_dict({"preemption": "none"}).preemption == "none"
        with pytest.raises(PlainError, match="no priority_preemption"):
            config_from_dict({"preemption": "none", "priority_preemption": True})

    def test_refused_between_steps(self):
        """Neither of the two can be changed alone into the pair; both together can be changed out of it."""
        config = config_from_dict({"preemption": "none"})
        with pytest.raises(ValueError, match=r"preemption: none .* not peak"):
            changed(config, {"admission": "peak"})
        with pytest.raises(ValueError, match=r"preemption: none .* not estimate"):
            changed(config_from_dict({"admission": {"policy": "estimate"}}), {"preemption": "none"})
        after, told = changed(config, {"admission.policy": "peak", "preemption": "recompute"})
        assert (after.admission.policy, after.preemption) == ("peak", "recompute")
        assert told == {"admission.policy": "peak", "preemption": "recompute"}

    def test_whom_another_policy_let_in_can_still_be_preempted(self, bench):
        """Requests that prompts let in were promised nothing: after a change to lifetime and none they end
        all the same."""
        b = bench(blocks=12, policy="prompt", budget=64)
        ids = [b.submit(16, 24), b.submit(16, 24)]
        b.step()
        b.send(m.Configure({"admission": "lifetime", "preemption": "none"}))
        assert b.worker.config.preemption == "none"
        b.run()
        assert [b.done[id].truth.generated for id in ids] == [24, 24]
        assert preempted(b) == 1
        b.drained()


def test_controls_of_admission_and_preemption():
    """Each is readable and changeable under its name and its place; wrong values are named."""
    config = config_from_dict({})
    changes = {
        "busy_ratio": 0.5,
        "admission.backfill": False,
        "priority_preemption": True,
        "aging": 3.0,
        "long_prefill_cap": 64,
    }
    after = apply_changes(config, changes)
    assert (after.admission.busy_ratio, after.admission.backfill) == (0.5, False)
    assert (after.priority_preemption, after.queue.aging) == (True, 3.0)
    shown = effective(after)
    assert shown["queue.aging"] == 3.0
    assert shown["priority_preemption"] is True
    wrong = {"busy_ratio": 2, "backfill": 1, "aging": 0, "admission": "whim", "preemption": None}
    with pytest.raises(ValueError, match=r"busy_ratio = 2.*backfill = 1.*aging = 0.*whim.*preemption = None"):
        apply_changes(config, wrong)


_REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 20),  # out_max
        st.integers(0, 2),  # rank
        st.integers(0, 2),  # whose prefix
        st.integers(1, 3),  # choices
        st.integers(0, 6),  # steps before the next one comes
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(
    requests=_REQUESTS,
    policy=st.sampled_from(POLICIES),
    blocks=st.sampled_from([26, 30, 40]),
    budget=st.sampled_from([7, 24, 200]),
    urgent=st.booleans(),
    backfill=st.booleans(),
)
def test_everybody_ends(bench, requests, policy, blocks, budget, urgent, backfill):
    """Under every policy each request ends within a number of steps that its tokens allow for, all blocks
    come back, and ``lifetime`` never preempts for memory."""
    b = bench(blocks=blocks, budget=budget, policy=policy)
    b.send(m.Configure({"priority_preemption": urgent, "backfill": backfill}))
    ids, bound = [], 0
    for length, out_max, rank, family, n, wait in requests:
        n = n if 8 + n * 8 < blocks else 1
        tokens = [family * 100 + index for index in range(length)]
        ids.append(b.submit(tokens, out_max, rank=rank, n=n))
        bound += length + n * out_max
        for _ in range(wait):
            b.step()
    b.run(20 * bound)
    for id, (_, out_max, *_) in zip(ids, requests, strict=True):
        assert b.done[id].reason is Finish.LENGTH
        assert len(b.output[id]) == out_max
    if policy == "lifetime":
        assert preempted(b) == 0
    b.drained()
