"""POST /admin/tier end to end: from the door over the gateway to the workers' disks, and back (JOINTS 8)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from engine.api.admin import AdminDoor, token_of
from engine.api.server import Server
from engine.config import CacheConfig, DiskConfig, MemoryConfig, TiersConfig
from engine.runner.simulated import KV_BYTES
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import VirtualFleet, ask, config

BLOCK = 16 * KV_BYTES
TIERED = config(
    workers=1,
    memory=MemoryConfig(kv_blocks=24),
    cache=CacheConfig(tiers=TiersConfig(host=16 * BLOCK, disk=DiskConfig("/unused", 200 * BLOCK))),
)


async def disk_of(world: VirtualFleet, worker: int = 0) -> dict[str, Any]:
    await asyncio.sleep(0.5)  # two heartbeats
    row: dict[str, Any] = (await world.fleet.state())["workers"][worker]["disk"]
    return row


async def serve(world: VirtualFleet, *seeds: int) -> dict[str, Any]:
    """The truth of the last of these prompts."""
    for seed in seeds:
        world.submit(ask(200, seed))
        await world.quiet()
    row: dict[str, Any] = (await world.fleet.truth())[-1]
    return row


def test_a_full_disk_loses_spills_and_nothing_else() -> None:
    """Said in the state, gone from the index, computed again; healed, the disk serves hits again."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TIERED, clock) as world:
            await world.fleet.tier("full")
            row = await serve(world, 0, 1, 2, 3, 0)
            assert row["hit_disk"] == 0
            assert row["misses"][0]["reason"] == "evicted_capacity"
            disk = await disk_of(world)
            assert disk["fault"] == "full"
            assert disk["spills_lost"] > 0
            assert world.fleet.gateway.dispatcher.events.keys(0, "disk") == frozenset()
            assert b'failed_moves_total{model="simulated",worker="0",move="spill"}' in world.fleet.metrics()
            await world.fleet.tier(None)
            await asyncio.sleep(1.5)  # after a failure none is tried for a second
            assert (await serve(world, 4, 5, 6, 7, 4))["hit_disk"] > 0
            assert (await disk_of(world))["fault"] is None
            assert world.streams[4].tokens == world.streams[0].tokens
            await world.check_at_rest()

    run_virtual(main)


def test_a_corrupt_disk_is_a_miss_that_is_counted() -> None:
    """What was spilled before comes back bad: computed again with the same text, the copies given up."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TIERED, clock) as world:
            await serve(world, 0, 1, 2, 3)
            await world.fleet.tier("corrupt")
            row = await serve(world, 0)
            assert (row["hit_disk"], row["finish_reason"]) == (0, "length")
            disk = await disk_of(world)
            assert (disk["fault"], disk["spills_lost"]) == ("corrupt", 0)
            assert disk["fetches_lost"] > 0
            assert world.streams[4].tokens == world.streams[0].tokens
            await world.fleet.tier(None)
            assert (await serve(world, 5, 6, 7, 8, 5))["hit_disk"] > 0
            await world.check_at_rest()

    run_virtual(main)


def test_a_worker_that_comes_back_has_the_same_disk() -> None:
    """The fault outlives its processes; a heal between lives holds as well."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TIERED, clock) as world:
            await world.fleet.tier("full")
            await world.fleet.kill(0)
            await asyncio.sleep(5)
            await serve(world, 0, 1, 2, 3)
            assert (await disk_of(world))["spills_lost"] > 0
            await world.fleet.kill(0)
            await world.fleet.tier(None)
            await asyncio.sleep(8)
            await serve(world, 0, 1, 2, 3)
            assert (await disk_of(world))["spills_lost"] == 0

    run_virtual(main)


def test_without_a_disk_there_is_none_to_break_or_to_show() -> None:
    """A clear refusal; to heal what is whole is no error."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(config(workers=1), clock) as world:
            with pytest.raises(ValueError, match=r"cache\.tiers\.disk is not set"):
                await world.fleet.tier("full")
            await world.fleet.tier(None)
            assert (await world.fleet.state())["workers"][0]["disk"] is None

    run_virtual(main)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "given is nothing"),
        ({"host": "full"}, "given is 'host'"),
        ({"\udc80" * 9_999: "full"}, "\\udc80"),
        ({"disk": "full", "worker": 1}, "given is 'disk, worker'"),
        ({"disk": "ful"}, "none of full, corrupt, and null to heal it (did you mean full?)"),
        ({"disk": 7}, "text is needed, not 7"),
        ({"disk": ["full"]}, "text is needed"),
        ({"disk": "\udc80"}, "not Unicode text"),
        ({"disk": "x" * 10_000}, "none of full"),
    ],
)
def test_the_door_refuses_what_it_cannot_do(tmp_path: Any, body: dict[str, Any], words: str) -> None:
    """400 with what is needed; nothing is told to any worker."""
    status, answer, told = posted(tmp_path, body)
    assert (status, told) == (400, [])
    assert words in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 1000


@pytest.mark.parametrize("disk", ["full", "corrupt", None])
def test_the_door_hands_on(tmp_path: Any, disk: str | None) -> None:
    """Each value that there is, to the gateway."""
    assert posted(tmp_path, {"disk": disk}) == (200, {}, [disk])


def posted(tmp_path: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any], list[str | None]]:
    """What a door over a fleet of simulated workers answers, and what the gateway was then told."""

    async def main() -> tuple[int, dict[str, Any], list[str | None]]:
        world = VirtualFleet(TIERED, lambda: 0)
        told: list[str | None] = []
        world.fleet.gateway.break_disk = told.append  # type: ignore[method-assign, assignment]
        server = Server(AdminDoor(world.fleet, token_of(tmp_path / "token")).application())
        url = await server.start("127.0.0.1", 0)
        headers = {"Authorization": f"Bearer {(tmp_path / 'token').read_text().strip()}"}
        try:
            async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
                answer = await client.post("/admin/tier", content=json.dumps(body))
                return answer.status_code, answer.json(), told
        finally:
            await server.stop()

    return asyncio.run(main())
