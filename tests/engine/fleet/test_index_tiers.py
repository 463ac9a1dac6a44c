"""What the gateway makes of blocks below the workers' devices: reach, worth, the way to them (F21, F33)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.config import CacheConfig, CostModel, DiskConfig, MemoryConfig, TiersConfig
from engine.fleet.backend import Ask
from engine.fleet.index import TIERS, mask
from engine.fleet.misses import facts_at
from engine.fleet.restoring import Restoring
from engine.fleet.router import Candidate, Overlap, Query, Setting, least_cost
from engine.kv.blocks import block_digests
from engine.kv.places import Copy
from engine.messages import KvEvent, KvEvents
from engine.request import MissReason
from engine.runner.cost import moving_seconds, prefill_seconds
from engine.runner.simulated import KV_BYTES, SimulatedRunner
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.test_block_index import ROOT, chain, index
from tests.engine.fleet.world import VirtualFleet, Yard, ask, config, prompt

BLOCK = 16 * KV_BYTES
SIZES = TiersConfig(host=64 * BLOCK)
FLEET = config(
    memory=MemoryConfig(kv_blocks=24),
    cache=CacheConfig(tiers=SIZES),
)


def event(kind: str, digest: bytes, parent: bytes, tier: str) -> KvEvent:
    if kind == "stored":
        return KvEvent("stored", (digest,), parent, tier=tier)
    return KvEvent("removed", (digest,), cause="capacity", tier=tier)


class Walked:
    """The truth beside an index: sets of what is held, and runs found by walking."""

    def __init__(self) -> None:
        self.index = index()
        self.trunk = chain(6)
        fork = block_digests(self.trunk[2], prompt(48, 9), 16)
        self.prompts = (self.trunk, (*self.trunk[:3], *fork))
        self.parents = {d: p for c in self.prompts for p, d in zip((ROOT, *c), c, strict=False)}
        self.held: dict[tuple[int, str], set[bytes]] = {(w, t): set() for w in (0, 1, 64) for t in TIERS}
        self.seqs = dict.fromkeys((0, 1, 64), 0)

    def tell(self, worker: int, kind: str, digest: bytes, tier: str) -> None:
        self.seqs[worker] += 1
        there = self.held[worker, tier]
        there.add(digest) if kind == "stored" else there.discard(digest)
        events = (event(kind, digest, self.parents[digest], tier),)
        self.index.apply(worker, KvEvents(1, self.seqs[worker], events))

    def gap(self, worker: int) -> None:
        self.seqs[worker] += 2
        self.index.apply(worker, KvEvents(1, self.seqs[worker], ()))
        for tier in TIERS:
            self.held[worker, tier].clear()

    def check(self) -> None:
        for worker in self.seqs:
            below: set[bytes] = set()
            levels = []
            for tier in TIERS:
                assert self.index.keys(worker, tier) == self.held[worker, tier]
                below |= self.held[worker, tier]
                levels.append(set(below))
            for digests in self.prompts:
                walk = tuple(
                    next((i for i, d in enumerate(digests) if d not in level), len(digests))
                    for level in levels
                )
                assert self.index.runs(digests, worker) == walk
                assert self.index.run(digests, worker) == walk[0]
                assert self.index.all_runs(digests).get(worker, (0, 0, 0)) == walk
        everything = set().union(*self.held.values())
        assert len(self.index) == len(everything)
        for digest in self.parents:
            bits = sum(mask(*place) for place, there in self.held.items() if digest in there)
            assert self.index.holders(digest) == bits


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_runs_of_all_levels_equal_a_linear_walk(data: st.DataObject) -> None:
    """Three tiers, forks, holes, gaps, a worker number beyond a machine word, any order (F33)."""
    walked = Walked()
    for _ in range(data.draw(st.integers(0, 50))):
        worker = data.draw(st.sampled_from(sorted(walked.seqs)))
        kind = data.draw(st.sampled_from(("stored", "stored", "removed", "gap")))
        if kind == "gap":
            walked.gap(worker)
        else:
            digest = data.draw(st.sampled_from(sorted(walked.parents)))
            walked.tell(worker, kind, digest, data.draw(st.sampled_from(TIERS)))
        walked.check()


def test_a_clear_takes_all_tiers_and_an_unknown_place_gives_no_credit() -> None:
    """``cleared`` names one tier and means every one; a tier that this gateway does not know is nothing."""
    found, digests = index(), chain(4)
    events = [event("stored", d, p, "host") for d, p in zip(digests, (ROOT, *digests), strict=False)]
    found.apply(0, KvEvents(1, 1, tuple(events)))
    found.apply(0, KvEvents(1, 2, (event("stored", digests[0], ROOT, "tape"),)))
    assert found.runs(digests, 0) == (0, 4, 4)
    found.apply(0, KvEvents(2, 1, (KvEvent("cleared", cause="reset"),)))
    assert found.runs(digests, 0) == (0, 0, 0)
    assert len(found) == 0


def test_a_block_in_another_workers_host_is_on_another_worker() -> None:
    """It could have been loaded there; in the own host it is the worker's to say what became of it."""
    found, digests = index(), chain(2)
    found.apply(1, KvEvents(1, 1, (event("stored", digests[0], ROOT, "host"),)))
    predicted = Yard(ready=False).gateway.dispatcher.predicted
    assert facts_at(digests, 0, found, predicted, others=0b10)[0] == (0, MissReason.ON_OTHER_WORKER)
    assert facts_at(digests, 1, found, predicted, others=0b01)[0] == (0, None)


# -- worth ------------------------------------------------------------------------------------------

COST = CostModel(a=0.01, b=0.001, c=0.001, d=0.0, e=1e-6)
DISK = TiersConfig(host=1 << 30, disk=DiskConfig("/unused", 1 << 30))


@settings(max_examples=500)
@example(device=0, host=2, disk=1, block_bytes=37762528, factors=(47.0, 16.0, 18.0))
@given(
    device=st.integers(0, 50),
    host=st.integers(0, 50),
    disk=st.integers(0, 50),
    block_bytes=st.integers(1, 1 << 28),
    factors=st.tuples(*[st.floats(0.1, 50)] * 3),
)
def test_what_is_kept_gains_most_of_all_prefixes(
    device: int, host: int, disk: int, block_bytes: int, factors: tuple[float, float, float]
) -> None:
    """The worker looks at every number of blocks (E45); two of them are enough. Credit is F21's at most, and
    never more than what is saved."""
    kept, credit = Restoring(COST, DISK, 16, block_bytes, factors).worth(Overlap(device, host, disk))
    gains = []
    for blocks in range(host + disk + 1):
        on_disk = max(0, blocks - host)
        moving = factors[1] * moving_seconds(DISK, block_bytes, blocks)
        moving += factors[2] * moving_seconds(DISK, block_bytes, 0, on_disk)
        gains.append(factors[0] * prefill_seconds(COST, device * 16, blocks * 16) - moving)
    best = gains[kept.host + kept.disk]
    assert best >= max(gains) - 1e-9
    assert (kept.device, min(kept.host, host), min(kept.disk, disk)) == (device, kept.host, kept.disk)
    assert device <= credit <= kept.credit <= Overlap(device, host, disk).credit
    if best <= 0:
        assert credit == device


def test_dear_loads_are_worth_what_they_save_and_cheap_ones_f21s_share() -> None:
    """10 blocks of 16 ms each: loading at a tenth is worth 7.5, at six tenths 4, at more nothing."""
    flat = CostModel(a=0.01, b=0.001, c=0.0, d=0.0, e=0.0)

    def worth(load_s: float) -> tuple[Overlap, float]:
        tiers = TiersConfig(host=1 << 30, host_bandwidth=round((1 << 20) / load_s), host_latency=0.0)
        return Restoring(flat, tiers, 16, 1 << 20).worth(Overlap(2, 10))

    assert worth(0.0016) == (Overlap(2, 10), 9.5)
    kept, credit = worth(0.0096)
    assert kept == Overlap(2, 10)
    assert credit == pytest.approx(6.0, rel=1e-4)
    assert worth(0.0161) == (Overlap(2), 2.0)


def test_a_worker_that_has_told_no_rates_is_believed() -> None:
    """Without the bytes of a block nothing is known of loads: F21's shares stand."""
    assert Restoring(COST, DISK, 16).worth(Overlap(1, 2, 4)) == (Overlap(1, 2, 4), 3.5)


def test_the_choice_goes_by_worth() -> None:
    """Ten blocks in a host that loads fast draw the prompt over six of backlog; in a slow one they do not."""
    there = Candidate(0, prefill=96, overlap=Overlap(host=10), worth=7.5)
    assert least_cost(Query(1, 400), [there, Candidate(1)], Setting()).worker == 0
    slow = dataclasses.replace(there, worth=5.0)
    assert least_cost(Query(1, 400), [slow, Candidate(1)], Setting()).worker == 1


def test_a_load_is_reserved_as_work_and_not_charged_as_prompt() -> None:
    """``prefill += new`` (F26) has what loading costs; the tenant pays for what is computed (E29)."""
    yard = Yard()
    dispatcher = yard.gateway.dispatcher
    first = yard.submit(ask(320))
    request = yard.gateway.lives.runs[first].request
    at = yard.gateway.lives.runs[first].worker
    assert at is not None
    yard.gateway.cancel(first, yard.now)
    yard.done(at, first)
    yard.say(at, KvEvents(1000, 1, (KvEvent("stored", tuple(request.digests[:10]), None, tier="host"),)))
    assert dispatcher.hit_tokens(request, at) == 160
    run = yard.gateway.lives.runs[yard.submit(ask(320))]
    assert (run.worker, run.to_compute) == (at, 160)
    assert dispatcher.ledger.load(at).prefill == 320 - 0.75 * 160
    yard.gateway.cancel(run.id, yard.now)
    yard.done(at, run.id)
    assert dispatcher.ledger.load(at).prefill == 0


def test_a_prompt_that_lies_below_as_a_whole_is_hit_but_for_its_last_block() -> None:
    """E17 holds for what is loaded too: one token at least is computed."""
    yard = Yard()
    run = yard.gateway.lives.runs[yard.submit(ask(160))]
    assert run.worker is not None
    other = 1 - run.worker
    tiers = [
        ("host", run.request.digests[:4], None),
        ("disk", run.request.digests[4:], run.request.digests[3]),
    ]
    events = tuple(KvEvent("stored", tuple(digests), above, tier=tier) for tier, digests, above in tiers)
    yard.say(other, KvEvents(1000, 1, events))
    have, worth = yard.gateway.dispatcher.overlap(run.request, other)
    assert (have, worth) == (Overlap(0, 4, 5), 0.75 * 4 + 0.25 * 5)
    yard.say(other, KvEvents(1000, 2, (KvEvent("stored", tuple(run.request.digests), None, tier="host"),)))
    assert yard.gateway.dispatcher.overlap(run.request, other)[0] == Overlap(0, 9, 0)


# -- in the fleet ------------------------------------------------------------------------------------


async def push_out(world: VirtualFleet, worker: int, seeds: range, each: float = 2.0) -> None:
    """Other prompts on this worker alone, until what it held has moved below."""
    other = 1 - worker
    await world.pool.freeze(other)
    await asyncio.sleep(1.1)
    for seed in seeds:
        world.submit(ask(200, seed))
        await asyncio.sleep(each)
    await world.pool.thaw(other)
    await world.quiet()
    await asyncio.sleep(1.0)  # until it is in rotation again


@pytest.mark.parametrize("worker", [0, 1])
def test_a_prompt_goes_to_the_worker_whose_host_has_its_prefix(worker: int) -> None:
    """Demoted there, nowhere else: it is routed there by overlap, loaded, and its truth says hit_host; what
    was predicted came true."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(FLEET, clock) as world:
            await push_out(world, worker, range(4))
            dispatcher = world.fleet.gateway.dispatcher
            held = [set(dispatcher.events.keys(worker, tier)) for tier in ("device", "host")]
            first = world.pool._lives[worker].worker.cache
            assert held[0] == {content.digest for content in first.content.values()}
            assert held[1] == {d for d in first.below.entries if first.below.copied(d)}
            assert held[1] - held[0]
            world.submit(ask(200, 0))
            await world.quiet()
            row = (await world.fleet.truth())[-1]
            assert (row["worker"], row["route"]["reason"]) == (worker, "overlap")
            assert row["hit_host"] == 192
            assert row["route"]["predicted_hit"] == row["hit_device"] + row["hit_host"]
            assert world.streams[-1].tokens == world.streams[0].tokens

    run_virtual(main)


def test_a_host_that_loads_too_slowly_draws_nobody() -> None:
    """Its worker would not restore: no credit, no predicted hit, and none comes."""
    slow = TiersConfig(host=64 * BLOCK, host_bandwidth=100_000)

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(FLEET, cache=CacheConfig(tiers=slow))
        async with VirtualFleet(of, clock) as world:
            await push_out(world, 1, range(4))
            events = world.fleet.gateway.dispatcher.events
            assert events.keys(1, "host") - events.keys(1)
            world.submit(ask(200, 0))
            await world.quiet()
            row = (await world.fleet.truth())[-1]
            assert row["route"]["reason"] == "load"
            assert row["route"]["predicted_hit"] == row["hit_host"] == 0

    run_virtual(main)


class Sluggish(SimulatedRunner):
    """Moves take far longer than the configuration says."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of, tiers=TiersConfig(host_bandwidth=1_000_000))


def test_what_a_worker_has_learned_of_its_host_is_heard() -> None:
    """The configured rates promise much; by the measured ones it does not pay, and nobody is drawn (E45)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(FLEET, clock, runner=lambda worker: Sluggish) as world:
            await push_out(world, 1, range(4), each=20.0)
            heartbeat = world.fleet.gateway.health[1].heartbeat
            assert heartbeat is not None
            assert heartbeat.load.factors[1] > 100
            world.submit(ask(200, 0))
            await world.quiet()
            row = (await world.fleet.truth())[-1]
            assert row["route"]["predicted_hit"] == row["hit_host"] == 0
            assert row["route"]["terms"]["1"]["credit"] == 0

    run_virtual(main)


@pytest.mark.parametrize("seed", range(6))
def test_at_rest_the_index_is_what_the_workers_hold_in_every_tier(seed: int) -> None:
    """Prompts with common prefixes, hang-ups, a death and a clear over three small tiers (I24): neither too
    much nor too little."""
    rng = random.Random(seed)
    tiers = TiersConfig(host=12 * BLOCK, disk=DiskConfig("/unused", 40 * BLOCK))

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(FLEET, cache=CacheConfig(tiers=tiers))
        async with VirtualFleet(of, clock) as world:
            for number in range(60):
                head = prompt(16 * rng.randrange(1, 8), rng.randrange(4))
                tail = prompt(rng.randrange(8, 80), rng.randrange(6) + 10)
                id, _ = world.submit(Ask(head + tail, 16))
                await asyncio.sleep(rng.choice((0.05, 0.4, 1.0)))
                if rng.random() < 0.1:
                    world.fleet.cancel(id)
                if number == 25:
                    await world.fleet.kill(seed % 2)
                if number == 45:
                    await world.fleet.cache_reset()
            await world.quiet()
            await asyncio.sleep(12)
            index = world.fleet.gateway.dispatcher.events
            everything = set()
            for worker, life in world.pool._lives.items():
                cache = life.worker.cache
                there = {
                    "device": {content.digest for content in cache.content.values()},
                    "host": {d for d, e in cache.below.entries.items() if e.host is Copy.THERE},
                    "disk": {d for d, e in cache.below.entries.items() if e.disk is Copy.THERE},
                }
                assert {tier: index.keys(worker, tier) for tier in TIERS} == there
                everything |= set().union(*there.values())
            assert len(index) == len(everything)
            rows = [row for row in await world.fleet.truth() if row["finish_reason"] == "length"]
            assert sum(row["hit_host"] + row["hit_disk"] for row in rows) > 0

    run_virtual(main)
