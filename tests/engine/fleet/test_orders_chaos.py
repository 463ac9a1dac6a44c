"""Every order under everything at once: tenants with caps, classes, choices, deadlines, cancels, lost workers
and controls that change meanwhile. What is counted adds up at any time, and nothing is left (I2, I22)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from engine.config import ClassConfig, MemoryConfig, QueueConfig, TenantConfig
from engine.fleet.backend import Rejected
from engine.request import Finish
from engine.sched.orders import ORDERS
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import VirtualFleet, ask, config

CLASSES = {
    "a": ClassConfig(rank=0, deadline=30.0),
    "b": ClassConfig(rank=1, max_queued=20),
    "c": ClassConfig(rank=3),
}
TENANTS = {
    "capped": TenantConfig(max_active=3, max_queued=15),
    "heavy": TenantConfig(weight=3.0, max_kv_tokens=1500),
    "lowly": TenantConfig(class_="b"),
    "default": TenantConfig(max_queued_tokens=5000),
}
REFUSED = {400, 403, 429, 503}


def _wanted(rng: random.Random) -> Any:
    return ask(
        rng.randrange(1, 400),
        rng.randrange(6),
        rng.randrange(1, 50),
        class_=rng.choice(["a", "b", "c", "default"]),
        tenant=rng.choice(["capped", "heavy", "lowly", "x", "y"]),
        session=f"s{rng.randrange(5)}",
        n=rng.choice([1, 1, 1, 3]),
        deadline_s=rng.choice([None, None, 0.3, 5.0]),
    )


def _change(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [
            {"queue.order": rng.choice(list(ORDERS))},
            {"queue.aging": rng.choice([0.5, 10.0, 1000.0])},
            {"tenants": {"capped": {"max_active": rng.randrange(1, 5)}}},
            {"tenants.heavy.weight": rng.choice([0.5, 3.0])},
            {"classes.b.max_queued": rng.randrange(5, 40)},
            {"classes.c.rank": rng.randrange(0, 4)},
            {"priority_preemption": rng.choice([True, False])},
        ]
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_once_and_all_sums_hold(order: str, seed: int) -> None:
    """Audited every few events; caps are never passed; at rest nothing is counted any more."""

    async def main(clock: Clock) -> None:
        rng = random.Random(f"{order}/{seed}")
        of = config(
            workers=2,
            memory=MemoryConfig(kv_blocks=128),
            classes=CLASSES,
            tenants=TENANTS,
            queue=QueueConfig(order=order, max_requests=60, aging=2.0),  # type: ignore[arg-type]
        )
        async with VirtualFleet(of, clock, latency=rng.choice([0.0, 0.002])) as world:
            gateway, ids, statuses = world.fleet.gateway, [], set()
            for number in range(160):
                await asyncio.sleep(rng.expovariate(12.0))
                deal = rng.random()
                if deal < 0.8:
                    try:
                        ids.append(world.submit(_wanted(rng))[0])
                    except Rejected as rejected:
                        statuses.add(rejected.status)
                elif deal < 0.9 and ids:
                    world.fleet.cancel(rng.choice(ids), rng.choice([Finish.CANCELLED, Finish.STOP]))
                elif deal < 0.98:
                    await world.fleet.configure(_change(rng))
                elif number % 2:
                    await world.fleet.kill(rng.randrange(2))
                room = gateway.dispatcher.caps.active("heavy")
                assert room[1] <= 1500 or room[0] == 1
                if number % 10 == 0:
                    rows = (await world.fleet.audit())["invariants"]
                    assert [row for row in rows if row["ok"] is False] == []
            await world.quiet(3600.0)
            await asyncio.sleep(5.0)
            await world.check_at_rest()
            assert statuses <= REFUSED
            assert gateway.lives.admitted == gateway.lives.terminal == len(ids)
            assert gateway.dispatcher.queue.audit() == []
            assert not gateway.dispatcher.caps.all_active()
            assert gateway.dispatcher.queue.retry_after((1.0, 1.0)) == 1

    run_virtual(main)
