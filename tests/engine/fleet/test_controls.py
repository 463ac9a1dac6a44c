"""Controls that change between steps (ENGINE E50): what they take, what they refuse, what they do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from engine.config import CacheConfig, ClassConfig, QueueConfig, RouterConfig, TenantConfig
from engine.fleet.controls import GATEWAY_CONTROLS, changed, effective
from engine.fleet.gateway import Gateway
from engine.messages import Configure
from engine.sched.controls import CONTROLS, ECHOES, apply_changes
from tests.engine.core.conftest import Bench, prompt
from tests.engine.fleet.world import BASE, Yard, ask, config

CLASSES = {"chat": ClassConfig(), "batch": ClassConfig(rank=1)}
OF = config(classes=CLASSES, cache=CacheConfig(retention={"5m": 300.0}))


@pytest.mark.parametrize(
    ("changes", "place", "value"),
    [
        ({"order": "fair"}, ("queue", "order"), "fair"),
        ({"queue.order": "edf"}, ("queue", "order"), "edf"),
        ({"queue": {"order": "shortest_uncached"}}, ("queue", "order"), "shortest_uncached"),
        ({"queue": {"aging": 3.5}}, ("queue", "aging"), 3.5),
        ({"output_weight": 4.0}, ("queue", "output_weight"), 4.0),
        ({"health": {"eject_after": 9.0}}, ("health", "eject_after"), 9.0),
        ({"max_running": 3}, ("scheduler", "max_running"), 3),
        ({"admission": {"over_length": "clamp"}}, ("admission", "over_length"), "clamp"),
        ({"admission": "lifetime"}, ("admission", "policy"), "lifetime"),
        ({"retention": {"1h": 3600.0, "5m": 300.0}}, ("cache", "retention"), {"1h": 3600.0, "5m": 300.0}),
        ({"retention": {"1d": 86400.0}}, ("cache", "retention"), {"1d": 86400.0}),
        ({"retention": {}}, ("cache", "retention"), {}),
    ],
)
def test_a_control_has_a_name_and_a_place(
    changes: dict[str, Any], place: tuple[str, str], value: Any
) -> None:
    """By either, flat or nested; the workers are told what is theirs, and no more."""
    after, for_workers = changed(OF, changes)
    assert getattr(getattr(after, place[0]), place[1]) == value
    assert bool(for_workers) == (place in (*CONTROLS.values(), *ECHOES.values()))
    assert effective(after)[".".join(place)] == value


def test_classes_and_tenants_change_field_by_field() -> None:
    """Also several at once, names with dots, new tenants, and away with one."""
    after, for_workers = changed(
        OF,
        {
            "classes": {"chat": {"rank": 2, "retention": "5m"}},
            "classes.batch.max_queued": 7,
            "tenants": {"a.b": {"weight": 3.0, "max_active": 2}},
            "tenants.c.d.class": "batch",
        },
    )
    assert after.classes["chat"] == ClassConfig(rank=2, retention="5m")
    assert after.classes["batch"] == ClassConfig(rank=1, max_queued=7)
    assert after.tenants == {
        "a.b": TenantConfig(weight=3.0, max_active=2),
        "c.d": TenantConfig(class_="batch"),
    }
    assert list(for_workers) == ["tenants"]
    assert apply_changes(OF, for_workers).tenants == after.tenants, "workers go by them too"
    shown = effective(after)
    assert (shown["classes.chat.rank"], shown["tenants.a.b.weight"]) == (2, 3.0)
    assert shown["tenants.c.d.class"] == "batch"
    gone, _ = changed(after, {"tenants.a.b": None})
    lives = {"cache": {"retention": {"1h": 3600.0}}, "classes.chat.retention": "1h"}
    assert changed(after, lives)[0].classes["chat"].retention == "1h", "what goes together is judged together"
    with pytest.raises(
        ValueError, match=r"classes.chat.retention: 5m is not in cache.retention, which has none"
    ):
        changed(after, {"cache.retention": {}})
    assert list(gone.tenants) == ["c.d"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queue": {"max_requests": 0}}, "queue.max_requests: at least 1, not 0"),
        ({"order": "fifo"}, "queue.order: 'fifo' is none of fcfs, priority, fair, edf, shortest_uncached"),
        ({"max_requests": "ten"}, "queue.max_requests: expected int, not 'ten'"),
        ({"input_weight": -1.0}, "queue.input_weight: at least 0, not -1.0"),
        ({"queue.aging": 0}, "queue.aging = 0: must be more than 0 seconds"),
        ({"max_request": 5}, "max_request cannot be changed while running; did you mean max_requests?"),
        ({"model": "other"}, "model cannot be changed while running"),
        ({"classes": {"chatt": {"rank": 1}}}, "classes.chatt: no class has this name; there is chat, batch"),
        ({"classes.chat.ranks": 1}, "classes.chat.ranks: a row of classes has rank, max_input"),
        ({"classes": {"chat": {"ranks": 1}}}, "classes.chat.ranks: unknown key (did you mean rank?)"),
        (
            {"classes.chat.retention": "1h"},
            "classes.chat.retention: 1h is not in cache.retention, which has 5m",
        ),
        ({"tenants": {"a": {"weight": 0.0}}}, "tenants.a.weight: a number above 0, not 0.0"),
        ({"tenants.a.max_active": 0}, "tenants.a.max_active: at least 1, not 0"),
        ({"tenants.a.class": "vip"}, "tenants.a.class: vip is no class; there is chat, batch"),
        ({"tenants": 5}, "tenants: a row of tenants has weight"),
        ({"classes.chat": None}, "classes.chat: a row of classes has"),
        ({"classes.chat.rank": -1}, "classes.chat.rank: at least 0, not -1"),
        ({"classes.chat.max_output": 0}, "classes.chat.max_output: at least 1, not 0"),
        ({"classes.chat.deadline": 0}, "classes.chat.deadline: a time longer than 0s, not 0 s"),
        ({"ttl": 1e308}, "cache.ttl: at most 1,000,000,000"),
        ({"aging": 10**400}, "queue.aging: at most 1,000,000,000"),
        ({"health.eject_after": 10**12}, "health.eject_after: at most 1,000,000,000"),
        ({"max_running": 10**30}, "scheduler.max_running: at most 9,007,199,254,740,992"),
        ({"retention": {"1d": 10**12}}, "cache.retention.1d: at most 1,000,000,000"),
        ({"order": {}}, "queue.order: {} is none of fcfs"),
        ({"ttl": {}}, "ttl = {}: must be a number"),
        ({"queue": {}}, "queue cannot be changed while running"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(changes: dict[str, Any], said: str) -> None:
    """Where, what, and what would be right."""
    with pytest.raises(ValueError, match=re.escape(said)) as wrong:
        changed(OF, changes)
    assert str(wrong.value).startswith(said)


def test_all_that_is_wrong_is_said_at_once() -> None:
    """The gateway's and the workers' controls alike."""
    with pytest.raises(ValueError, match="nothing cannot be changed") as wrong:
        changed(OF, {"order": "x", "nothing": 1, "max_running": 0, "classes": {"chat": {"rank": "low"}}})
    with pytest.raises(ValueError, match=r"queue.max_requests: .*; tenants.a.weight: "):
        changed(OF, {"max_requests": 0, "tenants.a.weight": -1.0})
    for part in ("queue.order", "nothing", "max_running", "classes.chat.rank"):
        assert part in str(wrong.value)


def test_effective_values_are_those_of_every_control() -> None:
    """Each control of both tables, each field of each class."""
    shown = effective(BASE)
    for place in (*CONTROLS.values(), *GATEWAY_CONTROLS.values()):
        assert ".".join(place) in shown
    assert {key for key in shown if key.startswith("classes.default.")} == {
        f"classes.default.{field.name}" for field in dataclasses.fields(ClassConfig)
    }


def _apply(yard: Yard, changes: dict[str, Any]) -> Gateway:
    config, for_workers = changed(yard.config, changes)
    yard.gateway.configure(config, for_workers, yard.now)
    yard.config = config
    yard.collect()
    return yard.gateway


def test_changes_hold_from_the_next_moment_on() -> None:
    """A cap lets go who waited for it, an order reorders who waits, a weight weighs the next charge."""
    yard = Yard(
        config(
            workers=1,
            queue=QueueConfig(order="fcfs"),
            tenants={"a": TenantConfig(max_active=1)},
            router=RouterConfig(max_dispatched=2),
        )
    )
    ids = [yard.submit(ask(16, seed, tenant="a")) for seed in range(2)]
    assert [r.id for r in yard.requests(0)] == ids[:1]
    _apply(yard, {"tenants.a.max_active": 2})
    assert [r.id for r in yard.requests(0)] == ids
    waits = [yard.submit(ask(16, 10, tenant="a")), yard.submit(ask(16, 11, tenant="b", deadline_s=60.0))]
    gateway = _apply(yard, {"queue.order": "edf", "tenants": {"b": {"weight": 4.0}, "a": {"max_active": 9}}})
    yard.done(0, ids[0])
    assert yard.where(waits[0]) == []
    assert yard.where(waits[1]) == [0]
    before = gateway.dispatcher.queue.service.of("b")
    yard.token(0, waits[1])
    assert gateway.dispatcher.queue.service.of("b") - before == 2 / 4.0
    _apply(yard, {"health.eject_after": 7.0})
    assert yard.gateway.health[0].config.eject_after == 7.0


def test_workers_weigh_tenants_as_the_gateway_does() -> None:
    """Evictions by footprint and the metrics of tenants follow what is changed while they run."""
    bench = Bench(blocks=6, eviction="footprint")
    _, for_workers = changed(bench.config, {"tenants": {"a": {"weight": 4.0}}, "output_weight": 5.0})
    bench.send(Configure(for_workers))
    ids = []
    for seed, (tenant, length) in enumerate([("a", 13), ("b", 9), ("c", 7)]):
        ids.append(bench.submit(prompt(length, seed), 1, tenant=tenant))
        bench.run()
    assert bench.count("service_total", tenant="a") == 13 + 5
    held = [sum(map(bench.worker.cache.holds, bench.requests[id].digests)) for id in ids]
    assert held == [3, 1, 1], "the 2 blocks of b count for more than the 3 of a"
