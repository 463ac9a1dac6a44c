"""Admission over many steps: nobody is computed over and over, nobody waits for ever, and looking for room
costs the same however many wait (ENGINE E20 to E24; cases C1, C11, C12)."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.kv.prefix_cache import PrefixCache
from engine.request import Finish, Sampling
from engine.sched.admission import ADMISSIONS
from engine.sched.capacity import Capacity
from engine.sched.rates import ENOUGH_OUTPUTS

POLICIES = tuple(ADMISSIONS)


@pytest.mark.parametrize("policy", POLICIES)
class TestC1:
    """Whatever the policy: never a spin, never an assertion."""

    def test_what_cannot_be_served_ends_with_the_numbers(self, bench, policy):
        """Too many choices and too long a prompt are ended by the worker itself; the next one is served."""
        b = bench(blocks=4, policy=policy)
        wide, long, small = b.submit(8, 4, n=4), b.submit(40, 4), b.submit(4, 4)
        assert "12 tokens in each of 4 choices need 6 blocks of 4, 4 are usable" in b.done[wide].error
        assert "44 tokens need 11 blocks of 4, 4 are usable" in b.done[long].error
        b.run(20)
        assert b.done[small].reason is Finish.LENGTH
        b.drained()

    @pytest.mark.parametrize(
        ("length", "out_max", "n"), [(15, 1, 1), (1, 15, 1), (8, 4, 2), (9, 3, 2), (1, 7, 2)]
    )
    def test_what_fits_alone_is_served(self, bench, policy, length, out_max, n):
        """With all four blocks in its life, also behind others."""
        b = bench(blocks=4, policy=policy)
        ids = [b.submit(4, 4), b.submit(length, out_max, n=n), b.submit(4, 4)]
        b.run(100)
        assert {b.done[id].reason for id in ids} == {Finish.LENGTH}
        assert b.done[ids[1]].truth.generated == n * out_max
        b.drained()


class TestC11:
    """Prompts that fill the pool are not computed over and over."""

    def computed(self, b, prompts, out_max):
        ids = []
        for length in prompts:
            ids.append(b.submit(length, out_max))
            while len(b.worker.scheduler.waiting) > 1:  # the rest waits at the gateway
                b.step()
        b.run()
        b.drained()
        truths = [b.done[id].truth for id in ids]
        return sum(t.computed + t.recomputed for t in truths), sum(t.preemptions for t in truths)

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.integers(140, 190), min_size=3, max_size=8),
        st.integers(1, 8),
        st.sampled_from([16, 32, 64]),
    )
    def test_prompt(self, bench, prompts, out_max, budget):
        """With ``prompt``, where two prompts fill the pool, at most a fifth is computed twice."""
        b = bench(blocks=100, budget=budget, cache=False, policy="prompt")
        computed, preemptions = self.computed(b, prompts, out_max)
        assert computed <= 1.2 * sum(prompts)
        assert preemptions <= len(prompts)

    @settings(max_examples=20, deadline=None)
    @given(
        st.lists(st.integers(100, 200), min_size=3, max_size=8),
        st.integers(1, 60),
        st.sampled_from([16, 32, 64]),
    )
    def test_lifetime(self, bench, prompts, out_max, budget):
        """With ``lifetime`` nothing is, whatever the answers."""
        b = bench(blocks=100, budget=budget, cache=False)
        assert self.computed(b, prompts, out_max) == (sum(prompts), 0)


@settings(max_examples=40, deadline=None)
@given(
    budget=st.integers(2, 40),
    share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    decoders=st.integers(1, 30),
    arriving=st.integers(1, 40),
)
def test_no_decoder_starves(bench, budget, share, decoders, arriving):
    """E21: while a prompt arrives in every step, a decoder's gap is at most ceil(decoders / share) + 1."""
    b = bench(blocks=3000, budget=budget, min_prefill_share=share, max_running=200)
    ids = [b.submit(1, 60) for _ in range(decoders)]
    while not all(id in b.output for id in ids):
        b.step()
    most = 0
    for _ in range(40):
        b.submit(arriving, 1)
        b.step()
        running = b.worker.scheduler.running.values()
        most = max(most, sum(sequence.decoding for sequence in running))
    rows = max(1, budget - ceil(share * budget))
    for id in ids:
        gaps = [after - before for before, after in pairwise(b.steps_of[id])]
        assert max(gaps, default=0) <= ceil(most / rows) + 1


class TestTheOneCheck:
    def test_allocator_has_the_last_word(self, bench):
        """Blocks that a copy still writes count for ``peak`` and cannot be had: back to the queue, counted,
        and admitted when they are there (E24)."""
        b = bench(blocks=12, policy="peak")
        b.submit(11, 5)
        b.step()
        pool = b.worker.pool
        pool.release(pool.allocate(7, b.now), b.now, fence=1)
        id = b.submit(12, 1)
        b.step()
        assert id not in b.steps_of
        assert b.count("allocation_failures_total") == 1
        b.step()
        assert id in b.steps_of
        b.run()
        b.drained()

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("backfill", [False, True])
    def test_cost_does_not_grow_with_the_queue(self, bench, monkeypatch, policy, backfill):
        """A step looks for room as often with 100 waiting as with 20."""
        attempts, fits = [], Capacity.fits

        def counting(self, sequence, running):
            attempts.append(sequence)
            return fits(self, sequence, running)

        monkeypatch.setattr(Capacity, "fits", counting)
        counts = []
        for waiting in (20, 100):
            b = bench(blocks=300, policy=policy)
            b.worker._backlog_full = lambda sequence: False
            b.send(m.Configure({"backfill": backfill}))
            b.submit(800, 100)
            for _ in range(20):
                b.step()
            for _ in range(waiting):
                b.submit(600, 100)
            attempts.clear()
            b.step()
            counts.append(len(attempts))
        assert counts[0] == counts[1] <= (9 if backfill else 1)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_waiting_prompt_is_looked_up_once(self, bench, monkeypatch, tokens, policy):
        """Its prefix is looked for anew when somebody has gone or its next block was computed, not in each
        step, however long it is."""
        b = bench(blocks=60, policy=policy, budget=16)
        lookups, match = [], PrefixCache.match

        def counting(self, *more):
            lookups.append(more)
            return match(self, *more)

        b.submit(tokens(120), 30)
        for _ in range(5):
            b.step()
        id = b.submit([*tokens(40), *tokens(160, seed=1)], 30)
        monkeypatch.setattr(PrefixCache, "match", counting)
        b.step()
        lookups.clear()
        for _ in range(3):
            b.step()
        assert id not in b.steps_of
        assert len(lookups) <= 1
        b.run()
        assert b.done[id].truth.hit_device == 40
        b.drained()

    def test_a_prefix_that_is_being_computed_is_noticed(self, bench, tokens):
        """It waits for room; once the other has computed what both begin with, it needs less and fits."""
        b = bench(blocks=60, policy="prompt", budget=32, chunk=16)
        b.submit(tokens(120), 30)
        b.step()
        id = b.submit([*tokens(80), *tokens(60, seed=1)], 4)
        while id not in b.steps_of:
            b.step()
        assert b.worker.scheduler.running
        assert b.done == {}
        b.run()
        assert b.done[id].truth.hit_device >= 4 * (35 - 29)
        b.drained()

    def test_expectations_are_learned_from_answers(self, bench):
        """Twenty answers that stop early, and ``peak`` lets two in where it had let in one; cancelled ones
        teach nothing."""
        b = bench(blocks=16, policy="peak")
        endless = Sampling()

        def together():
            ids = [b.submit(8, 40, sampling=endless) for _ in range(2)]
            b.step()
            running = len(b.worker.scheduler.running)
            for id in ids:
                b.cancel(id)
            return running

        assert together() == 1
        for reason in (Finish.CANCELLED, Finish.STOP):
            for _ in range(ENOUGH_OUTPUTS):
                id = b.submit(8, 40, sampling=endless)
                b.step()
                b.step()
                b.cancel(id, reason)
            assert together() == (1 if reason is Finish.CANCELLED else 2)
        b.run()
        b.drained()
