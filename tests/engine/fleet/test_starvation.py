"""Who waits how long when more comes than can be served (ENGINE E29, E30; F29), on a whole fleet."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from engine.config import ClassConfig, QueueConfig, RouterConfig, TenantConfig
from engine.request import Finish
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import MS, Listening, S, VirtualFleet, ask, config

LADDER = {"urgent": ClassConfig(rank=0), "low": ClassConfig(rank=3)}
OF = config(workers=1, classes=LADDER)


def _flooded(queue: QueueConfig, seconds: float = 40.0) -> float | None:
    """A low request comes when urgent ones have begun to come faster than they are served, and go on for so
    many seconds; returns how long it waited for its first token, None if longer than all of them came."""
    waited: list[float | None] = []

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(OF, queue=dataclasses.replace(queue, max_requests=10_000, max_tokens=10**8))
        async with VirtualFleet(of, clock) as world:
            low: Listening | None = None
            began = clock()
            came = 0
            while clock() - began < seconds * S:
                came += 1
                world.submit(ask(200, came, 8, class_="urgent"))
                if came == 8:
                    _, low = world.submit(ask(64, 10**6, 8, class_="low"))
                    at = clock()
                if low is not None and low.tokens and not waited:
                    waited.append((clock() - at) / S)
                await asyncio.sleep(0.2)
            if not waited:
                waited.append(None)
            await world.quiet(3600.0)
            await world.check_at_rest()

    run_virtual(main)
    return waited[0]


@pytest.mark.parametrize("order", ["priority", "fair"])
def test_a_low_class_is_served_within_its_ranks_times_aging(order: str) -> None:
    """Rank 3 and 2 s of aging: as urgent as the newest after 6 s, and ahead of all that came later."""
    waited = _flooded(QueueConfig(order=order, aging=2.0))  # type: ignore[arg-type]
    assert waited is not None
    assert 3.0 < waited < 3 * 2.0 + 8.0


@pytest.mark.parametrize("order", ["priority", "fair"])
def test_without_aging_the_low_class_starves(order: str) -> None:
    """As long as urgent ones keep coming it is not served at all."""
    assert _flooded(QueueConfig(order=order, aging=1e6)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("order", "first"), [("priority", True), ("fcfs", False)])
def test_an_urgent_request_passes_the_bulk_that_waits(order: str, first: bool) -> None:
    """Twenty long bulk prompts wait; the urgent one goes before all but those already sent (I18)."""
    seen: list[float] = []

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(OF, queue=QueueConfig(order=order))  # type: ignore[arg-type]
        async with VirtualFleet(of, clock) as world:
            bulk = [world.submit(ask(500, seed, 4, class_="low"))[1] for seed in range(20)]
            await asyncio.sleep(0.5)
            _, urgent = world.submit(ask(32, 99, 4, class_="urgent"))
            await world.quiet()
            assert urgent.ended_at is not None
            seen.append(sum((each.ended_at or 0) < urgent.ended_at for each in bulk))
            await world.check_at_rest()

    run_virtual(main)
    assert (seen[0] <= 4) is first


def test_a_small_tenant_does_not_notice_a_flood() -> None:
    """Served by what each has had, it waits for a few requests of the flood; in order of arrival for all."""
    waits: dict[str, float] = {}

    async def main(clock: Clock, order: str) -> None:
        queue = QueueConfig(order=order, max_requests=10_000, max_tokens=10**8)  # type: ignore[arg-type]
        async with VirtualFleet(config(workers=1, queue=queue), clock) as world:
            for seed in range(200):
                world.submit(ask(200, seed, 8, tenant="flood"))
            worst = 0.0
            for seed in range(5):
                await asyncio.sleep(1.0)
                at = clock()
                _, stream = world.submit(ask(64, 1000 + seed, 4, tenant="small"))
                while not stream.ends:
                    await asyncio.sleep(0.05)
                worst = max(worst, (clock() - at) / S)
            waits[order] = worst
            await world.quiet(3600.0)
            await world.check_at_rest()

    for order in ("fair", "fcfs"):
        run_virtual(lambda clock, order=order: main(clock, order))
    assert waits["fair"] < 3.0
    assert waits["fcfs"] > 20.0


def test_a_capped_tenant_leaves_room_for_the_others() -> None:
    """In order of arrival with two active at most for the flood: the others' requests pass it."""

    async def main(clock: Clock) -> None:
        of = config(
            workers=1,
            queue=QueueConfig(order="fcfs", max_requests=1000, max_tokens=10**7),
            tenants={"flood": TenantConfig(max_active=2)},
        )
        async with VirtualFleet(of, clock) as world:
            for seed in range(50):
                world.submit(ask(200, seed, 40, tenant="flood"))
            at = clock()
            _, stream = world.submit(ask(64, 1000, 4, tenant="small"))
            while not stream.ends:
                running = world.fleet.gateway.dispatcher.caps.active("flood")[0]
                assert running <= 2
                await asyncio.sleep(0.05)
            assert (clock() - at) / S < 2.0
            await world.quiet(3600.0)
            await world.check_at_rest()

    run_virtual(main)


def test_an_expired_request_gives_back_what_it_did_not_use() -> None:
    """In the queue: no prefill, no charge. In the middle of its decode: partial text, what was computed stays
    charged and nothing else, and its reservation is gone with its blocks (E31, case C15)."""

    async def main(clock: Clock) -> None:
        cost = dataclasses.replace(OF.cost, a=0.01, b=0.0, c=0.0, d=0.0, e=0.0)
        of = config(
            workers=1, cost=cost, router=RouterConfig(max_dispatched=1), queue=QueueConfig(order="fair")
        )
        async with VirtualFleet(of, clock) as world:
            dispatcher = world.fleet.gateway.dispatcher
            service, caps = dispatcher.queue.service, dispatcher.caps
            began = clock()
            world.submit(ask(32, 1, max_tokens=100, tenant="first"))
            _, queued = world.submit(ask(32, 2, deadline_s=0.05, tenant="queued"))
            level = service.of("queued")
            _, late = world.submit(ask(32, 3, max_tokens=100, deadline_s=1.5, tenant="late"))
            before = service.of("late")
            await world.quiet()
            assert queued.ended_at is not None
            assert 50 * MS <= queued.ended_at - began <= 60 * MS
            assert (queued.end.finish, queued.tokens, service.of("queued")) == (Finish.EXPIRED, [], level)
            assert (late.end.finish, late.end.code) == (Finish.EXPIRED, "deadline_exceeded")
            assert 0 < len(late.tokens) < 100
            (row,) = [row for row in await world.fleet.truth() if row["generated"] == len(late.tokens)]
            assert service.of("late") == before + row["computed"] + 2 * len(late.tokens)
            assert row["reclaimed"] - row["cancel_flagged"] <= 10 * MS
            assert not caps.all_active()
            assert dispatcher.ledger.load(0).requests == 0
            _, after = world.submit(ask(32, 3, tenant="late"))
            await world.quiet()
            assert after.end.finish is Finish.LENGTH
            await world.check_at_rest()

    run_virtual(main)


def test_an_urgent_arrival_goes_before_a_long_prompt_that_has_not_started() -> None:
    """A long bulk prompt was sent and waits behind running work: it is recalled and starts after (F29)."""

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(
            OF,
            queue=QueueConfig(order="priority"),
            scheduler=dataclasses.replace(OF.scheduler, max_running=1),
            router=RouterConfig(max_dispatched=2),
        )
        async with VirtualFleet(of, clock) as world:
            world.submit(ask(64, 1, 60, class_="low"))
            await asyncio.sleep(0.3)
            _, bulk = world.submit(ask(2000, 2, 4, class_="low"))
            await asyncio.sleep(0.1)
            _, urgent = world.submit(ask(64, 3, 4, class_="urgent"))
            await world.quiet()
            assert urgent.ended_at is not None
            assert bulk.ended_at is not None
            assert urgent.ended_at < bulk.ended_at
            assert world.fleet.meter.get("headrace_router_recalls_total", reason="urgent") == 1
            assert bulk.end.attempt == 1
            await world.check_at_rest()

    run_virtual(main)


@pytest.mark.parametrize("allowed", [True, False])
def test_an_urgent_arrival_takes_the_blocks_of_a_lower_class(allowed: bool) -> None:
    """Bulk requests hold the whole pool for long: with `priority_preemption` the urgent one is served at
    once, from gateway to pool, and the bulk ones end all the same (E26)."""

    async def main(clock: Clock) -> None:
        of = dataclasses.replace(
            OF,
            queue=QueueConfig(order="priority"),
            memory=dataclasses.replace(OF.memory, kv_blocks=64),
            priority_preemption=allowed,
        )
        async with VirtualFleet(of, clock) as world:
            for seed in range(6):
                world.submit(ask(64, seed, 400, class_="low"))
            await asyncio.sleep(2.0)
            at = clock()
            _, urgent = world.submit(ask(200, 99, 4, class_="urgent"))
            await world.quiet(3600.0)
            assert urgent.ended_at is not None
            assert ((urgent.ended_at - at) / S < 2.0) is allowed
            await world.check_at_rest()

    run_virtual(main)
