"""Who is served next (ENGINE E29, E30): every order, at any time, and what it costs to find out."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig, QueueConfig, TenantConfig
from engine.sched import lanes
from engine.sched.lanes import Lane, Lanes
from engine.sched.least import SLACK, Least
from engine.sched.orders import ORDERS, Tally, Waiting
from engine.sched.queue import Queue

S = 1_000_000_000
AGING = 10 * S


def entry(id: int, **fields: Any) -> Waiting:
    values = {"class_": "c", "rank": 0, "arrived": 0, "deadline": None, "prompt": 80, "uncached": 80}
    return Waiting(id=id, **(values | {"output": 16.0} | fields))


def queue(order: str = "fcfs", tenants: dict[str, TenantConfig] | None = None, **keys: Any) -> Queue:
    of = EngineConfig(queue=QueueConfig(order=order, **keys), tenants=tenants or {})  # type: ignore[arg-type]
    return Queue(of, random.Random(0))


def ids(of: Queue, now: int = 0) -> list[int]:
    return [waiting.id for waiting in of.in_order(now)]


def test_fcfs_serves_by_arrival_also_after_a_return() -> None:
    """A request that comes back from a worker stands where it stood before."""
    waiting = queue()
    for id in (1, 2, 3):
        waiting.add(entry(id, rank=3 - id, tenant=str(id)))
    first = waiting.remove(1)
    assert first is not None
    assert ids(waiting) == [2, 3]
    waiting.add(first)
    assert ids(waiting) == [1, 2, 3]


def test_priority_serves_by_rank_and_lifts_who_waits_long() -> None:
    """A lower rank goes first, until waiting has lifted the other to the same rank."""
    waiting = queue("priority")
    waiting.add(entry(1, rank=2, arrived=0))
    waiting.add(entry(2, rank=0, arrived=2 * AGING - 1))
    assert ids(waiting, 2 * AGING - 1) == [2, 1]
    assert ids(waiting, 2 * AGING) == [1, 2]


def test_aging_is_configurable() -> None:
    """With 1 s a rank is gained each second, with a year never."""
    for aging, order in ((1.0, [1, 2]), (3e7, [2, 1])):
        waiting = queue("priority", aging=aging)
        waiting.add(entry(1, rank=5, arrived=0))
        waiting.add(entry(2, rank=0, arrived=5 * S))
        assert ids(waiting, 5 * S) == order


def test_fair_serves_who_has_had_least_for_its_weight() -> None:
    """Two tenants take turns by what they had; with weight 3 one has had a third of it."""
    waiting = queue("fair", {"b": TenantConfig(weight=3.0)})
    for id in range(1, 9):
        waiting.add(entry(id, tenant="ab"[id > 4]))
    served = []
    for _ in range(8):
        first = next(waiting.in_order(0))
        waiting.remove(first.id)
        waiting.admitted(first, first.uncached)
        served.append(first.tenant)
    assert "".join(served) == "abbbabaa"


def test_fair_looks_at_rank_before_service() -> None:
    """A tenant that has had much is served first all the same where its request is more urgent."""
    waiting = queue("fair")
    waiting.add(entry(1, tenant="a", rank=1))
    waiting.add(entry(2, tenant="b", rank=0))
    waiting.charge("b", output=1000)
    assert ids(waiting) == [2, 1]


def test_edf_serves_the_earliest_deadline_and_those_without_last() -> None:
    """Arrival breaks ties."""
    waiting = queue("edf")
    for id, deadline in ((1, None), (2, 9 * S), (3, 5 * S), (4, 5 * S)):
        waiting.add(entry(id, deadline=deadline))
    assert ids(waiting) == [3, 4, 2, 1]


def test_shortest_uncached_lets_only_near_arrivals_pass() -> None:
    """A prompt of 1,000 uncached tokens at 800/s is passed by short ones for 5 s after its arrival."""
    waiting = queue("shortest_uncached")
    waiting.add(entry(1, uncached=1000, aged=5 * S))
    waiting.add(entry(2, uncached=1, arrived=4 * S, aged=4 * S + 5_000_000))
    waiting.add(entry(3, uncached=1, arrived=5 * S, aged=5 * S + 5_000_000))
    assert ids(waiting, 6 * S) == [2, 1, 3]


def test_a_walk_sees_a_charge_to_a_lane_that_it_has_begun() -> None:
    """Requests of one tenant wait in two ranks: what one lane is charged puts the rest of the other back."""
    waiting = queue("fair")
    for id, rank, tenant in ((1, 1, "a"), (3, 0, "a"), (5, 1, "a"), (6, 0, "b")):
        waiting.add(entry(id, rank=rank, tenant=tenant, arrived=id))
    walk = waiting.in_order(AGING + 10)
    assert [next(walk).id, next(walk).id] == [1, 3]
    third = waiting.remove(3)
    assert third is not None
    waiting.admitted(third, 80)
    assert [entry.id for entry in walk] == [6, 5]


def test_a_new_head_rises_at_its_own_time() -> None:
    """Not when the one before it would have: it is taken out between two of its own steps up."""
    waiting = queue("priority")
    waiting.add(entry(1, rank=2, arrived=0))
    waiting.add(entry(2, rank=2, arrived=5 * S))
    waiting.add(entry(3, rank=1, arrived=12 * S, tenant="other"))
    assert ids(waiting, 12 * S) == [1, 3, 2]
    waiting.remove(1)
    assert ids(waiting, 13 * S) == [3, 2]
    assert ids(waiting, 16 * S) == [2, 3]


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_walk_gives_at_each_step_the_least_key_of_what_is_left(order: str, data: st.DataObject) -> None:
    """Random adds, returns, charges, refunds and times; in a walk some are taken out and charged, tenants are
    closed: what comes next is always what a full sort of the rest would give."""
    waiting, now, entries, out = queue(order), 0, {}, {}
    tenants = st.sampled_from(["a", "b", "c"])
    for id in range(1, data.draw(st.integers(1, 25))):
        now += data.draw(st.integers(0, AGING))
        made = entry(
            id,
            rank=data.draw(st.integers(0, 3)),
            arrived=now,
            tenant=data.draw(tenants),
            deadline=data.draw(st.none() | st.integers(0, 5).map(lambda s: s * S)),
            aged=now + data.draw(st.integers(0, 5)) * S,
        )
        entries[id] = made
        waiting.add(made)
        act = data.draw(st.sampled_from(["nothing", "take", "return", "charge", "refund", "walk"]))
        if act == "take" and entries:
            id = data.draw(st.sampled_from(sorted(entries)))
            assert waiting.remove(id) is entries[id]
            out[id] = entries.pop(id)
        elif act == "return" and out:
            id = data.draw(st.sampled_from(sorted(out)))
            entries[id] = out.pop(id)
            waiting.add(entries[id])
        elif act in ("charge", "refund"):
            tokens = data.draw(st.integers(1, 300))
            waiting.charge(data.draw(tenants), uncached=tokens if act == "charge" else -tokens)
        elif act == "walk":
            _walk(waiting, entries, out, now, data)
        assert waiting.tokens == sum(e.tokens for e in entries.values())
    assert ids(waiting, now) == sorted(entries, key=lambda id: waiting.key(entries[id], now))


def _walk(
    waiting: Queue, entries: dict[int, Waiting], out: dict[int, Waiting], now: int, data: st.DataObject
) -> None:
    closed: set[str] = set()
    seen: set[int] = set()
    steps = data.draw(st.integers(0, 10))
    walk = waiting.in_order(now, closed)
    for _ in range(steps):
        rest = [e for e in entries.values() if e.id not in seen and e.tenant not in closed]
        found = next(walk, None)
        if not rest:
            assert found is None
            break
        assert found is min(rest, key=lambda e: waiting.key(e, now))
        seen.add(found.id)
        act = data.draw(st.sampled_from(["wait", "go", "close"]))
        if act == "go":
            waiting.remove(found.id)
            waiting.admitted(found, found.uncached)
            out[found.id] = entries.pop(found.id)
        elif act == "close":
            closed.add(found.tenant)
    walk.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_lane_is_a_sorted_list_with_sums(data: st.DataObject) -> None:
    """Also where it is cut into pieces: head, successor and the sums in front of any place."""
    lane, model = Lane(0, "a"), {}
    numbers = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK", 3)
        for id, number in enumerate(numbers):
            made = entry(id, uncached=number, prompt=number + 1, output=2.0)
            model[number, id] = made
            lane.add((number, id), made)
        for place in data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)):
            del model[place]
            lane.remove(place)
        places = sorted(model)
        assert bool(lane) == bool(places)
        probe = (data.draw(st.integers(-1, 51)), data.draw(st.integers(-1, 60)))
        assert lane.after(probe) is next((model[p] for p in places if p > probe), None)
        expected = Tally()
        for place in places:
            if place < probe:
                expected.count(model[place])
        assert lane.before(probe) == expected
        if places:
            assert lane.head is model[places[0]]
            assert lane.sums.requests == len(places)


def test_the_least_of_many_is_right_while_keys_change() -> None:
    """Growth is found out, a fall must be told; dead rows do not pile up."""
    keys = {item: float(item) for item in range(100)}
    least: Least[int] = Least(lambda item: (keys[item],))
    for item in keys:
        least.put(item)
    rng = random.Random(1)
    for _ in range(5000):
        item = rng.choice(sorted(keys))
        before, keys[item] = keys[item], rng.uniform(0, 100)
        if keys[item] < before:
            least.put(item)
        assert least.peek() == min(keys, key=lambda other: keys[other])
    assert len(least._heap) <= 2 * len(keys) + SLACK


@pytest.mark.parametrize("tenants", [1, 7, 100_000])
@pytest.mark.parametrize("order", ORDERS)
def test_what_a_dispatch_costs_does_not_grow_with_the_queue(order: str, tenants: int) -> None:
    """Eight times as many waiting requests, of one tenant, of some, each of its own: the keys looked at
    per dispatch, arrival, refund and deadline check grow by less than a factor of two."""
    few, many = (_operations(order, tenants, size) for size in (500, 4_000))
    assert many["keys"] < 2 * few["keys"]
    assert many["counts"] < 2 * few["counts"]


def _operations(order: str, tenants: int, size: int) -> dict[str, int]:
    counted = {"keys": 0, "counts": 0}
    key, count = Lanes.key, Tally.count

    def counting_key(self: Lanes, of: Waiting, now: int) -> Any:
        counted["keys"] += 1
        return key(self, of, now)

    def counting_count(self: Tally, of: Waiting, sign: int = 1) -> None:
        counted["counts"] += 1
        count(self, of, sign)

    waiting, rng = queue(order), random.Random(5)
    for id in range(size):
        waiting.add(_random_entry(id, rng, tenants))
    next(waiting.in_order(size * S // 1000))  # each request's rank rises once, whoever looks first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lanes, "key", counting_key)
        patch.setattr(Tally, "count", counting_count)
        for id in range(size, size + 100):
            now = id * S // 1000
            for _ in range(2):
                with_room = waiting.in_order(now)
                first = next(with_room)
                waiting.remove(first.id)
                waiting.admitted(first, first.uncached)
                with_room.close()
            waiting.charge(first.tenant, uncached=-10)
            waiting.add(_random_entry(id, rng, tenants))
            assert waiting.retry_after((800.0, 100.0)) == 60
    return counted


def _random_entry(id: int, rng: random.Random, tenants: int) -> Waiting:
    return entry(
        id,
        rank=rng.randrange(3),
        arrived=id * S // 1000,
        tenant=str(rng.randrange(tenants)),
        deadline=rng.choice([None, rng.randrange(100 * S)]),
        aged=id * S // 1000 + rng.randrange(10 * S),
    )


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(), order=st.sampled_from([name for name, order in ORDERS.items() if not order.by_service])
)
def test_what_is_ahead_is_whoever_has_a_smaller_key(order: str, data: st.DataObject) -> None:
    """Summed without looking at each, for every order that does not look at service."""
    waiting, now, entries = queue(order), 0, []
    seconds = st.integers(0, 5).map(lambda s: s * S)
    for id in range(data.draw(st.integers(0, 20))):
        now += data.draw(st.integers(0, AGING))
        made = entry(
            id,
            rank=data.draw(st.integers(0, 3)),
            arrived=now,
            tenant=data.draw(st.sampled_from("ab")),
            deadline=data.draw(st.none() | seconds),
            aged=now + data.draw(seconds),
            uncached=data.draw(st.integers(1, 80)),
        )
        entries.append(made)
        waiting.add(made)
    new = entry(99, arrived=now, rank=data.draw(st.integers(0, 3)), deadline=data.draw(seconds), aged=now + S)
    expected = Tally()
    for made in entries:
        if waiting.key(made, now) < waiting.key(new, now):
            expected.count(made)
    assert waiting.ahead(new, now) == expected


@pytest.mark.parametrize("tenants", [1, 100_000])
@pytest.mark.parametrize("order", ORDERS)
def test_a_deadline_check_looks_at_sums_not_at_requests(order: str, tenants: int) -> None:
    """Among 4,000 requests, of one tenant or each of its own, it counts fewer than 300 single ones."""
    waiting, rng = queue(order, max_tokens=10**9, max_requests=10**6), random.Random(5)
    for id in range(4_000):
        waiting.add(dataclasses.replace(_random_entry(id, rng, tenants), rank=0))
    late = entry(4_000, arrived=4 * S, deadline=5 * S, aged=5 * S, tenant="0")
    counted, count, key = 0, Tally.count, Lanes.key

    def counting(self: Tally, of: Waiting, sign: int = 1) -> None:
        nonlocal counted
        counted += 1
        count(self, of, sign)

    def counting_key(self: Lanes, of: Waiting, now: int) -> Any:
        nonlocal counted
        counted += 1
        return key(self, of, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tally, "count", counting)
        patch.setattr(Lanes, "key", counting_key)
        refusal = waiting.refusal(late, (800.0, 100.0), 4 * S)
    assert refusal is None or refusal.code == "deadline_unreachable"
    assert (refusal is None) == (order == "fair" and tenants > 1)
    assert counted < 300
