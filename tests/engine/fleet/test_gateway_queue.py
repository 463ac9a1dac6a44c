"""The gateway's queue: bounds, Retry-After, deadlines, and the rates behind them (ENGINE E31, E32, E40)."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from engine.config import ClassConfig, CostModel, EngineConfig, QueueConfig, TenantConfig
from engine.runner.base import Row, StepPlan
from engine.runner.cost import prefill_share, stay, step_terms
from engine.sched.orders import Waiting
from engine.sched.queue import Queue
from engine.sched.rates import BusyWindow, OutputLengths, Rates

S = 1_000_000_000
RATES = (800.0, 100.0)


def entry(id: int, **fields: Any) -> Waiting:
    values = {"class_": "c", "rank": 0, "arrived": 0, "deadline": None, "prompt": 80, "uncached": 80}
    return Waiting(id=id, **(values | {"output": 16.0} | fields))


def queue(
    order: str = "fcfs",
    classes: dict[str, ClassConfig] | None = None,
    tenants: dict[str, TenantConfig] | None = None,
    **keys: Any,
) -> Queue:
    of = EngineConfig(
        queue=QueueConfig(order=order, **keys),  # type: ignore[arg-type]
        classes=classes or {"c": ClassConfig()},
        tenants=tenants or {},
    )
    return Queue(of, random.Random(0))


def ids(of: Queue, now: int = 0) -> list[int]:
    return [waiting.id for waiting in of.in_order(now)]


def fill(of: Queue, count: int, **fields: Any) -> list[str]:
    """Offer so many requests; the codes of those that were refused."""
    refused = []
    for id in range(count):
        refusal = of.refusal(entry(id, **fields), None, 0)
        if refusal is None:
            of.add(entry(id, **fields))
        else:
            refused.append(refusal.code)
            assert refusal.retry_after == 2, "no sample of the pool's speed yet"
    return refused


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        ({"max_requests": 10}, "queue_full"),
        ({"max_tokens": 1000}, "queue_full"),
        ({"classes": {"c": ClassConfig(max_queued=10)}}, "class_queue_full"),
        ({"classes": {"c": ClassConfig(max_queued_tokens=1000)}}, "class_queue_full"),
        ({"tenants": {"t": TenantConfig(max_queued=10)}}, "tenant_queue_full"),
        ({"tenants": {"default": TenantConfig(max_queued_tokens=1000)}}, "tenant_queue_full"),
    ],
)
def test_every_bound_holds_under_a_burst(bounds: dict[str, Any], code: str) -> None:
    """Of 50 requests of 96 tokens 10 enter, by each kind of bound; then one leaves and one may come (C14)."""
    waiting = queue(**bounds)
    refused = fill(waiting, 50, tenant="t")
    assert (len(waiting), refused) == (10, [code] * 40)
    waiting.remove(1)
    assert waiting.refusal(entry(99, tenant="t"), None, 0) is None


def test_a_bound_of_one_class_or_tenant_stops_nobody_else() -> None:
    """The same queue goes on taking the others'."""
    waiting = queue(
        classes={"c": ClassConfig(max_queued=1), "d": ClassConfig()},
        tenants={"t": TenantConfig(max_queued=2)},
    )
    waiting.add(entry(1, tenant="t"))
    assert waiting.full("c", "other", None) is not None
    assert waiting.full("d", "t", None) is None
    waiting.add(entry(2, class_="d", tenant="t"))
    full = waiting.full("d", "t", None)
    assert full is not None
    assert full.message == "2 requests of tenant 't' wait, the limit is 2"
    assert waiting.full("d", "other", None) is None


def test_choices_enter_whole_or_not_at_all() -> None:
    """n = 4 counts 80 + 4*16 = 144 tokens: at 936 of 1,000 it does not fit, at 840 it does (C14)."""
    waiting = queue(max_tokens=1000)
    for id in range(9):
        waiting.add(entry(id))
    assert entry(99, n=4).tokens == 144
    assert waiting.refusal(entry(99, n=4), None, 0) is not None
    waiting.remove(0)
    assert waiting.refusal(entry(99, n=4), None, 0) is None
    waiting.add(entry(99, n=4))
    assert waiting.tokens == 8 * 96 + 144


def test_retry_after_adds_prefill_and_decode_work() -> None:
    """Ten requests of 80 + 16 tokens at 800/s and 100/s take 2.6 s, so 3 or 4; half cached 2.1 s, so 3."""
    for uncached, allowed in ((80, {3, 4}), (40, {3})):
        waiting = queue(max_requests=10)
        for id in range(10):
            waiting.add(entry(id, uncached=uncached))
        assert {waiting.retry_after(RATES) for _ in range(200)} == allowed
    assert queue().retry_after(RATES) == 1
    long = queue()
    long.add(entry(1, uncached=10**6))
    assert long.retry_after(RATES) == 60
    assert long.retry_after(None) == 2


def test_retry_after_keeps_its_sum_through_every_change() -> None:
    """After any adds and removals it is that of what is left, and 1 when nothing is."""
    waiting, rng = queue(max_tokens=10**9), random.Random(4)
    for id in range(300):
        waiting.add(entry(id, uncached=rng.randrange(80), output=rng.random() * 50, n=rng.randrange(1, 4)))
    for id in rng.sample(range(300), 298):
        waiting.remove(id)
    work = sum(e.uncached / RATES[0] + e.n * e.output / RATES[1] for e in waiting)
    assert waiting._all.work(RATES) == pytest.approx(work)
    for left in list(waiting):
        waiting.remove(left.id)
    assert waiting._all.work(RATES) == 0.0


def test_a_deadline_behind_more_work_is_refused_at_once() -> None:
    """2.6 s of work ahead refuse a deadline of 2 s; of the same tokens cached it is accepted (E31, C15)."""
    late = entry(99, deadline=2 * S)
    waiting = queue()
    for id in range(10):
        waiting.add(entry(id))
    refusal = waiting.refusal(late, RATES, 0)
    assert refusal is not None
    assert (refusal.code, refusal.message) == (
        "deadline_unreachable",
        "the work ahead takes 2.6 s or more and the deadline is in 2.0 s",
    )
    assert refusal.retry_after in (3, 4)
    assert waiting.refusal(late, None, 0) is None, "nothing is known of the speed"
    cached = queue()
    for id in range(10):
        cached.add(entry(id, uncached=1))
    assert cached.refusal(late, RATES, 0) is None


def test_only_what_is_ahead_makes_a_deadline_unreachable() -> None:
    """By rank with its aging, by deadline, by uncached length: each order counts those in front."""
    waiting = queue("priority")
    for id in range(10):
        waiting.add(entry(id, rank=1))
    assert waiting.refusal(entry(99, rank=0, deadline=S), RATES, 0) is None
    assert waiting.refusal(entry(99, rank=1, deadline=S), RATES, 0) is not None
    risen = entry(99, rank=0, arrived=10 * S, deadline=11 * S)
    assert waiting.refusal(risen, RATES, 10 * S) is not None
    waiting = queue("edf")
    for id in range(10):
        waiting.add(entry(id, deadline=5 * S))
    assert waiting.refusal(entry(99, deadline=2 * S), RATES, 0) is None
    assert waiting.ahead(entry(99, deadline=5 * S), 0).requests == 10
    waiting = queue("shortest_uncached")
    for id in range(10):
        waiting.add(entry(id, aged=4 * S))
    assert waiting.refusal(entry(99, aged=S, deadline=S), RATES, 0) is None
    assert waiting.refusal(entry(99, aged=5 * S, deadline=S), RATES, 0) is not None


def test_a_flood_of_one_tenant_does_not_make_anothers_deadline_unreachable() -> None:
    """Served fairly, the other waits for about as much of the flood as it has itself."""
    waiting = queue("fair")
    for id in range(100):
        waiting.add(entry(id, tenant="flood"))
    assert waiting.refusal(entry(199, tenant="other", deadline=2 * S), RATES, 0) is None
    assert waiting.refusal(entry(199, tenant="flood", deadline=2 * S), RATES, 0) is not None
    waiting.add(entry(150, tenant="other"))
    ahead = waiting.ahead(entry(199, tenant="other"), 0)
    assert (ahead.uncached, ahead.output) == (160, 32.0)
    urgent = queue("fair")
    urgent.add(entry(1, tenant="flood", rank=0))
    urgent.add(entry(2, tenant="flood", rank=1))
    assert urgent.ahead(entry(9, tenant="other", rank=1), 0).uncached == 80


def test_the_order_may_change_while_requests_wait() -> None:
    """Nobody is thrown out, counters remain, and an unknown order changes nothing."""
    waiting = queue()
    waiting.add(entry(1, rank=1))
    waiting.add(entry(2, rank=0))
    waiting.charge("default", output=5)
    with pytest.raises(ValueError, match="fcfs, priority"):
        waiting.configure(EngineConfig(queue=QueueConfig(order="nonsense")))  # type: ignore[arg-type]
    assert ids(waiting) == [1, 2]
    waiting.configure(EngineConfig(queue=QueueConfig(order="priority", max_requests=1)))
    assert ids(waiting) == [2, 1]
    assert waiting.service.of("default") == 10


# ---- rates


def rows(prefill: int = 0, decode: int = 0, start: int = 0) -> StepPlan:
    """A step with one prompt chunk and so many decode rows."""
    made = [Row(1, start, array("I", [7] * prefill), (1,), False)] if prefill else []
    made += [Row(2 + i, start, array("I", [7]), (1,), True, draw=1) for i in range(decode)]
    return StepPlan(0, tuple(made))


def test_rates_look_back_over_thirty_busy_seconds() -> None:
    """Time without a step counts for nothing; after 30 busy seconds what was before is forgotten."""
    window = BusyWindow(CostModel())
    assert window.rates() == (None, None)
    window.stepped(rows(prefill=800), 1.0)
    assert window.rates() == (800.0, None)
    for _ in range(31):
        window.stepped(rows(decode=100), 1.0)
    assert window.rates() == (None, pytest.approx(100.0))


def test_a_mixed_step_is_split_by_the_models_terms_and_a_by_tokens() -> None:
    """E40: each kind has its own terms of the model, and of the fixed time its share of the tokens."""
    cost = CostModel(a=0.010, b=0.001, c=0.004, d=1e-5, e=1e-6)
    plan = rows(prefill=30, decode=10, start=64)
    fixed, prefill, decode = step_terms(cost, plan)
    assert fixed == 0.010
    assert prefill == pytest.approx(0.001 * 30 + 1e-6 * 30 * (64 + 15))
    assert decode == pytest.approx(10 * (0.004 + 1e-5 * 65))
    share = (prefill + 0.010 * 30 / 40) / (fixed + prefill + decode)
    window = BusyWindow(cost)
    window.stepped(plan, 0.5)
    assert window.rates() == (pytest.approx(30 / (share * 0.5)), pytest.approx(10 / ((1 - share) * 0.5)))
    assert prefill_share(CostModel(a=0, b=0, c=0, d=0, e=0), plan, 30, 10) == 0.75


def test_a_pool_is_the_sum_of_its_workers_while_they_are_there() -> None:
    """Two workers prefill twice as fast; the pool says nothing before it has seen both kinds."""
    cost = CostModel(a=0.012, b=0.0012)
    rates = Rates(EngineConfig(workers=2, cost=cost))
    assert rates.pool_prefill() == pytest.approx(2 * 256 / (0.012 + 0.0012 * 256)), "by the model"
    rates.hears(0, 800.0, None)
    rates.hears(1, 800.0, None)
    assert rates.pool() is None
    rates.hears(0, 800.0, 100.0)
    assert rates.pool() == (1600.0, 100.0)
    rates.forget(1)
    assert rates.pool() == (800.0, 100.0)
    assert rates.pool_prefill() == 800.0
    assert rates.prefill(1) == pytest.approx(256 / (0.012 + 0.0012 * 256))


def test_a_life_is_prefill_at_chunk_speed_and_a_step_per_token() -> None:
    """life(r) = u/R(rows) + out*t_step(rows), with R(rows) = chunk/t_step."""
    cost = CostModel(a=0.010, b=0.001, c=0.004, d=1e-5, e=0.0)
    others = 0.010 + 0.004 * 3 + 1e-5 * 300
    rate = 100 / (others + 0.001 * 100)
    expected = 50 / rate + 7 * (others + 0.004)
    assert stay(cost, 100, 3, 300, prompt=80, uncached=50, output=7) == pytest.approx(expected)


def test_expected_output_is_out_max_until_20_have_ended() -> None:
    """Then it is the class's mean, never more than the request may generate."""
    lengths = OutputLengths()
    for _ in range(19):
        lengths.ended("chat", 10)
    assert lengths.expected("chat", 100) == 100
    assert lengths.short("chat", 100) == 1
    lengths.ended("chat", 10)
    assert lengths.expected("chat", 100) == 10
    assert lengths.expected("chat", 5) == 5
    assert lengths.expected("batch", 100) == 100


def test_short_outputs_are_the_tenth_percentile_of_the_last() -> None:
    """What was longer ago than 200 answers is forgotten."""
    lengths = OutputLengths()
    for tokens in [1] * 50 + list(range(100, 300)):
        lengths.ended("chat", tokens)
    assert lengths.short("chat", 1000) == 120
    assert lengths.short("chat", 50) == 50
