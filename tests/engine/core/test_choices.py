"""Several choices of one request: one prefill, then each goes its own way (ENGINE E36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import messages as m
from engine.request import Finish, Logprob, Sampling
from engine.runner.base import Move
from engine.sched.admission import ADMISSIONS

HOT = Sampling(temperature=1.0, seed=7, ignore_eos=True)
COLD = Sampling(ignore_eos=True)
SECOND = 1_000_000_000


def ends(b, id):
    """Choice -> how it ended, the last one's reason being that of the request."""
    told = {choice: reason for (of, choice), reason in b.ended.items() if of == id}
    (last,) = set(range(b.requests[id].n)) - told.keys()
    return told | {last: b.done[id].reason}


def copies(b, plan):
    """(source, target) of every copy in a plan."""
    return [(t.source, t.target) for t in plan.transfers if t.move is Move.COPY]


class TestFork:
    def test_one_prefill_for_all(self, bench, tokens):
        """The prompt is computed once; its last chunk draws the first token of every choice."""
        b = bench(blocks=32, chunk=6)
        id = b.submit(tokens(10), 5, n=3, sampling=HOT)
        first, last = b.step(), b.begin()
        assert [(row.choice, row.forks, row.samples) for row in first.rows] == [(0, 0, False)]
        assert [(row.choice, row.forks, row.samples) for row in last.rows] == [(0, 2, True)]
        b.end()
        assert {key: len(said) for key, said in b.choices.items()} == {(id, k): 1 for k in range(3)}
        assert [row.choice for row in b.step().rows] == [0, 1, 2]
        b.run()
        assert ends(b, id) == dict.fromkeys(range(3), Finish.LENGTH)
        assert [len(b.choices[id, choice]) for choice in range(3)] == [5, 5, 5]
        assert len({tuple(b.choices[id, choice]) for choice in range(3)}) == 3
        b.taught()
        b.drained()

    @pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
    @pytest.mark.parametrize("n", [2, 3])
    def test_full_blocks_are_shared_and_the_partial_one_is_copied(self, bench, tokens, length, n):
        """Each choice but the first copies the partial block in its first step; none if there is none."""
        b = bench(blocks=32)
        id = b.submit(tokens(length), 6, n=n, sampling=HOT)
        b.step()
        whole, part = divmod(length, 4)
        plan = b.begin()
        made = copies(b, plan)
        tables = {row.choice: row.table for row in plan.rows}
        assert len({table[:whole] for table in tables.values()}) == 1
        assert len({table[whole] for table in tables.values()}) == n, "nobody writes where another one writes"
        assert made == ([(tables[0][whole], tables[k][whole]) for k in range(1, n)] if part else [])
        b.end()
        assert copies(b, b.step()) == []
        b.run()
        assert b.done[id].truth.generated == 6 * n
        b.taught()
        b.drained()

    def test_greedy_choices_are_equal(self, bench, tokens):
        """Without a temperature nothing tells the choices apart."""
        b = bench(blocks=32)
        id = b.submit(tokens(9), 4, n=3)
        b.run()
        assert b.choices[id, 0] == b.choices[id, 1] == b.choices[id, 2]

    @pytest.mark.parametrize("choice", [0, 1, 2])
    def test_the_text_of_a_choice_is_a_matter_of_its_key(self, bench, tokens, choice):
        """Company, chunks and n change nothing: choice 0 is what n = 1 gives, others differ by number."""
        alone, many = bench(blocks=32), bench(blocks=64, budget=7, chunk=3)
        wide = alone.submit(tokens(9), 4, n=3, sampling=HOT)
        single = alone.submit(tokens(9), 4, sampling=HOT)
        alone.run()
        b = many
        b.submit(tokens(6, seed=4), 9, n=2)
        b.step()
        crowded = b.submit(tokens(9), 4, n=5, sampling=HOT)
        b.run()
        assert b.choices[crowded, choice] == alone.choices[wide, choice]
        assert (alone.choices[wide, choice] == alone.choices[single, 0]) == (choice == 0)

    def test_one_token_each(self, bench, tokens):
        """With one token to generate all choices end in the step of the prefill, and nothing is copied."""
        b = bench(blocks=8)
        id = b.submit(tokens(6), 1, n=4, sampling=HOT)
        assert b.step().transfers == ()
        assert ends(b, id) == dict.fromkeys(range(4), Finish.LENGTH)
        assert b.done[id].truth.generated == 4
        b.taught()
        b.drained()

    def test_a_hit_is_one_for_all(self, bench, tokens):
        """The prompt is looked up once, and what the choices computed can be hit afterwards."""
        b = bench(blocks=64)
        b.serve(tokens(9), 1)
        id = b.submit(tokens(9), 8, n=3, sampling=HOT)
        b.run()
        assert b.done[id].truth.hit_device == 8
        assert b.done[id].truth.computed == 1
        assert b.count("prefix_query_tokens_total") == 18
        said = b.choices[id, 2]
        assert b.serve([*tokens(9), *said, 1], 1).truth.hit_device == 16


class TestTruth:
    def test_choices_add_up(self, bench, tokens):
        """Prompt tokens count once, output tokens and recomputed ones for all, shared blocks once."""
        b = bench(blocks=64, chunk=6)
        id = b.submit(tokens(10), 5, n=3, sampling=HOT)
        b.run()
        truth = b.done[id].truth
        assert (truth.prompt, truth.computed, truth.generated, truth.recomputed) == (10, 10, 15, 0)
        assert (truth.steps_prefill, truth.steps_decode) == (2, 4), "a step counts once for its three rows"
        assert truth.rows_mean == (1 + 1 + 3 * 4) / 6
        assert truth.step_tokens_mean == (6 + 4 + 3 * 4) / 6
        assert truth.blocks_peak == 2 + 3 * (4 - 2), "two full ones in common, two of each choice's own"
        assert sum(miss.tokens for miss in truth.misses) == 10
        assert b.count("prompt_tokens_total", source="computed") == 10
        assert b.count("generated_tokens_total") == 15
        assert b.count("requests_total", class_="default") == 1
        assert b.count("finished_total", class_="default", reason="length") == 1

    def test_created_cache_tokens(self, bench, tokens):
        """What is left in the cache of all choices, the common blocks counted once."""
        b = bench(blocks=64)
        id = b.submit(tokens(8), 5, n=2, sampling=HOT)
        b.run()
        assert b.done[id].truth.created_cache_tokens == 8 + 2 * 4
        assert len(b.digests) == 4

    def test_gauges_count_requests(self, bench, tokens):
        """A request with three choices is one that runs, however many rows it has."""
        b = bench(blocks=64)
        id = b.submit(tokens(8), 5, n=3)
        b.step()
        metrics = b.worker.heartbeat(b.now).metrics
        assert metrics["headrace_engine_requests_running"] == [[[], 1]]
        assert b.healthy()["running"] == 3
        b.cancel(id)
        b.drained()


class TestEnds:
    def of(self, b, tokens, length=9, n=3, count=6):
        """What each choice will say."""
        request = b.request(tokens(length), count, n=n, sampling=HOT)
        return [b.teacher.text(request, choice, count) for choice in range(n)]

    def test_each_choice_ends_by_itself(self, bench, tokens):
        """A stop id ends the choice that drew it; the others go on, and the last one ends the request."""
        b = bench(blocks=64)
        texts = self.of(b, tokens)
        stop = texts[1][2]
        assert stop not in texts[0] + texts[2]
        id = b.submit(tokens(9), 6, n=3, sampling=replace(HOT, stop_ids=(stop,)))
        b.run()
        assert ends(b, id) == {0: Finish.LENGTH, 1: Finish.STOP, 2: Finish.LENGTH}
        assert b.choices[id, 1] == texts[1][:3]
        assert b.done[id].truth.generated == 6 + 3 + 6
        assert b.ended[id, 1] is Finish.STOP
        kinds = [type(said) for said in b.said if getattr(said, "id", None) == id]
        assert kinds[-1] is m.Done
        assert kinds.count(m.Done) == 1
        b.drained()

    def test_the_first_choice_may_end_first(self, bench, tokens):
        """The others keep what they share with it, also while they have no copy of their partial block."""
        b = bench(blocks=64)
        texts = self.of(b, tokens)
        stop = texts[0][0]
        assert stop not in texts[1] + texts[2]
        id = b.submit(tokens(9), 6, n=3, sampling=replace(HOT, stop_ids=(stop,)))
        b.step()
        assert b.ended == {(id, 0): Finish.STOP}
        assert len(copies(b, b.begin())) == 2
        b.end()
        b.run()
        assert b.choices[id, 2] == texts[2]
        b.drained()

    def test_an_end_token(self, bench, tokens):
        """An end token ends a choice too, unless it is ignored."""
        b = bench(blocks=64)
        b.worker.delivery.eos_ids = frozenset({self.of(b, tokens)[2][1]})
        id = b.submit(tokens(9), 6, n=3, sampling=replace(HOT, ignore_eos=False))
        b.run()
        assert ends(b, id)[2] is Finish.STOP
        assert len(b.choices[id, 2]) == 2
        b.drained()

    def test_one_choice_is_stopped_from_outside(self, bench, tokens):
        """The gateway saw a stop string in one choice; that one ends, in flight or not, also repeatedly."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 6, n=3, sampling=HOT)
        b.step()
        b.step()
        b.begin()
        for _ in range(2):
            b.send(m.Cancel(id, Finish.STOP, 1))
        b.end()
        assert b.count("late_outputs_total") == 1
        b.run()
        assert ends(b, id) == {0: Finish.LENGTH, 1: Finish.STOP, 2: Finish.LENGTH}
        assert b.done[id].truth.generated == 6 + 2 + 6
        b.send(m.Cancel(id, Finish.STOP, 2))
        b.send(m.Cancel(999, Finish.STOP, 0))
        assert not b.worker.roster.cancelled_early(999)
        b.drained()

    def test_the_last_choice_is_stopped_from_outside(self, bench, tokens):
        """Then its request has ended."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 6, n=2, sampling=HOT)
        b.step()
        b.send(m.Cancel(id, Finish.STOP, 0))
        b.send(m.Cancel(id, Finish.STOP, 1))
        assert ends(b, id) == {0: Finish.STOP, 1: Finish.STOP}
        b.drained()

    def test_deadline(self, bench, tokens):
        """A deadline ends all choices in that step."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 40, n=3, sampling=HOT, deadline=int(0.2 * SECOND))
        b.run()
        assert b.done[id].reason is Finish.EXPIRED
        assert b.ended == {}
        assert len({len(said) for said in b.choices.values()}) == 1
        b.taught()
        b.drained()

    @pytest.mark.parametrize("row", [0, 1, 2])
    def test_a_corrupt_row(self, bench, tokens, row):
        """If one choice comes out as no number, the request ends with error and others of the step do not."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 6, n=3, sampling=HOT)
        b.step()
        other = b.submit(tokens(5, seed=2), 6)
        b.step()
        plan = b.begin()
        assert plan.rows[row].id == id
        b.end(failed=(row,))
        assert b.done[id].reason is Finish.ERROR
        b.run()
        assert b.done[other].reason is Finish.LENGTH
        b.taught()
        b.drained()

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_a_failed_step(self, bench, tokens, steps):
        """Whatever of it was in the step, all choices end with error."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 6, n=3, sampling=HOT)
        for _ in range(steps):
            b.step()
        b.begin()
        b.fail()
        assert b.done[id].reason is Finish.ERROR
        b.drained()


class TestCancel:
    """A cancel ends all choices; their memory is free at the commit of the step in flight (E34)."""

    def check(self, b, id):
        assert b.done[id].reason is Finish.CANCELLED
        truth = b.done[id].truth
        assert truth.reclaimed is not None
        assert truth.steps_to_reclaim <= 2
        assert truth.steps_after_cancel <= 1
        assert b.step() is None
        b.taught()
        b.drained()

    @pytest.mark.parametrize("steps", range(6))
    @pytest.mark.parametrize("flying", [False, True])
    def test_in_every_phase(self, bench, tokens, steps, flying):
        """Before the prefill, in its last chunk, before, with and after the copies."""
        b = bench(blocks=64, chunk=6)
        id = b.submit(tokens(10), 8, n=3, sampling=HOT)
        for _ in range(steps):
            b.step()
        if flying:
            b.begin()
        for _ in range(2):
            b.cancel(id)
        if flying:
            assert id not in b.done, "the step in flight still writes its blocks"
            drawn = 3 if steps else 0
            b.end()
            assert b.count("late_outputs_total") == drawn
        self.check(b, id)

    def test_before_its_submit(self, bench, tokens):
        """The cancel has overtaken the request."""
        b = bench(blocks=64)
        b.cancel(1)
        id = b.submit(tokens(10), 8, n=3)
        self.check(b, id)

    def test_after_its_end(self, bench, tokens):
        """Nothing happens."""
        b = bench(blocks=64)
        id = b.submit(tokens(10), 2, n=3)
        b.run()
        b.cancel(id)
        b.cancel(id)
        b.drained()

    def test_while_one_choice_is_preempted(self, bench, tokens):
        """A choice that waits for blocks ends with the others."""
        b = bench(blocks=8, policy="prompt")
        id = b.submit(tokens(6), 10, n=2, sampling=HOT, rank=1)
        other = b.submit(tokens(6, seed=1), 8)
        for _ in range(20):
            b.step()
            if any(key[0] == id for key in b.worker.scheduler.waiting) and b.worker.scheduler.running:
                break
        else:
            raise AssertionError("nobody of it was preempted")
        b.cancel(id)
        b.run()
        assert b.done[id].reason is Finish.CANCELLED
        assert b.done[other].reason is Finish.LENGTH
        b.taught()
        b.drained()

    def test_behind_a_choice_that_was_stopped(self, bench, tokens):
        """One choice is stopped in flight, the other holds nothing: the request still waits for the step."""
        b = bench(blocks=8, policy="prompt")
        id = b.submit(tokens(6), 10, n=2, sampling=HOT, rank=1)
        b.submit(tokens(6, seed=1), 8)
        for _ in range(20):
            mine = [row.choice for row in b.begin().rows if row.id == id]
            if len(mine) == 1 and any(key[0] == id for key in b.worker.scheduler.waiting):
                break
            b.end()
        else:
            raise AssertionError("never was one of them preempted and the other in a step")
        b.send(m.Cancel(id, Finish.STOP, *mine))
        b.cancel(id)
        assert id not in b.done
        b.end()
        assert b.done[id].truth.steps_to_reclaim == 1
        b.run()
        b.drained()

    def test_against_the_finish(self, bench, tokens):
        """A cancel in the very step that ends all choices gives one terminal event."""
        b = bench(blocks=64)
        id = b.submit(tokens(10), 3, n=3)
        b.step()
        b.step()
        b.begin()
        b.cancel(id)
        b.end()
        self.check(b, id)


class TestMemory:
    def test_reserved_as_one_unit(self, bench, tokens):
        """Under lifetime all choices of a request have their blocks promised before it starts."""
        b = bench(blocks=9, cache=False)
        first = b.submit(tokens(6), 6, n=2, sampling=HOT)  # 1 shared + 2 * 2
        second = b.submit(tokens(6, seed=1), 6, n=2, sampling=HOT)
        b.step()
        assert b.healthy()["reserved"] == 1 + 2 * 2 - 2
        assert second in b.worker.roster.active
        assert second not in b.steps_of
        b.run()
        assert b.count("preemptions_total", cause="memory") == 0
        assert b.done[first].truth.generated == b.done[second].truth.generated == 12
        assert b.done[first].truth.blocks_peak == 5
        b.drained()

    def test_more_than_the_pool(self, bench, tokens):
        """Choices that can never fit together are refused with the numbers; fewer of them are served."""
        b = bench(blocks=4)
        id = b.submit(tokens(8), 4, n=4)
        assert "6 blocks of 4, 4 are usable" in b.done[id].error
        fits = b.submit(tokens(8), 4, n=2, sampling=HOT)
        b.run()
        assert b.done[fits].reason is Finish.LENGTH
        b.drained()

    @pytest.mark.parametrize("policy", ADMISSIONS)
    @pytest.mark.parametrize("length", [5, 8, 11])
    @pytest.mark.parametrize("blocks", [11, 14])
    def test_a_tight_pool(self, bench, tokens, policy, length, blocks):
        """Under every admission, forks that find no block wait or preempt, and all come to their end."""
        b = bench(blocks=blocks, policy=policy, budget=12)
        ids = [b.submit(tokens(length, seed=seed), 9, n=1 + seed % 3, sampling=HOT) for seed in range(1, 6)]
        waiting = iter(ids)
        for _ in range(400):
            if b.worker.idle and next(waiting, None) is None:
                break
            b.step()
        again = [id for id in ids if id in b.refused]  # no more than two may wait at a worker
        assert [id for id in ids if id not in again and id not in b.done] == []
        for id in ids:
            if id not in again:
                assert b.done[id].truth.generated == 9 * b.requests[id].n
        if policy == "lifetime":
            assert b.count("preemptions_total", cause="memory") == 0
        b.taught()
        b.drained()

    def test_a_preempted_choice_is_computed_again(self, bench, tokens):
        """It alone loses its blocks, hits what its siblings still hold, and says the same."""
        b = bench(blocks=8, policy="prompt")
        id = b.submit(tokens(9), 11, n=2, sampling=HOT)  # 2 + 2 * 3
        b.step()
        b.step()
        b.send(m.Ballast(3))
        b.run()
        truth = b.done[id].truth
        assert truth.preemptions >= 1
        assert truth.recomputed > 0
        assert truth.computed == 9
        assert truth.generated == 22
        assert truth.blocks_peak <= 5
        b.send(m.Ballast(0))
        b.taught()
        b.drained()

    def test_no_block_for_the_copy(self, bench, tokens):
        """Ballast takes the block that a fork was promised: it waits, and goes on once it is given back."""
        b = bench(blocks=8, preemption="none")
        id = b.submit(tokens(5), 3, n=3, sampling=HOT)
        b.step()
        b.send(m.Configure({"preemption": "recompute"}))
        b.send(m.Ballast(6))
        b.send(m.Configure({"preemption": "none"}))
        assert [row.choice for row in b.step().rows] == [0]
        b.step()
        assert b.step() is None
        assert b.ended == {(id, 0): Finish.LENGTH}
        b.send(m.Ballast(0))
        b.run()
        assert b.done[id].truth.generated == 9
        b.taught()
        b.drained()

    def test_clear_between_prefill_and_copy(self, bench, tokens):
        """A clear drops digests only: the choices go on with the blocks that they hold."""
        b = bench(blocks=64)
        id = b.submit(tokens(10), 8, n=3, sampling=HOT)
        b.step()
        b.send(m.Clear())
        b.run()
        assert b.digests == set()
        assert b.done[id].truth.generated == 24
        b.taught()
        b.drained()


class TestHold:
    def test_the_request_pauses_as_a_whole(self, bench, tokens):
        """A breakpoint that one choice reaches stops all of them, and a release lets all go on."""
        b = bench(blocks=64)
        b.send(m.Hold(1, "decode:3"))
        id = b.submit(tokens(9), 6, n=3, sampling=HOT)
        while b.step() is not None:
            pass
        assert {key: len(said) for key, said in b.choices.items()} == {(id, k): 2 for k in range(3)}
        b.send(m.Release(1))
        b.run()
        assert b.done[id].truth.generated == 18
        b.drained()

    def test_before_the_fork(self, bench, tokens):
        """At decode:1 the prompt is not finished, and there is one choice yet."""
        b = bench(blocks=64)
        b.send(m.Hold(1, "decode:1"))
        id = b.submit(tokens(9), 6, n=3, sampling=HOT)
        assert b.step() is None
        b.cancel(id)
        assert b.done[id].truth.generated == 0
        b.drained()


class TestSampling:
    def test_min_tokens(self, bench, tokens):
        """No end token and no stop id is drawn before so many tokens; after that the first one ends it."""
        b = bench(blocks=64)
        texts = TestEnds().of(b, tokens, n=1)[0]
        b.runner.eos_ids = b.worker.delivery.eos_ids = frozenset({texts[0]})
        early = b.submit(tokens(9), 6, sampling=replace(HOT, ignore_eos=False))
        later = b.submit(tokens(9), 6, sampling=replace(HOT, ignore_eos=False, min_tokens=6))
        stops = b.submit(tokens(9), 6, sampling=replace(HOT, stop_ids=(texts[0],), min_tokens=1))
        b.run()
        assert b.output[early] == [texts[0]]
        assert b.done[later].reason is Finish.LENGTH
        assert len(b.output[stops]) > 1
        assert texts[0] not in b.output[later] + b.output[stops][:1]

    def test_nothing_but_ends(self, bench, tokens):
        """Where every token is an end, one is drawn: there is nothing else to say."""
        b = bench(blocks=64)
        b.runner.drawn = 4
        b.serve(tokens(9), 3, sampling=Sampling(stop_ids=(0, 1, 2, 3), min_tokens=3))
        assert b.done[1].reason is Finish.STOP
        assert b.done[1].truth.generated == 1

    def test_rows_bring_what_the_draw_depends_on(self, bench, tokens):
        """All tokens come with a row that has penalties or a schema, and with no other."""
        b = bench(blocks=64, chunk=6)
        b.submit(tokens(9), 3, sampling=replace(HOT, presence_penalty=0.5), n=2)
        first, last, decode = b.step(), b.step(), b.step()
        assert [row.known for row in first.rows] == [None]
        assert [list(row.known) for row in last.rows] == [tokens(9)]
        said = [[*tokens(9), *b.choices[1, choice][:1]] for choice in range(2)]
        assert [list(row.known) for row in decode.rows] == said
        assert {row.prompt for plan in (first, last, decode) for row in plan.rows} == {9}
        assert not HOT.looks_back
        assert replace(HOT, schema="{}").looks_back
        assert replace(HOT, repetition_penalty=1.1).looks_back

    def test_logprobs_come_with_their_tokens(self, bench, tokens):
        """Each token of each choice has its own, in its own message."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 3, n=2, sampling=replace(HOT, logprobs=1))
        plain = b.submit(tokens(9), 3, sampling=HOT)
        b.run()
        for said in b.told(m.TokensOut):
            expected = [Logprob(token, 0.0, (token,), (0.0,)) for token in said.ids if id == said.id]
            assert list(said.logprobs) == expected
        assert plain in b.done

    def test_a_row_that_says_why_it_failed(self, bench, tokens):
        """The reason that the runner gives ends up in the request's error."""
        b = bench(blocks=64)
        id = b.submit(tokens(9), 3, n=2)
        plan = b.begin()
        b.flying = None
        result = b.runner.execute(plan)
        failed = replace(result, failed=(0,), errors={0: "the schema cannot be met"})
        b.worker.commit(plan, failed, b.now)
        b.collect()
        assert (b.done[id].reason, b.done[id].error) == (Finish.ERROR, "the schema cannot be met")
        assert b.count("late_outputs_total") == 0
        b.drained()
