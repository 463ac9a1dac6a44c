"""The gateway's queue: order, bounds, Retry-After (ENGINE E28-E32)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import CostModel, QueueConfig
from engine.sched.queue import AGING_NS, ORDERS, Queue, Waiting
from engine.sched.rates import BusyWindow, OutputLengths, Rates

S = 1_000_000_000


def entry(id: int, **fields: Any) -> Waiting:
    values = {"class_": "c", "rank": 0, "arrived": 0, "deadline": None, "prompt": 80, "uncached": 80}
    return Waiting(id=id, **(values | {"output": 16.0} | fields))


def queue(order: str = "fcfs", **bounds: int) -> Queue:
    return Queue(QueueConfig(order=order, **bounds), random.Random(0))


def ids(of: Queue, now: int = 0) -> list[int]:
    return [waiting.id for waiting in of.in_order(now)]


def test_fcfs_serves_by_arrival_also_after_a_return() -> None:
    """A request that comes back from a worker stands where it stood before."""
    waiting = queue()
    for id in (1, 2, 3):
        waiting.add(entry(id, rank=3 - id))
    first = waiting.remove(1)
    assert first is not None
    assert ids(waiting) == [2, 3]
    waiting.add(first)
    assert ids(waiting) == [1, 2, 3]


def test_priority_serves_by_rank_and_lifts_who_waits_long() -> None:
    """A lower rank goes first, until waiting has lifted the other to the same rank."""
    waiting = queue("priority")
    waiting.add(entry(1, rank=2, arrived=0))
    waiting.add(entry(2, rank=0, arrived=2 * AGING_NS - 1))
    assert ids(waiting, 2 * AGING_NS - 1) == [2, 1]
    assert ids(waiting, 2 * AGING_NS) == [1, 2]


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=40)
@given(data=st.data())
def test_every_order_equals_a_full_sort(order: str, data: st.DataObject) -> None:
    """The lanes give at any time what sorting everything by the key would give."""
    waiting, now, entries = queue(order), 0, {}
    for id in range(1, 15):
        now += data.draw(st.integers(0, AGING_NS))
        entries[id] = entry(id, rank=data.draw(st.integers(0, 3)), arrived=now)
        waiting.add(entries[id])
    for id in data.draw(st.sets(st.sampled_from(list(entries)))):
        assert waiting.remove(id) is entries.pop(id)
    now += data.draw(st.integers(0, 5 * AGING_NS))
    assert ids(waiting, now) == sorted(entries, key=lambda id: ORDERS[order].key(entries[id], now))
    assert waiting.tokens == sum(e.tokens for e in entries.values())


def test_bounds_hold_by_count_and_by_tokens_under_a_burst() -> None:
    """Of 50 requests of 96 tokens 10 enter a queue of 10, and 10 a queue of 1,000 tokens (case C14)."""
    for bounds in ({"max_requests": 10}, {"max_tokens": 1000}):
        waiting, refused = queue(**bounds), []
        for id in range(1, 51):
            refusal = waiting.refusal(entry(id), None, 0)
            if refusal is None:
                waiting.add(entry(id))
            else:
                refused.append(refusal)
        assert (len(waiting), len(refused)) == (10, 40)
        assert {r.code for r in refused} == {"queue_full"}
        assert {r.retry_after for r in refused} == {2}, "no sample of the pool's speed yet"
        waiting.remove(1)
        assert waiting.refusal(entry(99), None, 0) is None


def test_retry_after_adds_prefill_and_decode_work() -> None:
    """Ten requests of 80 + 16 tokens at 800/s and 100/s take 2.6 s, so 3 or 4; half cached 2.1 s, so 3."""
    rates = (800.0, 100.0)
    for uncached, allowed in ((80, {3, 4}), (40, {3})):
        waiting = queue(max_requests=10)
        for id in range(10):
            waiting.add(entry(id, uncached=uncached))
        assert {waiting.retry_after(rates) for _ in range(200)} == allowed
    assert queue().retry_after(rates) == 1
    long = queue()
    long.add(entry(1, uncached=10**6))
    assert long.retry_after(rates) == 60


def test_a_deadline_behind_more_work_is_refused_at_once() -> None:
    """2.6 s of work ahead refuse a deadline of 2 s; of the same tokens cached it is accepted (E31)."""
    rates, late = (800.0, 100.0), entry(99, deadline=2 * S)
    waiting = queue()
    for id in range(10):
        waiting.add(entry(id))
    refusal = waiting.refusal(late, rates, 0)
    assert refusal is not None
    assert refusal.code == "deadline_unreachable"
    assert waiting.refusal(late, None, 0) is None, "nothing is known of the speed"
    cached = queue()
    for id in range(10):
        cached.add(entry(id, uncached=1))
    assert cached.refusal(late, rates, 0) is None


def test_priority_counts_only_what_is_ahead() -> None:
    """Less urgent work does not make an urgent deadline unreachable."""
    waiting = queue("priority")
    for id in range(10):
        waiting.add(entry(id, rank=1))
    assert waiting.refusal(entry(99, rank=0, deadline=S), (800.0, 100.0), 0) is None
    assert waiting.refusal(entry(99, rank=1, deadline=S), (800.0, 100.0), 0) is not None


def test_the_order_may_change_while_requests_wait() -> None:
    """Nobody is thrown out, and an unknown order changes nothing."""
    waiting = queue()
    waiting.add(entry(1, rank=1))
    waiting.add(entry(2, rank=0))
    with pytest.raises(ValueError, match="fcfs, priority"):
        waiting.configure(QueueConfig(order="nonsense"))
    assert ids(waiting) == [1, 2]
    waiting.configure(QueueConfig(order="priority", max_requests=1))
    assert ids(waiting) == [2, 1]


def test_rates_look_at_busy_seconds_only() -> None:
    """An hour of idling changes nothing; 30 busy seconds forget what was before."""
    window = BusyWindow(CostModel(b=0.001, c=0.001))
    window.begin(0)
    window.computed(S, prefill=800)
    window.end(S)
    window.begin(3600 * S)
    assert window.rates() == (800.0, None)
    for second in range(3601, 3632):
        window.computed(second * S, decode=100)
    assert window.rates() == (None, pytest.approx(100.0))


def test_a_mixed_second_is_split_by_the_cost_model() -> None:
    """With a decode row as dear as a token of prefill, half the tokens take half the second."""
    window = BusyWindow(CostModel(b=0.001, c=0.001))
    window.begin(0)
    window.computed(S, prefill=50, decode=50)
    assert window.rates() == (pytest.approx(100.0), pytest.approx(100.0))


def test_a_pool_is_the_sum_of_its_workers() -> None:
    """Two workers prefill twice as fast; the pool says nothing before it has seen both kinds."""
    rates = Rates(CostModel())
    for worker in (0, 1):
        rates.of(worker).begin(0)
        rates.of(worker).computed(S, prefill=800)
    assert rates.pool() is None
    rates.of(0).computed(2 * S, decode=100)
    pool = rates.pool()
    assert pool is not None
    assert pool[0] == pytest.approx(1600.0)


def test_expected_output_is_out_max_until_20_have_ended() -> None:
    """Then it is the class's mean, never more than the request may generate."""
    lengths = OutputLengths()
    for _ in range(19):
        lengths.ended("chat", 10)
    assert lengths.expected("chat", 100) == 100
    lengths.ended("chat", 10)
    assert lengths.expected("chat", 100) == 10
    assert lengths.expected("chat", 5) == 5
    assert lengths.expected("batch", 100) == 100
