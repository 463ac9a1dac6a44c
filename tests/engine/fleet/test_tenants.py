"""Tenants and classes at the gateway: caps, charges, lives, adapters (ENGINE E15, E28, E29, E39)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from engine import messages as m
from engine.config import CacheConfig, ClassConfig, QueueConfig, RouterConfig, TenantConfig
from engine.fleet.adapters import Adapter
from engine.fleet.backend import Rejected
from engine.request import Finish
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import MS, S, VirtualFleet, Yard, ask, config

FAIR = QueueConfig(order="fair")


def yard(order: str = "fair", **changes: Any) -> Yard:
    changes = {"workers": 1, "queue": QueueConfig(order=order)} | changes  # type: ignore[arg-type]
    return Yard(config(**changes))


def speed(of: Yard, prefill: float, decode: float) -> None:
    """Worker 0 tells how fast it is."""
    load = m.Load(prefill_rate=prefill, decode_rate=decode)
    of.say(0, m.Heartbeat("w0-1", 1000, 0, None, "ready", load))


def refused(of: Yard, **fields: Any) -> Rejected:
    with pytest.raises(Rejected) as rejected:
        of.submit(ask(**fields))
    return rejected.value


@pytest.mark.parametrize("order", ["fcfs", "fair"])
def test_a_tenant_at_its_cap_is_passed_over_and_not_refused(order: str) -> None:
    """Two active of it at most; the others' requests go, though they came later; an end lets one more go."""
    of = yard(order, tenants={"a": TenantConfig(max_active=2)})
    mine = [of.submit(ask(16, seed, tenant="a")) for seed in range(100)]
    other = of.submit(ask(16, 200, tenant="b"))
    assert [r.id for r in of.requests(0)] == [*mine[:2], other]
    of.token(0, mine[0])
    of.done(0, mine[0])
    assert [r.id for r in of.requests(0)] == [*mine[:2], other, mine[2]]


def test_kv_tokens_of_a_tenant_are_capped_by_what_they_may_become() -> None:
    """64 + 16 tokens are 5 blocks each, so two fit into 160 tokens; one that alone is larger gets a 400."""
    of = yard(tenants={"default": TenantConfig(max_kv_tokens=160)})
    ids = [of.submit(ask(64, seed)) for seed in range(3)]
    assert [r.id for r in of.requests(0)] == ids[:2]
    assert of.gateway.dispatcher.caps.active("default") == (2, 160)
    too_large = refused(of, length=200)
    assert (too_large.status, too_large.code) == (400, "tenant_kv_limit")
    assert "216 KV tokens" not in too_large.message
    assert "224 KV tokens" in too_large.message
    of.cancel(ids[0])
    of.done(0, ids[0], Finish.CANCELLED)
    assert [r.id for r in of.requests(0)] == ids


def test_queued_requests_of_a_tenant_are_bounded_at_the_door() -> None:
    """429 with Retry-After and a reason of its own, also before there is a prompt."""
    of = yard(tenants={"a": TenantConfig(max_queued=1)}, router=RouterConfig(max_dispatched=1))
    for seed in range(2):
        of.submit(ask(16, seed, tenant="a"))
    full = refused(of, tenant="a")
    assert (full.status, full.code, full.retry_after) == (429, "tenant_queue_full", 2)
    with pytest.raises(Rejected, match="of tenant 'a'"):
        of.gateway.admits("default", "a")
    of.gateway.admits("default", "b")
    assert of.counter("rejections", reason="tenant_queue_full", class_="default") == 2


def test_a_class_may_only_be_lowered() -> None:
    """The tenant's own class is the most urgent that it may name; unlabelled requests have it."""
    of = yard(
        classes={"chat": ClassConfig(rank=0), "work": ClassConfig(rank=1), "batch": ClassConfig(rank=2)},
        tenants={"a": TenantConfig(class_="work")},
    )
    for named in ("default", "work", "batch"):
        of.submit(ask(16, class_=named, tenant="a"))
    assert [r.class_ for r in of.requests(0)] == ["work", "work", "batch"]
    above = refused(of, class_="chat", tenant="a")
    assert (above.status, above.code) == (403, "class_not_allowed")
    assert of.counter("rejections", reason="class_not_allowed", class_="chat") == 1
    of.submit(ask(16, class_="chat", tenant="b"))


def test_the_charge_is_what_was_computed() -> None:
    """At dispatch the whole uncached prompt, per token as they come; a cancel in prefill gives back what was
    not computed, and one in the queue was never charged (E29, C15)."""
    of = yard(router=RouterConfig(max_dispatched=1))
    service = of.gateway.dispatcher.queue.service
    first = of.submit(ask(100, 1, tenant="a"))
    assert service.of("a") == 100
    of.progress(0, first, 60)
    waits = of.submit(ask(100, 2, tenant="b"))
    assert service.of("b") == 100, "it came to where the last one served stands"
    of.cancel(first)
    of.done(0, first, Finish.CANCELLED, computed=60)
    assert service.of("a") == 60
    assert service.of("b") == 200
    of.token(0, waits)
    of.token(0, waits)
    assert service.of("b") == 204


def test_a_retry_is_charged_once() -> None:
    """Two attempts that compute the same prompt are one charge; what the second adds is charged too."""
    of = yard(workers=2)
    service = of.gateway.dispatcher.queue.service
    id = of.submit(ask(100, 1, tenant="a"))
    (at,) = of.where(id)
    of.progress(at, id, 60)
    of.lose(at)
    (again,) = [worker for worker in of.where(id) if worker != at]
    assert service.of("a") == 100
    of.token(again, id, attempt=2)
    of.done(again, id, attempt=2, computed=100, generated=1)
    assert service.of("a") == 102
    assert of.gateway.dispatcher.caps.active("a") == (0, 0)


def test_a_hit_that_nobody_foresaw_is_not_charged() -> None:
    """The worker says what it computed."""
    of = yard()
    id = of.submit(ask(100, 1, tenant="a"))
    of.token(0, id)
    of.done(0, id, computed=20, hit_device=80, generated=1)
    assert of.gateway.dispatcher.queue.service.of("a") == 22


def test_one_pass_over_the_queue_sees_what_it_has_charged() -> None:
    """A burst of one tenant and another's, let go at once, leave alternately, not one after the other."""
    of = yard(router=RouterConfig(max_dispatched=1))
    blocker = of.submit(ask(16, 99, tenant="c"))
    ids = {tenant: [of.submit(ask(16, seed, tenant=tenant)) for seed in range(4)] for tenant in "ab"}
    of.gateway.configure(dataclasses.replace(of.config, router=RouterConfig()), {}, of.now)
    of.token(0, blocker)
    sent = [r.tenant for r in of.requests(0)][1:]
    assert sent == ["a", "b"] * 4
    assert [r.id for r in of.requests(0)][1:3] == [ids["a"][0], ids["b"][0]]


def test_edf_drops_at_its_turn_who_cannot_end_in_time() -> None:
    """Expired at once, before any prefill and with nothing charged; the feasible one behind it goes."""
    of = yard("edf", router=RouterConfig(max_dispatched=1))
    for _ in range(20):
        of.gateway.dispatcher.outputs.ended("default", 16)
    blocker = of.submit(ask(16, 1))
    # 16 tokens take 16 * (12 + 4) ms after 300 prompt tokens of about 1.3 ms
    hopeless = of.submit(ask(300, 2, deadline_s=0.5, tenant="a"))
    feasible = of.submit(ask(300, 3, deadline_s=0.8))
    charged = of.gateway.dispatcher.queue.service.of("a")
    of.now += 10 * MS
    of.token(0, blocker)
    of.done(0, blocker)
    end = of.ended(hopeless)
    assert (end.finish, end.code) == (Finish.EXPIRED, "deadline_exceeded")
    assert end.message == "its turn came too late to be done by its deadline"
    assert of.where(hopeless) == []
    assert of.where(feasible) == [0]
    assert of.gateway.dispatcher.queue.service.of("a") == charged
    assert of.gateway.dispatcher.queue.tokens == 0


def test_other_orders_drop_nobody() -> None:
    """It may end in time after all, or with part of its text."""
    of = yard("fcfs")
    late = of.submit(ask(300, 2, deadline_s=0.05))
    assert of.where(late) == [0]


def test_an_unreachable_deadline_is_refused_by_the_two_rates() -> None:
    """Ten requests of 80 + 16 tokens at 800/s and 100/s are 2.6 s of work (C15)."""
    of = yard("fcfs", router=RouterConfig(max_dispatched=1))
    speed(of, 800.0, 100.0)
    for seed in range(11):
        of.submit(ask(80, seed))
    unreachable = refused(of, length=80, seed=50, deadline_s=2.5)
    assert (unreachable.status, unreachable.code) == (429, "deadline_unreachable")
    assert unreachable.retry_after in (3, 4)
    of.submit(ask(80, 50, deadline_s=2.7))


def test_a_deadline_behind_cached_prompts_is_reachable() -> None:
    """The same tokens, but the worker holds them: 10*(1/800 + 16/100) s are less than 2.5 s (C15)."""
    of = yard("fcfs", router=RouterConfig(max_dispatched=1))
    speed(of, 800.0, 100.0)
    first = of.submit(ask(81, 7))
    of.stored(0, of.requests(0)[0], 5)
    for _ in range(10):
        of.submit(ask(81, 7))
    of.submit(ask(80, 50, deadline_s=2.5))
    assert of.where(first) == [0]


def test_lives_have_names_and_a_class_has_a_longest() -> None:
    """The request's name, at most the class's; the class's unasked; unknown is a 400 (E15)."""
    lives = CacheConfig(retention={"5m": 300.0, "1h": 3600.0})
    of = yard(cache=lives, classes={"default": ClassConfig(), "short": ClassConfig(retention="5m")})
    asked = [(None, "default"), ("1h", "default"), (None, "short"), ("1h", "short"), ("5m", "short")]
    for retention, class_ in asked:
        of.submit(ask(16, class_=class_, retention=retention))
    assert [r.life for r in of.requests(0)] == [None, 3600 * S, 300 * S, 300 * S, 300 * S]
    of.token(0, of.requests(0)[3].id)
    of.done(0, of.requests(0)[3].id)
    assert of.ended(of.requests(0)[3].id).retention == 300.0
    unknown = refused(of, retention="2h")
    assert (unknown.status, unknown.code) == (400, "unknown_retention")
    assert "5m, 1h" in unknown.message


def test_an_adapter_is_part_of_the_identity() -> None:
    """Its digest goes with the request and into the root: other content, other blocks (E39, E7)."""
    of = yard()
    of.gateway.adapters.put(Adapter("law", "d1", "/a", 8, ("q_proj",)))
    of.submit(ask(32, 1))
    of.submit(ask(32, 1, adapter="law"))
    of.gateway.adapters.put(Adapter("law", "d2", "/b", 8, ("q_proj",)))
    of.submit(ask(32, 1, adapter="law"))
    requests = of.requests(0)
    assert [r.adapter for r in requests] == [None, "d1", "d2"]
    assert len({r.root for r in requests}) == 3
    unknown = refused(of, adapter="medicine")
    assert (unknown.status, unknown.code) == (404, "model_not_found")


def test_choices_are_counted_in_every_sum() -> None:
    """n = 3: reserved blocks, queued tokens and the request that the worker gets."""
    of = yard(router=RouterConfig(max_dispatched=1))
    id = of.submit(ask(40, 1, n=3))
    (request,) = of.requests(0)
    assert (request.id, request.n) == (id, 3)
    load = of.gateway.dispatcher.ledger.load(0)
    assert load.blocks == 2 + 3 * 2, "two full blocks in common, 56 tokens are four"
    of.submit(ask(40, 2, n=3))
    assert of.gateway.dispatcher.queue.tokens == 40 + 3 * 16
    alone = refused(of, length=400, n=64, max_tokens=200)
    assert alone.status == 400


def test_the_state_shows_what_each_tenant_has() -> None:
    """Queued, active, KV tokens and service, of those that have something here."""
    from engine.fleet import report

    of = yard(router=RouterConfig(max_dispatched=1))
    of.submit(ask(40, 1, tenant="a"))
    of.submit(ask(40, 2, tenant="a"))
    shown = report.state(of.gateway, [], of.now)["tenants"]
    assert shown == {"a": {"queued": 1, "queued_tokens": 56, "active": 1, "kv_tokens": 64, "service": 40.0}}


def test_an_urgent_arrival_recalls_less_urgent_ones_that_have_not_started() -> None:
    """They come back to their old place, charge returned, and it goes first; who has started stays (F29)."""
    of = yard(
        "priority",
        classes={"urgent": ClassConfig(rank=0), "bulk": ClassConfig(rank=1)},
        router=RouterConfig(max_dispatched=3),
    )
    bulk = [of.submit(ask(100, seed, class_="bulk")) for seed in range(4)]
    of.progress(0, bulk[0], 50)
    charged = of.gateway.dispatcher.queue.service.of("default")
    urgent = of.submit(ask(100, 9, class_="urgent"))
    assert of.sent[0][-2:] == [m.Recall(bulk[1]), m.Recall(bulk[2])]
    also = of.submit(ask(100, 10, class_="urgent"))
    assert of.sent[0][-1] == m.Recall(bulk[2]), "asked once"
    of.say(0, m.Refused(bulk[1], 1, "recalled"))
    assert of.gateway.dispatcher.queue.service.of("default") == charged
    of.say(0, m.Refused(bulk[2], 1, "recalled"))
    assert [r.id for r in of.requests(0)] == [*bulk[:3], urgent, also]
    assert ids_waiting(of) == bulk[1:]
    assert of.counter("recalls", reason="urgent") == 2
    of.done(0, bulk[0])
    assert [r.id for r in of.requests(0)][-1] == bulk[1]
    assert of.requests(0)[-1].attempt == 1


def test_orders_without_rank_recall_nobody() -> None:
    """In order of arrival nothing that came later is more urgent."""
    of = yard(
        "fcfs",
        classes={"urgent": ClassConfig(rank=0), "bulk": ClassConfig(rank=1)},
        router=RouterConfig(max_dispatched=1),
    )
    of.submit(ask(100, 1, class_="bulk"))
    of.submit(ask(100, 9, class_="urgent"))
    assert not [message for message in of.sent[0] if isinstance(message, m.Recall)]


@pytest.mark.parametrize("allowed", [True, False])
def test_an_urgent_arrival_goes_to_a_full_worker_where_it_may_preempt(allowed: bool) -> None:
    """Only less urgent ones that have started make room there, and only for who is next (F20, E26)."""
    of = yard(
        "priority",
        classes={"urgent": ClassConfig(rank=0), "bulk": ClassConfig(rank=1)},
        router=RouterConfig(max_dispatched=1),
        priority_preemption=allowed,
    )
    bulk = of.submit(ask(100, 1, class_="bulk"))
    of.progress(0, bulk, 100)
    also_bulk = of.submit(ask(100, 2, class_="bulk"))
    urgent = of.submit(ask(100, 9, class_="urgent"))
    assert of.where(also_bulk) == []
    assert of.where(urgent) == ([0] if allowed else [])
    if allowed:
        of.progress(0, urgent, 100)
    second = of.submit(ask(100, 10, class_="urgent"))
    assert of.where(second) == ([0] if allowed else [])
    large = of.submit(ask(8000, 11, class_="urgent"))
    assert of.where(large) == [], "not even without the bulk is there room beside the urgent ones"


def test_workers_tell_their_rates_and_count_what_tenants_had() -> None:
    """Heartbeats bring R_prefill and R_decode to the gateway; service and KV tokens are counted by tenant,
    those without a row as `default` (E40, ENGINE 14)."""

    async def main(clock: Clock) -> None:
        of = config(workers=1, queue=FAIR, tenants={"a": TenantConfig()})
        async with VirtualFleet(of, clock) as world:
            assert world.fleet.gateway.dispatcher.rates.pool() is None
            _, stream = world.submit(ask(100, 1, max_tokens=200, tenant="a"))
            world.submit(ask(50, 2, max_tokens=4, tenant="x"))
            await asyncio.sleep(1.0)
            worker = world.pool._lives[0].worker
            world.fleet.metrics()
            worker.heartbeat(clock())
            held = worker.meter.get("headrace_engine_active_kv_tokens", tenant="a")
            assert 0 < held - 100 - len(stream.tokens) < 32
            assert worker.meter.get("headrace_engine_active_kv_tokens", tenant="default") == 0
            await world.quiet()
            await asyncio.sleep(1.0)
            prefill, decode = worker.load.prefill_rate, worker.load.decode_rate
            assert prefill is not None
            assert decode is not None
            assert world.fleet.gateway.dispatcher.rates.pool() == (prefill, decode)
            cost = of.cost
            assert prefill == pytest.approx(100 / (cost.a + cost.b * 100 + cost.e * 5000), rel=0.3)
            assert decode == pytest.approx(1 / (cost.a + cost.c), rel=0.1)
            served = {
                tenant: worker.meter.get("headrace_engine_service_total", tenant=tenant)
                for tenant in ("a", "default")
            }
            assert served == {"a": 100 + 2 * 200, "default": 50 + 2 * 4}
            await world.fleet.kill(0)
            assert world.fleet.gateway.dispatcher.rates.pool() is None
            await asyncio.sleep(5.0)
            await world.check_at_rest()

    run_virtual(main)


def ids_waiting(of: Yard) -> list[int]:
    return [entry.id for entry in of.gateway.dispatcher.queue.in_order(of.now)]
