"""The engine cases that need only the core: small reproductions of public bug reports.

Where each case of the list is tested, with its variants:

| case | here | elsewhere |
|---|---|---|
| C1 larger than the pool | TestC1 (a-f) | test_must_hold (HTTP) |
| C2 grows to the pool alone | TestC2 | |
| C3 cancel against finish | TestC3 (a-f), random interleavings | test_worker_stateful (10,000 lives) |
| C5 sharing inside one step | TestC5 | test_mutations |
| C7 namespaces | TestC7 | fleet/test_engine_cases (adapter reload), api tests (reasons not shown) |
| C8 digests | TestC8 | test_mutations |
| C9 full-prompt hit | TestC9 | |
| C11 long prompts | TestC11 | |
| C12 starvation | TestC12 | |
| C14 queue bounds, C15 deadlines, C19 health | | fleet/test_engine_cases |
| C21 UTF-8 and stop strings | | api/test_output_text, fleet/test_engine_cases (e) |
| C24 soak | | engine/test_soak |

C16 and C18 are the fleet's.
"""

from __future__ import annotations

import random
from array import array
from itertools import pairwise
from math import ceil

import pytest

from engine import messages as m
from engine.config import AdmissionConfig, ClassConfig
from engine.kv.blocks import block_digests, namespace_root
from engine.request import Finish, MissReason
from engine.sched.admission import ADMISSIONS, GateRefused, gate


def reasons(done):
    return [(miss.reason, miss.tokens) for miss in done.truth.misses]


class TestC1LargerThanThePool:
    LIMITS = (64, 4, 4)

    def gate(self, prompt, max_tokens, over_length="reject", n=1, **class_):
        limits = AdmissionConfig(over_length=over_length)
        return gate(prompt, max_tokens, ClassConfig(**class_), limits, *self.LIMITS, n)

    def test_refused_naming_both_numbers(self):
        """A request that can never fit is refused at submit with needed and usable blocks."""
        with pytest.raises(GateRefused, match=r"11 blocks of 4, 4 are usable"):
            self.gate(40, 4)

    def test_over_length(self):
        """A given max_tokens beyond the context is refused, or cut when clamping is on."""
        with pytest.raises(GateRefused, match="max_tokens 8 is more than the 4"):
            self.gate(12, 8)
        assert self.gate(12, 8, "clamp") == 4

    def test_exactly_the_pool(self):
        """A prompt of N*B tokens leaves no room for a token; one less is served."""
        with pytest.raises(GateRefused):
            self.gate(16, 1)
        assert self.gate(15, 1) == 1

    def test_default_output_is_cut(self):
        """Without max_tokens the class default is cut to what fits, and that is no error."""
        assert self.gate(12, None) == 4

    def test_class_limits(self):
        """Class limits on input, output and total hold too."""
        with pytest.raises(GateRefused, match="takes at most 3"):
            self.gate(4, 1, max_input=3)
        with pytest.raises(GateRefused, match="context 16, class output limit 2; 7 tokens need 2 blocks"):
            self.gate(4, 3, max_output=2)
        assert self.gate(4, 3, "clamp", max_output=2) == 2
        assert self.gate(4, None, max_output=2) == 2
        assert self.gate(4, None, max_total=7) == 3
        with pytest.raises(GateRefused, match="takes 4 with the output"):
            self.gate(4, None, max_total=4)

    @pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 4), (4, 0), (4, -1)])
    def test_nonsense(self, prompt, max_tokens):
        """An empty prompt or a max_tokens below 1 is refused, not an assertion."""
        with pytest.raises(GateRefused):
            self.gate(prompt, max_tokens)

    def test_choices_count_together(self):
        """Four choices of 8 + 4 tokens need 2 + 4 * 1 = 6 blocks and are refused at once; two fit."""
        with pytest.raises(GateRefused, match="need 6 blocks of 4, 4 are usable"):
            self.gate(8, 4, n=4)
        assert self.gate(8, 4, n=2) == 4

    @pytest.mark.parametrize("policy", ADMISSIONS)
    def test_choices_that_the_gate_let_through(self, bench, policy):
        """The worker ends them with the numbers and serves the next, and two that fit."""
        b = bench(blocks=4, policy=policy)
        four = b.submit(8, 4, n=4)
        assert "need 6 blocks of 4, 4 are usable" in b.done[four].error
        two = b.serve(8, 4, n=2)
        assert (two.reason, two.truth.generated, two.truth.blocks_peak) == (Finish.LENGTH, 8, 4)
        b.drained()

    @pytest.mark.parametrize("policy", ADMISSIONS)
    def test_worker_refuses_what_the_gate_let_through(self, bench, policy):
        """The worker itself ends an impossible request with numbers, runs no step, and serves the next."""
        b = bench(blocks=4, policy=policy)
        big = b.submit(40, 4)
        small = b.submit(4, 4)
        assert "11 blocks of 4, 4 are usable" in b.done[big].error
        b.run()
        assert b.done[small].reason is Finish.LENGTH
        assert big not in b.steps_of
        assert b.worker.hello().blocks == 4
        b.drained()

    @pytest.mark.parametrize("policy", ADMISSIONS)
    def test_fills_the_pool(self, bench, policy):
        """A request that needs every block is served alone, whatever the policy estimates."""
        b = bench(blocks=4, policy=policy)
        done = b.serve(15, 1)
        assert (done.reason, done.truth.generated, done.truth.blocks_peak) == (Finish.LENGTH, 1, 4)
        b.drained()


class TestC2GrowsToThePool:
    def both(self, b):
        first = b.submit(8, 24)  # 100 clamped to 32 - 8
        b.step()
        second = b.submit(20, 4)
        b.run()
        assert b.done[first].reason is b.done[second].reason is Finish.LENGTH
        assert b.done[first].truth.generated == 24
        b.drained()
        return [b.done[id].truth.preemptions for id in (first, second)]

    @pytest.mark.parametrize("policy", ADMISSIONS)
    def test_no_ping_pong(self, bench, policy):
        """Two requests that do not fit together preempt each other at most twice, and both complete."""
        assert sum(self.both(bench(blocks=8, budget=12, policy=policy))) <= 2

    def test_two_that_give_way_do_not_pass_in_turn(self, bench):
        """An urgent request needs the blocks of two that are swapped out for it: while those of one are
        being saved the other does not slip in, to be swapped out again, for ever."""
        b = bench(
            blocks=10, budget=5, policy="estimate", preemption="swap", swap=20, priority_preemption=True
        )
        first = b.submit(15, 11, rank=2)
        for _ in range(4):
            b.step()
        others = [b.submit(12, 2, rank=2, n=2), b.submit(24, 1, rank=1, n=3)]
        b.run(100)
        assert sum(b.done[id].truth.preemptions for id in (first, *others)) <= 2
        b.drained()
        b.taught()

    def test_lifetime_never_preempts(self, bench):
        """With lifetime admission nobody is preempted."""
        assert self.both(bench(blocks=8, budget=12)) == [0, 0]

    def test_alone_and_out_of_blocks(self, bench):
        """Alone in a pool that a fault has shrunk, a request ends with length."""
        b = bench(blocks=8)
        id = b.submit(8, 24)
        b.step()
        b.send(m.Ballast(5))
        b.run()
        assert b.done[id].reason is Finish.LENGTH
        assert b.done[id].truth.generated == 5  # 12 positions, and the last token needs none
        assert b.worker.audit()["ballast"] == 5
        b.send(m.Ballast(0))
        b.drained()


class TestC3CancelAgainstFinish:
    def test_cancel_in_flight(self, bench):
        """A cancel while the last step runs gives one terminal event, and the commit frees the blocks."""
        b = bench(blocks=8)
        id = b.submit(6, 3)
        b.step()
        b.step()
        b.begin()
        b.cancel(id)
        flagged = b.now
        assert b.healthy()["fenced"] > 0
        assert id not in b.done, "it is told when its blocks are back"
        b.end()
        assert b.done[id].reason is Finish.CANCELLED
        truth = b.done[id].truth
        assert truth.cancel_phase == "decode"
        assert (truth.cancel_flagged, truth.finished, truth.reclaimed) == (flagged, flagged, b.now)
        assert (truth.steps_after_cancel, truth.steps_to_reclaim) == (1, 1)
        assert b.count("late_outputs_total") == 1
        b.drained()

    def test_cancel_beside_a_step(self, bench):
        """A cancel of one that has no row in the step under way: no step of it after, one to free it."""
        b = bench(blocks=16)
        b.send(m.Hold(1, "decode:2"))
        id = b.submit(6, 3)
        b.step()
        b.submit(6, 3)
        plan = b.begin()
        assert plan is not None
        assert id not in {row.id for row in plan.rows}
        b.cancel(id)
        b.end()
        truth = b.done[id].truth
        assert (truth.steps_after_cancel, truth.steps_to_reclaim) == (0, 1)
        b.run()
        b.drained()

    def test_cancel_between_steps(self, bench):
        """Between steps the blocks are back at once; an end that is no cancel has no flag."""
        b = bench(blocks=16)
        id, other = b.submit(6, 3), b.submit(6, 3)
        b.step()
        b.cancel(id)
        truth = b.done[id].truth
        assert truth.cancel_flagged == truth.reclaimed == b.now
        assert (truth.steps_after_cancel, truth.steps_to_reclaim) == (0, 0)
        b.run()
        assert b.done[other].truth.cancel_flagged is b.done[other].truth.reclaimed is None
        b.drained()

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_computed_is_what_was_computed(self, bench, steps):
        """A request cancelled in its prefill has computed its chunks so far and no more."""
        b = bench(blocks=16, budget=4)
        id = b.submit(12, 3)
        for _ in range(steps):
            b.step()
        b.cancel(id)
        assert b.done[id].truth.computed == 4 * steps
        b.drained()

    def test_cancel_before_its_add(self, bench):
        """A cancel that overtakes its request ends it as soon as it comes."""
        b = bench(blocks=8)
        b.cancel(77)
        id = b.submit(6, 3, id=77)
        assert b.done[id].reason is Finish.CANCELLED
        assert b.done[id].truth.cancel_phase == "queued"
        b.drained()

    def test_cancel_twice_late_and_unknown(self, bench):
        """A repeated cancel, one after the finish and one of an unknown id change nothing."""
        b = bench(blocks=8)
        id = b.submit(6, 3)
        b.step()
        b.cancel(id)
        b.cancel(id)
        b.cancel(999)
        other = b.submit(6, 3)
        b.run()
        b.cancel(other)
        assert b.done[other].reason is Finish.LENGTH
        b.drained()

    def test_cancel_in_the_last_chunk(self, bench):
        """A cancel during the last chunk of a chunked prefill is a cancel in prefill."""
        b = bench(blocks=8, budget=4)
        id = b.submit(8, 3)
        b.step()
        b.begin()
        b.cancel(id)
        b.end()
        assert b.done[id].truth.cancel_phase == "prefill"
        b.drained()

    def test_cancel_while_preempted(self, bench):
        """A preempted request can be cancelled while it waits."""
        b = bench(blocks=8, policy="prompt")
        ids = [b.submit(8, 20), b.submit(8, 20)]
        while not b.count("preemptions_total", cause="memory"):
            b.step()
        (victim,) = b.worker.scheduler.waiting.values()
        b.cancel(victim.id)
        b.run()
        assert {b.done[id].reason for id in ids} == {Finish.CANCELLED, Finish.LENGTH}
        b.drained()

    def test_random_interleavings(self, bench):
        """Any interleaving of add, cancel, step begin and step end over 6 requests keeps the invariants."""
        for seed in range(300):
            self.interleave(bench(blocks=10, budget=8, policy="prompt"), random.Random(seed))

    def interleave(self, b, rng):
        actions = [("add", i) for i in range(1, 7)] + [("cancel", i) for i in range(1, 7)] * 2
        rng.shuffle(actions)
        while actions:
            choice = rng.random()
            if choice < 0.35 and b.flying is None:
                b.begin()
            elif choice < 0.7 and b.flying is not None:
                b.end()
            else:
                kind, id = actions.pop()
                if kind == "add":
                    b.submit(rng.randint(1, 20), rng.randint(1, 6), id=id)
                elif rng.random() < 0.6:
                    b.cancel(id)
        if b.flying is not None:
            b.end()
        b.run()
        b.drained()
        b.taught()


class TestC5SharingInsideOneStep:
    @pytest.mark.parametrize("swapped", [False, True])
    def test_copies(self, bench, tokens, swapped):
        """Two requests of one step compute their own copies; the next one hits; one stored event."""
        b = bench(blocks=32)
        shared = tokens(16)
        suffixes = [[1, 2], [3, 4, 5]]
        first, second = (b.submit(shared + s, 2) for s in (reversed(suffixes) if swapped else suffixes))
        b.step()
        third = b.submit([*shared, 9], 2)
        b.run()
        assert b.done[first].truth.misses[0].reason is MissReason.NEVER_COMPUTED
        assert reasons(b.done[second])[0] == (MissReason.BEING_COMPUTED, 16)
        assert b.done[second].truth.hit_device == 0
        assert b.done[third].truth.hit_device == 16
        assert b.count("duplicate_blocks_total") == 4
        b.drained()

    def test_one_copy_goes_silently(self, bench, tokens):
        """Losing one of two copies sends no removed event; losing the last one does."""
        b = bench(blocks=12)
        shared = tokens(16)
        b.submit([*shared, 1], 1)
        b.submit([*shared, 2], 1)
        b.run()
        b.serve(tokens(27, seed=5), 1)  # takes 7 blocks: the 4 blank ones and 3 of the 8 cached
        removed = [e for batch in b.told(m.KvEvents) for e in batch.events if e.kind == "removed"]
        assert removed == []
        b.serve(tokens(44, seed=6), 1)
        assert b.done[max(b.done)].truth.hit_device == 0
        b.drained()


class TestC7Namespaces:
    def test_no_hits_across_roots(self, bench, tokens):
        """The same prompt under another root never hits, says so, and hits on its own second call."""
        b = bench(blocks=128, block_size=8)
        reloaded = namespace_root(
            model="m", block_size=8, isolation_key="a", adapter="X", adapter_digest="other weights"
        )
        tokenizer = namespace_root(model="m", block_size=8, isolation_key="a", tokenizer="next revision")
        roots = [b.root(), b.root(salt="X"), b.root(adapter="X"), reloaded, b.root(tenant="b"), tokenizer]
        for index, root in enumerate(roots):
            truth = b.serve(tokens(33), 1, root=root).truth
            expected = MissReason.DIFFERENT_NAMESPACE if index else MissReason.NEVER_COMPUTED
            assert truth.hit_device == 0
            assert truth.misses[0].reason is expected
            assert truth.misses[0].tokens == 32
        for root in roots:
            truth = b.serve(tokens(33), 1, root=root).truth
            assert (truth.hit_device, [x.reason for x in truth.misses]) == (32, [MissReason.BELOW_BLOCK])
        b.drained()

    def test_fuzz(self):
        """No two different settings of the fields share a root, empty and missing included."""
        rng = random.Random(0)
        names = ("weights", "tokenizer", "positions", "precision", "adapter", "adapter_digest", "salt")
        seen = {}
        for _ in range(10_000):
            values = {
                name: rng.choice([None, "", "X", "XX", rng.randbytes(3).decode("latin-1")]) for name in names
            }
            isolation = rng.choice([None, "", "a", "X"])
            root = namespace_root(model="m", block_size=16, isolation_key=isolation, **values)
            key = (isolation, *values.values())
            assert seen.setdefault(root, key) == key


class TestC8Digests:
    def test_every_bit_of_a_token_counts(self):
        """Tokens that agree in their low bytes, regrouped lists and shifted borders differ."""
        prompts = [[5, 1], [5 + 256, 1], [5 + 65536, 1], [1, 23], [12, 3], [0, 0], [0, 1], [1, 0]]
        last = {block_digests(b"r", array("I", p), 2)[-1] for p in prompts}
        assert len(last) == len(prompts)
        stream = array("I", range(64))
        shifted = [set(block_digests(b"r", stream[k:], 8)) for k in range(8)]
        assert all(not a & b for i, a in enumerate(shifted) for b in shifted[:i])
        assert block_digests(b"", stream, 8) != block_digests(b"r", stream, 8)

    def test_chain(self):
        """A digest depends on everything before it; a partial block has none."""
        one = block_digests(b"r", array("I", [1, 2, 3, 4, 5]), 2)
        two = block_digests(b"r", array("I", [9, 2, 3, 4]), 2)
        assert len(one) == 2
        assert not set(one) & set(two)

    def test_short_keys_collide_and_are_caught(self, bench):
        """With 8-bit lookup keys collisions happen, are counted, and change no output."""
        short, full = (bench(blocks=64, digest_bits=bits) for bits in (8, 128))
        rng = random.Random(1)
        prompts = [[rng.randrange(4096) for _ in range(16)] for _ in range(1000)]
        for tokens in [*prompts, *prompts[-20:]]:
            for b in (short, full):
                b.serve(tokens, 2)
        assert short.count("prefix_collisions_total") > 0
        assert short.output == full.output
        short.drained()


class TestC9FullPromptHit:
    @pytest.mark.parametrize(
        ("length", "cached", "misses"),
        [
            (7, 4, [(MissReason.BELOW_BLOCK, 3)]),
            (8, 4, [(MissReason.LAST_BLOCK_RULE, 4)]),
            (9, 8, [(MissReason.BELOW_BLOCK, 1)]),
            (12, 8, [(MissReason.LAST_BLOCK_RULE, 4)]),
        ],
    )
    def test_second_time(self, bench, tokens, length, cached, misses):
        """A prompt sent again reads all but its last block, computes at least a token, says the same."""
        b = bench(blocks=16)
        cold = b.serve(tokens(length), 4)
        warm = b.serve(tokens(length), 4)
        assert warm.truth.hit_device == cached
        assert warm.truth.computed == length - cached >= 1
        assert reasons(warm) == misses
        assert b.output[warm.id] == b.output[cold.id]
        b.drained()


class TestC11LongPrompts:
    @pytest.mark.parametrize(("policy", "most"), [("lifetime", 960), ("peak", 960), ("prompt", 1152)])
    def test_no_thrashing(self, bench, policy, most):
        """Without a cache, prompts that fill the pool are computed once under lifetime, and at most a fifth
        is computed twice where memory may run out."""
        b = bench(blocks=100, budget=32, cache=False, policy=policy)
        ids = []
        while len(ids) < 6:
            if len(b.worker.scheduler.waiting) < 2:  # the rest waits at the gateway
                ids.append(b.submit(160, 8))
            b.step()
        b.run()
        truths = [b.done[id].truth for id in ids]
        assert [truth.generated for truth in truths] == [8] * 6
        assert sum(truth.computed for truth in truths) == 960
        assert 960 + sum(truth.recomputed for truth in truths) <= most
        assert sum(truth.preemptions for truth in truths) <= (6 if policy == "prompt" else 0)
        b.drained()


class TestC12Starvation:
    def test_decode_against_arrivals(self, bench):
        """A decoder is served at least every second step while full-budget prompts keep arriving."""
        b = bench(blocks=512, budget=16)
        first = b.submit(4, 40)
        b.step()
        for _ in range(60):
            b.submit(16, 1)
            b.step()
        b.run()
        steps = b.steps_of[first]
        assert max(after - before for before, after in pairwise(steps)) <= 2
        b.drained()

    @pytest.mark.parametrize(
        ("budget", "share"),
        [(16, 1.0), (1, 0.25), (1, 1.0), (1, 0.0)],
        ids=["all", "one", "all of one", "none"],
    )
    def test_one_decode_row_at_least(self, bench, budget, share):
        """Also where prefill's share rounds up to the whole budget, decoders that wait are served one per
        step, each in its turn, and prompts still get through."""
        b = bench(blocks=512, budget=budget, min_prefill_share=share)
        decoders = [b.submit(4, 20), b.submit(4, 20)]
        while not all(id in b.output for id in decoders):
            b.step()
        began, late = b.worker.heartbeat(b.now).step, []
        while not all(id in b.done for id in decoders):
            late.append(b.submit(16, 1))
            ready = any(sequence.decoding for sequence in b.worker.scheduler.running.values())
            plan = b.step()
            assert ready == any(row.is_decode for row in plan.rows)
        for id in decoders:
            steps = [step for step in b.steps_of[id] if step >= began]
            assert all(after - before <= 2 for before, after in pairwise(steps))
        b.run()
        assert all(b.done[id].truth.generated == 1 for id in late if id not in b.refused)
        b.drained()

    def test_prefill_against_decoders(self, bench):
        """A long prompt gets its share among 64 decoders, and none of them waits more than 3 steps."""
        b = bench(blocks=2000, budget=64, max_running=80)
        decoders = []
        for _ in range(64):
            decoders.append(b.submit(4, 120))
            b.step()
        long = b.submit(1000, 1)
        admitted = len(b.steps_of[decoders[0]])
        while long not in b.done:
            b.step()
        assert len(b.steps_of[long]) <= ceil(1000 / 16)
        for id in decoders:
            steps = b.steps_of[id]
            assert max(after - before for before, after in pairwise(steps)) <= 3
        assert admitted
        b.run()
        b.drained()
