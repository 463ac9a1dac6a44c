"""Host and disk below the device: blocks go down when they are evicted, and back up when that is cheaper."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import messages as m
from engine.config import DiskConfig, TiersConfig
from engine.kv.moves import Moves
from engine.kv.places import Sizes
from engine.request import Finish, MissReason, Phase
from engine.runner.base import Move, Transfer
from engine.sched.transfers import broken_moves

SECOND = 1_000_000_000


def reasons(done):
    return [(miss.reason, miss.first_block, miss.blocks) for miss in done.truth.misses]


def hits(done):
    return done.truth.hit_device, done.truth.hit_host, done.truth.hit_disk


def filled(bench, tokens, **more):
    """A pool of 10 blocks in which a first prompt of 8 full blocks has been pushed out by a second."""
    b = bench(**({"blocks": 10} | more))
    b.serve(tokens(33), 1)
    b.serve(tokens(33, seed=3), 1)
    return b


def spied(b):
    """The moves of each step from now on, as the runner gets them."""
    seen, execute = [], b.runner.execute

    def watched(plan):
        seen.append(plan.transfers)
        return execute(plan)

    b.runner.execute = watched
    return seen


def events(b, kind, tier):
    told = [event for batch in b.told(m.KvEvents) for event in batch.events]
    return [event for event in told if (event.kind, event.tier) == (kind, tier)]


class TestUpAndDown:
    def test_evicted_blocks_come_back_from_host(self, bench, tokens):
        """A prompt whose blocks went to host memory is restored, not computed."""
        b = filled(bench, tokens, host=20)
        done = b.serve(tokens(33), 2)
        assert sum(hits(done)) == 32
        assert done.truth.hit_host >= 24
        assert (done.truth.computed, done.truth.recomputed) == (1, 0)
        assert reasons(done) == [(MissReason.BELOW_BLOCK, 8, 1)]
        assert b.count("prompt_tokens_total", source="host") == done.truth.hit_host
        assert b.count("prefix_hit_tokens_total") == 32
        restores = {tier: sum(counts) for (tier,), (_, counts) in metric(b, "restore_seconds")}
        assert restores == {"host": 1, "disk": 0}
        b.taught()
        b.drained()

    def test_without_tiers_they_are_computed(self, bench, tokens):
        """The same without a host tier: lost to capacity."""
        done = filled(bench, tokens).serve(tokens(33), 2)
        assert hits(done)[1:] == (0, 0)
        assert done.truth.computed >= 24

    def test_host_overflows_to_disk(self, bench, tokens):
        """What the host has no room for goes to disk, and comes back through the host."""
        b = bench(blocks=10, host=8, disk=50)
        for seed in range(3):
            b.serve(tokens(33, seed=seed), 1)
        done = b.serve(tokens(33), 1)
        assert done.truth.hit_disk > 0
        assert sum(hits(done)) + done.truth.computed == 33
        assert b.count("prompt_tokens_total", source="disk") == done.truth.hit_disk
        assert b.count("evicted_blocks_total", cause="capacity", tier="host") > 0
        b.taught()
        b.drained()

    def test_disk_is_bounded(self, bench, tokens):
        """A full disk drops what was longest unused, and that is lost to capacity."""
        b = bench(blocks=10, host=8, disk=4)
        for seed in range(5):
            b.serve(tokens(33, seed=seed), 1)
        assert len(b.worker.cache.below.disk) <= 4
        assert b.count("evicted_blocks_total", cause="capacity", tier="disk") > 0
        assert reasons(b.serve(tokens(33), 1))[0][0] is MissReason.EVICTED_CAPACITY
        b.drained()

    def test_a_copy_below_is_moved_only_once(self, bench, tokens):
        """What was restored and is evicted again costs no second move down."""
        b = filled(bench, tokens, host=40)
        b.serve(tokens(33), 1)
        b.serve(tokens(33, seed=3), 1)
        seen = spied(b)
        done = b.serve(tokens(33), 1)
        assert done.truth.hit_host > 0
        assert not [move for step in seen for move in step if move.move is Move.SAVE]
        b.drained()

    def test_idle_worker_moves_what_ballast_pushes_out(self, bench, tokens):
        """Blocks that are taken while nothing runs go down in a step of their own."""
        b = bench(blocks=10, host=20)
        b.serve(tokens(33), 1)
        b.send(m.Ballast(10))
        assert not b.worker.idle
        assert b.step().rows == ()
        assert b.worker.idle
        assert len(b.worker.cache.below.host) == 8
        b.send(m.Ballast(0))
        assert b.serve(tokens(33), 1).truth.hit_host == 32
        b.drained()

    def test_events_tell_each_tier(self, bench, tokens):
        """Stored and removed are told per tier; a move down is a removal above and a storing below."""
        b = filled(bench, tokens, host=20)
        gone = {digest for event in events(b, "removed", "device") for digest in event.digests}
        below = {digest for event in events(b, "stored", "host") for digest in event.digests}
        assert gone == below != set()
        b.send(m.Clear())
        assert not b.worker.cache.below.entries
        assert sum(hits(b.serve(tokens(33), 1))) == 0
        b.drained()

    def test_moves_of_a_step_are_bounded(self, bench, tokens):
        """At most half of the bytes in flight go each way in one step; blocks wait to be saved until a step
        would overwrite them, and none is lost."""
        b = bench(blocks=10, host=20, moves=6, budget=8)
        seen = spied(b)
        for seed in (0, 3, 0):
            b.serve(tokens(33, seed=seed), 1)
        for step in seen:
            kinds = Counter(move.move for move in step)
            assert kinds[Move.SAVE] <= 3
            assert kinds[Move.LOAD] <= 3
        assert b.done[3].truth.hit_host + b.done[3].truth.hit_device == 32
        b.taught()
        b.drained()

    def test_a_step_saves_what_it_overwrites(self, bench, tokens):
        """A step that writes more blocks than may move saves them all the same."""
        b = bench(blocks=10, host=20, moves=2)
        b.serve(tokens(33), 1)
        seen = spied(b)
        b.serve(tokens(33, seed=3), 1)
        assert max(sum(move.move is Move.SAVE for move in step) for step in seen) >= 7
        assert sum(hits(b.serve(tokens(33), 1))) == 32
        b.taught()
        b.drained()


class TestDecision:
    def test_not_restored_if_that_takes_longer(self, bench, tokens):
        """A slow host is not worth the trip: the blocks are computed, missed for capacity (E18)."""
        b = filled(bench, tokens, host=20, latency=10.0)
        done = b.serve(tokens(33), 1)
        assert done.truth.hit_host == 0
        assert reasons(done)[0][:2] == (MissReason.EVICTED_CAPACITY, done.truth.hit_device // 4)
        b.drained()

    def test_reasons_behind_a_gap(self, bench, tokens):
        """A device block behind one that is not restored takes its reason."""
        b = bench(blocks=20, host=20, latency=10.0)
        b.serve(tokens(33), 1)
        cache = b.worker.cache
        first = next(block for block in cache.content if cache.content[block].parent == b.root())
        cache.evicted(first, b.now)
        b.worker.pool.unmark(first)
        b.step()
        done = b.serve(tokens(33), 1)
        assert reasons(done)[0] == (MissReason.EVICTED_CAPACITY, 0, 8)
        b.drained()

    def test_a_gap_is_filled(self, bench, tokens):
        """Device blocks behind a restored one are hits again and are not copied."""
        b = bench(blocks=20, host=20)
        b.serve(tokens(33), 1)
        cache = b.worker.cache
        first = next(block for block in cache.content if cache.content[block].parent == b.root())
        cache.evicted(first, b.now)
        b.worker.pool.unmark(first)
        b.step()
        done = b.serve(tokens(33), 1)
        assert hits(done) == (28, 4, 0)
        b.taught()
        b.drained()

    def test_only_the_part_that_pays(self, bench, tokens):
        """Blocks from the host are restored, those on a disk too slow for them are computed."""
        b = bench(blocks=10, host=8, disk=50)
        for seed in range(3):
            b.serve(tokens(33, seed=seed), 1)
        tiers = b.config.cache.tiers
        b.worker.memory.transfers.configure(replace_tiers(b, DiskConfig("/x", tiers.disk.size, latency=9.0)))
        done = b.serve(tokens(33), 1)
        assert done.truth.hit_disk == 0
        b.drained()

    @pytest.mark.parametrize(("slower", "restored"), [({"computing": 50}, True), ({"moving": 2000}, False)])
    def test_by_what_it_really_takes(self, bench, tokens, slower, restored):
        """Where steps take longer than the cost model says restoring pays earlier; where moves take longer
        than the bandwidth says, later."""
        b = bench(blocks=10, host=20, latency=0.5 if restored else 0.0002)
        execute = b.runner.execute

        def slowly(plan):
            result = execute(plan)
            moving = result.moving * slower.get("moving", 1)
            computing = (result.duration - result.moving) * slower.get("computing", 1)
            return replace(result, duration=computing + moving, moving=moving)

        b.runner.execute = slowly
        for seed in (0, 3, 0, 3, 0, 3):
            b.serve(tokens(33, seed=seed), 1)
        assert (b.serve(tokens(33), 1).truth.hit_host > 0) == restored
        b.drained()

    def test_a_long_run_is_priced_in_one_pass(self, bench, tokens):
        """Pricing 4,000 blocks to restore asks 4,000 times, not 8 million."""
        b = bench(blocks=4100, host=4100, budget=4096 * 4)
        b.serve(tokens(16_001), 1)
        b.send(m.Ballast(4100))
        while b.step() is not None:
            pass
        b.send(m.Ballast(0))
        with pytest.MonkeyPatch.context() as patch:
            spy = Mock(wraps=b.worker.memory.transfers.prices.moving)
            patch.setattr(b.worker.memory.transfers.prices, "moving", spy)
            assert b.serve(tokens(16_001), 1).truth.hit_host == 16_000
        assert spy.call_count == 4000


def replace_tiers(b, disk):
    cache = replace(b.config.cache, tiers=replace(b.config.cache.tiers, disk=disk))
    return replace(b.config, cache=cache)


class TestAside:
    def test_waits_aside_while_others_run(self, bench, tokens):
        """While its blocks load a request counts as waiting for them, and others compute."""
        b = filled(bench, tokens, blocks=24, host=40)
        b.send(m.Ballast(24))
        b.step()
        b.send(m.Ballast(0))
        id = b.submit(tokens(33), 4)
        other = b.submit(tokens(9, seed=9), 2)
        plan = b.begin()
        assert [row.id for row in plan.rows] == [other]
        assert {move.move for move in plan.transfers} == {Move.LOAD}
        waiting = {tuple(k): v for k, v in metric(b, "requests_waiting")}
        assert waiting["default", "restore"] == 1
        assert metric(b, "requests_running") == [[[], 1]]
        b.end()
        assert {row.id for row in b.begin().rows} == {id, other}
        b.end()
        b.run()
        assert hits(b.done[id]) == (0, 32, 0)
        b.taught()
        b.drained()

    def test_cancelled_while_it_loads(self, bench, tokens):
        """It ends in phase transfer, and its blocks are free when the moves have landed."""
        b = filled(bench, tokens, blocks=24, host=40)
        b.send(m.Ballast(24))
        b.step()
        b.send(m.Ballast(0))
        id = b.submit(tokens(33), 4)
        b.begin()
        b.cancel(id)
        assert b.worker.pool.fenced > 0
        b.end()
        assert b.done[id].reason is Finish.CANCELLED
        assert b.done[id].truth.cancel_phase == Phase.TRANSFER
        assert b.done[id].truth.steps_to_reclaim == 1
        b.drained()
        assert b.serve(tokens(33), 1).truth.hit_host == 32, "the copies are still there"

    def test_a_failed_load_is_computed(self, bench, tokens):
        """Blocks that cannot be loaded are misses for capacity; those before them are hits."""
        b = filled(bench, tokens, blocks=24, host=40)
        b.send(m.Ballast(24))
        b.step()
        b.send(m.Ballast(0))
        loads = []
        b.runner.fails = lambda move: move.move is Move.LOAD and (loads.append(move) or len(loads) == 3)
        done = b.serve(tokens(33), 2)
        assert hits(done) == (8, 0, 0)
        assert reasons(done) == [(MissReason.EVICTED_CAPACITY, 2, 6), (MissReason.BELOW_BLOCK, 8, 1)]
        assert (done.truth.computed, done.truth.preemptions) == (25, 0)
        b.taught()
        b.drained()

    def test_a_bad_disk_block_is_a_miss(self, bench, tokens):
        """A block that does not come back from disk is forgotten, counted, and computed."""
        b = bench(blocks=10, host=8, disk=50)
        for seed in range(3):
            b.serve(tokens(33, seed=seed), 1)
        b.runner.fails = lambda move: move.move is Move.FETCH
        done = b.serve(tokens(33), 2)
        assert done.truth.hit_disk == 0
        assert b.count("evicted_blocks_total", cause="bad", tier="disk") > 0
        assert reasons(done)[0][0] is MissReason.EVICTED_CAPACITY
        b.taught()
        b.drained()

    def test_a_full_disk_fails_nobody(self, bench, tokens):
        """Spills that fail lose their blocks and pause; requests do not notice."""
        b = bench(blocks=10, host=8, disk=50)
        spills = []
        b.runner.fails = lambda move: move.move is Move.SPILL and (spills.append(move) or True)
        for seed in range(6):
            b.serve(tokens(33, seed=seed), 1)
        assert 0 < len(spills) < 20, "after a failure none is tried for a while"
        assert not b.worker.cache.below.disk
        assert all(done.reason is Finish.LENGTH for done in b.done.values())
        b.taught()
        b.drained()

    def test_a_failed_step_loses_its_moves(self, bench, tokens):
        """A step that raises has moved nothing: what it loaded is computed, what it saved is lost."""
        b = filled(bench, tokens, blocks=24, host=40)
        b.send(m.Ballast(24))
        b.step()
        b.send(m.Ballast(0))
        id = b.submit(tokens(33), 2)
        b.begin()
        b.fail()
        b.run()
        assert b.done[id].reason is Finish.LENGTH
        assert b.done[id].truth.hit_host == 0
        b.taught()
        b.drained()

    def test_gives_up_after_a_second(self, bench, tokens):
        """A restore that long steps of others hold up is given up; what has come is kept."""
        b = filled(bench, tokens, blocks=120, host=40, budget=512)
        b.send(m.Ballast(120))
        b.step()
        b.send(m.Ballast(0))
        transfers = b.worker.memory.transfers
        transfers.sizes = replace(transfers.sizes, per_step=2)
        id = b.submit(tokens(33), 2)
        b.submit(tokens(300, seed=8), 60)
        b.begin()
        b.now += 2 * SECOND
        b.end()
        b.run()
        done = b.done[id]
        assert 0 < sum(hits(done)) < 32
        assert reasons(done)[0][0] is MissReason.EVICTED_CAPACITY
        b.taught()
        b.drained()


class TestLives:
    def test_a_life_goes_on_below(self, bench, tokens):
        """What was promised 5 s is gone after 5 s, also from the host, with the reason ttl."""
        b = bench(blocks=10, host=20)
        b.serve(tokens(33), 1, life=5 * SECOND)
        released = b.now
        b.serve(tokens(33, seed=3), 1, life=60 * SECOND)
        assert b.worker.cache.below.host
        assert b.worker.next_wakeup <= released + 5 * SECOND
        b.now = released + 5 * SECOND
        b.step()
        assert not b.worker.cache.below.host
        assert events(b, "removed", "host")[0].cause == "ttl"
        assert reasons(b.serve(tokens(33), 1))[0] == (MissReason.EVICTED_TTL, 0, 8)
        b.drained()

    def test_the_device_copy_takes_those_below_with_it(self, bench, tokens):
        """A life that ends on the device ends the copies below."""
        b = filled(bench, tokens, blocks=24, host=40)
        b.send(m.Ballast(24))
        b.step()
        b.send(m.Ballast(0))
        b.serve(tokens(33), 1, life=5 * SECOND)
        b.now += 5 * SECOND
        b.step()
        assert reasons(b.serve(tokens(33), 1))[0] == (MissReason.EVICTED_TTL, 0, 8)
        b.drained()

    def test_a_restore_stops_the_life(self, bench, tokens):
        """What comes back has the life of who brought it back."""
        b = bench(blocks=10, host=20)
        b.serve(tokens(33), 1, life=5 * SECOND)
        b.serve(tokens(33, seed=3), 1)
        b.now += 3 * SECOND
        assert b.serve(tokens(33), 1, life=60 * SECOND).truth.hit_host > 0
        b.now += 3 * SECOND
        assert sum(hits(b.serve(tokens(33), 1))) == 32
        b.drained()


def metric(b, name):
    return b.worker.heartbeat(b.now).metrics[f"headrace_engine_{name}"]


class TestNumbers:
    def test_sizes(self):
        """Bytes become whole blocks; a tier smaller than one block is refused."""
        tiers = TiersConfig(host=1000, swap=500, in_flight=350, disk=DiskConfig("/x", 2500))
        assert Sizes.of(tiers, 100) == Sizes(100, 10, 5, 25, 3)
        assert Sizes.of(TiersConfig(), 0) == Sizes()
        with pytest.raises(ValueError, match="less than one block"):
            Sizes.of(TiersConfig(host=99), 100)
        with pytest.raises(ValueError, match="not known"):
            Sizes.of(TiersConfig(host=99), 0)

    def test_a_lost_move_breaks_what_builds_on_it(self):
        """A load from a slot that a lost fetch should have filled brings nothing; refilled, it does."""
        fetch, load = Transfer(Move.FETCH, target=7, key=b"d"), Transfer(Move.LOAD, 7, 3)
        save, other = Transfer(Move.SAVE, 2, 7), Transfer(Move.LOAD, 7, 4)
        assert broken_moves((fetch, load, save, other), [0]) == {0, 1}
        assert broken_moves((fetch, load, save, other), []) == set()


@given(st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_whatever_moves_comes_back_whole(bench, tokens, data):
    """Prompts that share beginnings, a pool for one of them, small tiers and moves that fail: every text is
    what its request alone gives, and the books are right after each step (the bench audits)."""
    draw = data.draw
    b = bench(
        blocks=14,
        host=draw(st.sampled_from([4, 12, 20])),
        disk=draw(st.sampled_from([0, 6, 60])),
        moves=draw(st.sampled_from([4, 64])),
        eviction=draw(st.sampled_from(["lru", "ttl", "priority", "reuse", "footprint"])),
        copied_first=draw(st.booleans()),
        digest_bits=draw(st.sampled_from([8, 128, 128])),
    )
    failing = draw(st.sets(st.integers(0, 60), max_size=4))
    moved = []
    b.runner.fails = lambda move: moved.append(move) or len(moved) in failing
    for _ in range(draw(st.integers(4, 12))):
        stem, tail = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        prompt = tokens(draw(st.integers(4, 32)), seed=stem) + [4000 + tail] * draw(st.integers(1, 9))
        b.submit(prompt, 3, life=draw(st.sampled_from([None, SECOND // 10, SECOND])))
        for _ in range(draw(st.integers(0, 8))):
            b.step()
    b.run()
    b.taught()
    b.drained()


class TestMoves:
    """In which order, and how soon, decided moves leave."""

    SAVES = tuple(Transfer(Move.SAVE, block, block + 10) for block in (1, 2, 3, 4, 5))

    def waiting(self, per_step=2):
        moves = Moves(per_step)
        for save in self.SAVES:
            moves.down(save)
        return moves

    def test_so_many_in_a_step(self):
        """In order, until none is left; what is only forgotten on disk costs nothing."""
        moves, drop = self.waiting(), Transfer(Move.DROP, key=b"d")
        moves.down(drop)
        assert [moves.take(()) for _ in range(3)] == [self.SAVES[:2], self.SAVES[2:4], (self.SAVES[4], drop)]
        assert not moves

    def test_what_is_overwritten_goes_first_with_all_before_it(self):
        """So that whatever it builds on has happened."""
        moves = self.waiting()
        assert moves.take([3, 9]) == self.SAVES[:3]
        assert moves.take([3]) == self.SAVES[3:]

    def test_a_load_overwrites_too(self):
        """Moves up come behind those down that they need, and do not wait for others."""
        moves, load, other = self.waiting(), Transfer(Move.LOAD, 7, 4), Transfer(Move.LOAD, 8, 9)
        moves.up(other)
        assert moves.take(()) == (*self.SAVES[:2], other)
        moves.up(load)
        assert moves.take(()) == (*self.SAVES[2:4], load)

    def test_some_are_in_a_hurry(self):
        """Everything decided by then leaves with the next step."""
        moves = self.waiting(per_step=1)
        moves.hurry()
        assert moves.take(()) == self.SAVES


class TestHold:
    """A breakpoint stops a request between two steps that load its blocks (E48)."""

    def held(self, bench, tokens, phase="transfer:1"):
        b = filled(bench, tokens, host=20, moves=4)
        b.send(m.Hold(1, phase))
        id = b.submit(tokens(33), 2)
        while b.step() is not None:
            pass
        (report,) = b.told(m.Held)
        assert (report.id, report.phase) == (id, phase)
        return b, id

    def test_loads_no_more_until_it_is_released(self, bench, tokens):
        """It keeps its blocks; nobody loses patience meanwhile, and then it is restored as if nothing was."""
        b, id = self.held(bench, tokens)
        (sequence,) = b.worker.scheduler.running.values()
        assert 0 < len(sequence.loading.todo) < 8
        b.now += 5 * SECOND
        assert b.step() is None
        b.send(m.Release(1))
        b.run()
        assert hits(b.done[id]) == (4, 28, 0)
        b.taught()
        b.drained()

    def test_cancel(self, bench, tokens):
        """A cancel there is one in transfer, and everything comes free."""
        b, id = self.held(bench, tokens)
        b.cancel(id)
        assert b.done[id].truth.cancel_phase is Phase.TRANSFER
        b.drained()

    def test_after_the_last_load(self, bench, tokens):
        """Where the step was the last one, everything is there and nothing is computed."""
        b = filled(bench, tokens, host=20, moves=64)
        b.send(m.Hold(1, "transfer:1"))
        id = b.submit(tokens(33), 2)
        while b.step() is not None:
            pass
        assert b.told(m.Held)[0].id == id
        (sequence,) = b.worker.scheduler.running.values()
        assert (sequence.loading, sequence.computed) == (None, 32)
        b.send(m.Release(1))
        b.run()
        assert hits(b.done[id]) == (4, 28, 0)
        b.drained()
