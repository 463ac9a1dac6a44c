"""Tiers below the workers' devices, seen from the gateway."""

from __future__ import annotations

import asyncio

from engine.config import CacheConfig, ClassConfig, DiskConfig, MemoryConfig, TiersConfig
from engine.runner.simulated import KV_BYTES
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import S, VirtualFleet, ask, config

BLOCK = 16 * KV_BYTES
TIERS = TiersConfig(host=16 * BLOCK, disk=DiskConfig("/unused", 200 * BLOCK))
SMALL = config(
    workers=1,
    memory=MemoryConfig(kv_blocks=24),
    cache=CacheConfig(tiers=TIERS, retention={"minute": 60.0}),
    classes={"default": ClassConfig(default_output=16, retention="minute")},
)


def test_answers_say_what_came_from_every_tier() -> None:
    """``cached`` counts all tiers, the truth each by itself, and both agree with the misses; the text is the
    same. The gateway's index knows exactly what is on the device."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(SMALL, clock) as world:
            for seed in (0, 1, 2, 3, 0, 1):
                world.submit(ask(200, seed))
                await world.quiet()
            await world.check_at_rest()
            rows = await world.fleet.truth()
            again = list(zip(world.streams, rows, strict=True))[4:]
            for stream, row in again:
                assert row["hit_host"] + row["hit_disk"] > 0
                hit = row["hit_device"] + row["hit_host"] + row["hit_disk"]
                assert stream.end.cached == hit
                assert hit + sum(miss["tokens"] for miss in row["misses"]) == row["prompt"] == 200
            assert sum(row["hit_disk"] for _, row in again) > 0
            assert world.streams[4].tokens == world.streams[0].tokens
            cache = world.pool._lives[0].worker.cache
            held = {content.digest for content in cache.content.values()}
            assert world.fleet.gateway.dispatcher.events.keys(0) == held
            assert not held >= cache.below.entries.keys()

    run_virtual(main)


def test_what_was_promised_a_minute_is_gone_after_it() -> None:
    """In every tier, with the reason; until then it is there."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(SMALL, clock) as world:
            for seed in (0, 1, 2, 3):
                world.submit(ask(200, seed))
                await world.quiet()
            await asyncio.sleep(61)
            world.submit(ask(200, 0))
            await world.quiet()
            (*_, row) = await world.fleet.truth()
            assert row["hit_device"] + row["hit_host"] + row["hit_disk"] == 0
            assert row["misses"][0]["reason"] == "evicted_ttl"
            assert clock() > 61 * S

    run_virtual(main)
