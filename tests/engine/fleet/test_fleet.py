"""The fleet in virtual time: real workers, faults, and every request with exactly one end."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from engine.config import ClassConfig, CostModel, QueueConfig
from engine.fleet.backend import Rejected
from engine.request import Finish
from engine.runner.base import StepPlan, StepResult
from engine.runner.simulated import SimulatedRunner
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import MS, S, VirtualFleet, ask, config

TEN_MS_STEPS = CostModel(a=0.01, b=0.0, c=0.0, d=0.0, e=0.0, g0=0.0, g1=0.0)
TWO = config()
ONE = config(workers=1)


def test_requests_run_and_the_fleet_is_at_rest_after_them() -> None:
    """Every stream gets its tokens and one end; second calls hit the cache where they ran before."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            for turn in range(2):
                for seed in range(6):
                    _, stream = world.submit(ask(100, seed))
                    await asyncio.sleep(0.4)
                    del stream
                await world.quiet()
                del turn
            await world.check_at_rest()
            assert all(len(s.tokens) == 16 for s in world.streams)
            first, second = world.streams[:6], world.streams[6:]
            assert [a.tokens for a in first] == [b.tokens for b in second]
            assert {s.end.cached for s in second} == {96}
            rows = await world.fleet.truth()
            assert sum(r["route"]["predicted_hit"] for r in rows) == sum(r["hit_device"] for r in rows)
            for row in rows:
                assert row["hit_device"] + sum(miss["tokens"] for miss in row["misses"]) == row["prompt"]
                assert row["received"] <= row["dispatched"] <= row["first_scheduled"] <= row["finished"]

    run_virtual(main)


def test_the_same_run_twice_is_the_same() -> None:
    """Virtual time is deterministic, kill included: equal truth rows."""

    async def main(clock: Clock) -> list[dict[str, object]]:
        async with VirtualFleet(TWO, clock, latency=0.001) as world:
            for seed in range(20):
                world.submit(ask(60 + seed, seed % 4))
                await asyncio.sleep(0.1)
                if seed == 10:
                    await world.fleet.kill(0)
            await world.quiet()
            return await world.fleet.truth()

    assert run_virtual(main) == run_virtual(main)


def test_a_kill_ends_the_streams_moves_the_queued_and_brings_the_worker_back() -> None:
    """Each open stream one error event at once; what had not started is served elsewhere (C18)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            for seed in range(12):
                world.submit(ask(400, seed, max_tokens=64))
            await asyncio.sleep(2.5)
            state = await world.fleet.state()
            doomed = [r for r in state["requests"] if r["worker"] == 1]
            streaming = {r["gateway_id"] for r in doomed if r["generated"]}
            assert streaming
            assert state["queue"]["requests"] > 0
            killed_at = clock()
            before = {row["worker"]: row["incarnation"] for row in state["workers"]}
            await world.fleet.kill(1)
            for number, stream in enumerate(world.streams, start=1):
                if number in streaming:
                    assert (stream.end.finish, stream.end.code) == (Finish.ERROR, "worker_lost")
                    assert stream.end.retriable
                    assert stream.ended_at is not None
                    assert stream.ended_at - killed_at < 100 * MS
            assert {w["worker"]: w["state"] for w in (await world.fleet.state())["workers"]}[1] == "gone"
            await asyncio.sleep(3.0)
            (back,) = [w for w in (await world.fleet.state())["workers"] if w["worker"] == 1]
            assert back["state"] == "in_rotation"
            assert back["incarnation"] != before[1]
            await world.quiet()
            await world.check_at_rest()
            others = [s for n, s in enumerate(world.streams, start=1) if n not in streaming]
            assert all(s.end.finish is Finish.LENGTH and len(s.tokens) == 64 for s in others)
            again = [world.submit(ask(100, 50 + seed))[1] for seed in range(4)]
            await world.quiet()
            assert {stream.end.worker for stream in again} == {0, 1}

    run_virtual(main)


def test_a_frozen_worker_is_out_and_back_when_it_is_thawed() -> None:
    """Streams end within the ejection time; thawed it drops what it had and serves again (C3)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            for seed in range(4):
                world.submit(ask(64, seed, max_tokens=200))
            await asyncio.sleep(1.5)
            frozen_at = clock()
            await world.fleet.freeze(0)
            await asyncio.sleep(2.3)
            ended = [s for s in world.streams if s.ends]
            assert ended
            assert all(s.end.code == "worker_lost" for s in ended)
            assert all(s.ended_at is not None and s.ended_at - frozen_at <= 2.3 * S for s in ended)
            for seed in range(4):
                world.submit(ask(64, 10 + seed))
            await asyncio.sleep(3.0)
            assert all(
                row["worker"] == 1 for row in await world.fleet.truth() if row["dispatched"] > frozen_at + S
            )
            await world.fleet.thaw(0)
            await world.quiet()
            await asyncio.sleep(1.0)
            state = {w["worker"]: w["state"] for w in (await world.fleet.state())["workers"]}
            assert state == {0: "in_rotation", 1: "in_rotation"}
            await world.check_at_rest()

    run_virtual(main)


def test_deadlines_in_the_queue_and_while_running() -> None:
    """R2 expires at 50 to 60 ms without prefill, R3 after partial text; their blocks are back (C15)."""

    async def main(clock: Clock) -> None:
        lone = config(workers=1, router=type(ONE.router)(max_dispatched=1))
        async with VirtualFleet(lone, clock, cost=TEN_MS_STEPS) as world:
            began = clock()
            world.submit(ask(32, 1, max_tokens=100))
            _, second = world.submit(ask(32, 2, deadline_s=0.05))
            await world.quiet()
            assert second.ended_at is not None
            assert 50 * MS <= second.ended_at - began <= 60 * MS
            assert (second.end.finish, second.end.code) == (Finish.EXPIRED, "deadline_exceeded")
            _, third = world.submit(ask(32, 3, max_tokens=100, deadline_s=0.5, session="s"))
            await world.quiet()
            assert 0 < len(third.tokens) < 100
            assert (third.end.finish, third.end.code) == (Finish.EXPIRED, "deadline_exceeded")
            rows = await world.fleet.truth()
            assert [row["dispatched"] is None for row in rows] == [True, False, False]
            lived = rows[2]["finished"] - rows[2]["received"]
            assert 500 * MS <= lived <= 511 * MS
            _, later = world.submit(ask(32, 3, session="s"))
            await world.quiet()
            assert later.end.finish is Finish.LENGTH
            await world.check_at_rest()

    run_virtual(main)


def test_a_burst_beyond_the_bounds_is_refused_with_retry_after() -> None:
    """Accepted + refused = sent; it accepts again when the queue has emptied (C14)."""

    async def main(clock: Clock) -> None:
        bounded = config(workers=1, queue=QueueConfig(max_requests=10, max_tokens=1000))
        async with VirtualFleet(bounded, clock) as world:
            refused = []
            for seed in range(50):
                try:
                    world.submit(ask(80, seed))
                except Rejected as rejected:
                    refused.append(rejected)
            gateway = world.fleet.gateway
            assert len(gateway.dispatcher.queue) <= 10
            assert gateway.dispatcher.queue.tokens <= 1000
            assert len(refused) + len(world.streams) == 50
            assert {r.status for r in refused} == {429}
            await world.quiet()
            more = []
            for seed in range(50):
                try:
                    world.submit(ask(80, 100 + seed))
                except Rejected as rejected:
                    more.append(rejected.retry_after)
            assert more
            assert all(seconds is not None and 1 <= seconds <= 60 for seconds in more)
            await world.quiet()
            await world.check_at_rest()

    run_virtual(main)


def test_a_hold_makes_a_kill_phase_exact() -> None:
    """Held after its first chunk the request dies there; another worker serves it from the start (E48)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            hold = await world.fleet.hold("prefill:1", request="c7")
            _, stream = world.submit(ask(600, 1, client_id="c7"))
            held = await world.fleet.held(hold, timeout=5.0)
            assert held is not None
            assert (held["request"], held["phase"]) == ("c7", "prefill:1")
            await world.fleet.kill(held["worker"])
            await world.fleet.release(hold)
            await world.quiet()
            assert (stream.end.finish, stream.end.attempt) == (Finish.LENGTH, 2)
            assert stream.end.worker == 1 - held["worker"]
            nothing = await world.fleet.hold("decode:5", request="nobody")
            assert await world.fleet.held(nothing, timeout=0.5) is None
            await world.fleet.release(nothing)
            with pytest.raises(LookupError):
                await world.fleet.held(99, timeout=0.0)
            await world.check_at_rest()

    run_virtual(main)


def test_a_request_held_at_admission_keeps_nobody_else_waiting() -> None:
    """It holds its blocks and computes nothing; others are sent to the same worker and run (E48)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            hold = await world.fleet.hold("admitted", request="c1")
            _, stream = world.submit(ask(600, 1, client_id="c1"))
            assert await world.fleet.held(hold, timeout=1.0) is not None
            _, other = world.submit(ask(600, 2))
            while not other.ends:
                await asyncio.sleep(0.1)
            assert not stream.tokens
            await world.fleet.release(hold)
            await world.quiet()
            assert stream.end.finish is Finish.LENGTH
            await world.check_at_rest()

    run_virtual(main)


def test_a_worker_that_never_answers_does_not_slow_the_other_down() -> None:
    """Its heartbeats go on and no step ends: it is tripped, the other's p95 stays within 1.2x (C11)."""

    class Stuck(SimulatedRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            return dataclasses.replace(super().execute(plan), duration=1e6)

    fast = CostModel(a=0.005, b=1e-5, c=1e-4, d=0.0, e=0.0, g0=0.0, g1=0.0)

    async def main(clock: Clock, stuck: bool) -> tuple[list[float], list[str | None]]:
        of = config(workers=2 if stuck else 1, cost=fast)
        async with VirtualFleet(of, clock, runner=lambda w: Stuck if stuck and w == 0 else None) as world:
            sent, states = [], set()
            for seed in range(200):
                sent.append(clock())
                world.submit(ask(32, seed, max_tokens=4))
                await asyncio.sleep(0.2)
                states |= {w["state"] for w in (await world.fleet.state())["workers"] if w["worker"] == 0}
            await world.quiet()
            if stuck:
                assert "ejected" in states, "the breaker is open"
                reasons = ("load", "overlap", "only", "wait", "retry", "session", "escape")
                meter, name = world.fleet.meter, "headrace_router_selections_total"
                assert sum(meter.get(name, worker="0", reason=reason) for reason in reasons) <= 8
            times = [
                (s.ended_at or 0) - t
                for s, t in zip(world.streams, sent, strict=True)
                if s.end.worker == of.workers - 1
            ]
            return sorted(t / 1e9 for t in times if t < 9 * S), [s.end.code for s in world.streams]

    alone, _ = run_virtual(lambda clock: main(clock, False))
    beside, codes = run_virtual(lambda clock: main(clock, True))
    assert beside[int(0.95 * len(beside))] <= 1.2 * alone[int(0.95 * len(alone))]
    assert len(beside) >= 190
    assert set(codes) == {None}, "what stalled was served by the other"


def test_a_cancel_is_recorded_with_its_phase() -> None:
    """Held at queued, after chunk 1 and before token 3, then cancelled by the client."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            for phase in ("queued", "prefill:1", "decode:3"):
                hold = await world.fleet.hold(phase, request=phase)
                id, stream = world.submit(ask(600, client_id=phase))
                assert await world.fleet.held(hold, timeout=5.0) is not None
                world.fleet.cancel(id)
                await world.fleet.release(hold)
                await world.quiet()
                assert stream.end.finish is Finish.CANCELLED
            phases = [(row["id"], row["cancel_phase"]) for row in await world.fleet.truth()]
            assert phases == [("queued", "queued"), ("prefill:1", "prefill"), ("decode:3", "decode")]
            await world.check_at_rest()

    run_virtual(main)


def test_controls_change_while_requests_run() -> None:
    """All or nothing, gateway and workers alike; a later incarnation is told too (E50)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            before = (await world.fleet.config())["config_id"]
            with pytest.raises(ValueError, match="max_requests: at least 1, not 0"):
                await world.fleet.configure({"queue": {"max_requests": 0}, "order": "priority"})
            with pytest.raises(ValueError, match="model cannot be changed"):
                await world.fleet.configure({"model": "other"})
            assert (await world.fleet.config())["config_id"] == before
            changes = {"queue": {"order": "priority"}, "max_running": 3, "router.policy": "round_robin"}
            after = await world.fleet.configure(changes)
            assert after["config_id"] != before
            assert after["config"]["queue.order"] == "priority"
            assert after["config"]["scheduler.max_running"] == 3
            await world.fleet.kill(0)
            await asyncio.sleep(3.0)
            assert [world.pool._lives[w].worker.config.scheduler.max_running for w in (0, 1)] == [3, 3]
            ids = [world.submit(ask(30, seed))[1] for seed in range(4)]
            await world.quiet()
            assert sorted(stream.end.worker or 0 for stream in ids) == [0, 0, 1, 1]
            await world.check_at_rest()

    run_virtual(main)


def test_ballast_and_a_cache_reset_reach_every_worker() -> None:
    """Blocks are out of the pool and come back; after a reset nothing hits, by the epoch (C1 a)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            world.submit(ask(100, 1))
            await world.quiet()
            await world.fleet.pool(100)
            (row,) = (await world.fleet.audit())["workers"]
            assert row["ballast"] == 100
            await world.fleet.pool(0)
            await world.fleet.cache_reset()
            await asyncio.sleep(0.3)
            _, stream = world.submit(ask(100, 1))
            await world.quiet()
            assert stream.end.cached == 0
            rows = await world.fleet.truth()
            assert rows[-1]["route"]["predicted_hit"] == 0
            assert {miss["reason"] for miss in rows[-1]["misses"]} == {"worker_restarted", "below_block"}
            await world.check_at_rest()

    run_virtual(main)


def test_the_metrics_page_agrees_with_what_happened() -> None:
    """Requests, ends, states and the workers' counters over a kill (I30, O6)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(TWO, clock) as world:
            for seed in range(6):
                world.submit(ask(64, seed))
            await world.quiet()
            await asyncio.sleep(0.3)
            await world.fleet.kill(0)
            page = world.fleet.metrics().decode()
            generated = [
                float(line.split()[-1])
                for line in page.splitlines()
                if line.startswith("headrace_engine_generated_tokens_total{")
            ]
            assert sum(generated) == 6 * 16, "the dead worker's counters live on"
            assert 'headrace_router_worker_state{model="simulated",worker="0",state="gone"} 1.0' in page
            assert 'headrace_router_requests_total{model="simulated",class="default"} 6.0' in page
            assert 'headrace_router_streams_ended_total{model="simulated",reason="length"} 6.0' in page
            assert 'headrace_router_ejections_total{model="simulated",reason="lost"} 1.0' in page

    run_virtual(main)


def test_stopping_ends_every_stream() -> None:
    """Nobody is left listening for ever."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            for seed in range(3):
                world.submit(ask(300, seed))
            await asyncio.sleep(0.2)
        assert [s.end.code for s in world.streams] == ["shutting_down"] * 3
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_a_listener_that_fails_ends_its_own_request_only() -> None:
    """The others go on (E2)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:

            def broken(event: object) -> None:
                raise ValueError("no")

            world.fleet.submit(ask(64, 1), broken)
            _, stream = world.submit(ask(64, 2))
            await world.quiet()
            assert stream.end.finish is Finish.LENGTH
            await world.check_at_rest()

    run_virtual(main)


def test_a_listener_may_call_back_into_the_fleet() -> None:
    """A stop string is seen while a token is delivered: the request ends with stop."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            seen: list[object] = []

            def stops(event: object) -> None:
                seen.append(event)
                if len(seen) == 3:
                    world.fleet.cancel(id, Finish.STOP)

            id, _ = world.fleet.submit(ask(64, 1), stops)
            await world.quiet()
            assert len(seen) == 4
            assert getattr(seen[-1], "finish", None) is Finish.STOP
            await world.check_at_rest()

    run_virtual(main)


def test_a_worker_that_dies_too_often_stays_down_and_nobody_waits_for_ever() -> None:
    """After more than three deaths in a minute it is not started again; requests get an error (F39)."""

    async def main(clock: Clock) -> None:
        async with VirtualFleet(ONE, clock) as world:
            for _ in range(4):
                while world.fleet.not_ready() is not None:
                    await asyncio.sleep(0.1)
                _, stream = world.submit(ask(64))
                await world.fleet.kill(0)
            await world.quiet(limit=60.0)
            assert stream.end.code == "no_worker"
            with pytest.raises(Rejected) as refused:
                world.submit(ask(64))
            assert refused.value.status == 503

    run_virtual(main)


@pytest.mark.parametrize("seed", range(4))
def test_chaos_ends_every_accepted_request_exactly_once(seed: int) -> None:
    """Random submits, cancels, kills, freezes and deadlines: one Ended each, clean audits, nothing hangs."""

    async def main(clock: Clock) -> None:
        rng = random.Random(seed)
        classes = {"a": ClassConfig(rank=0, deadline=20.0), "b": ClassConfig(rank=1)}
        of = config(workers=3, classes=classes, queue=QueueConfig(max_requests=40, order="priority"))
        async with VirtualFleet(of, clock, latency=rng.choice([0.0, 0.002])) as world:
            ids, frozen, refusals = [], set(), set()
            for number in range(100):
                await asyncio.sleep(rng.expovariate(8.0))
                deal = rng.random()
                if deal < 0.8:
                    try:
                        size, prefix = rng.randrange(1, 500), rng.randrange(5)
                        wanted = ask(
                            size, prefix, rng.randrange(1, 60), class_=rng.choice("ab"), session=f"s{prefix}"
                        )
                        ids.append(world.submit(wanted)[0])
                    except Rejected as rejected:
                        refusals.add(rejected.status)
                elif deal < 0.92 and ids:
                    world.fleet.cancel(rng.choice(ids), rng.choice([Finish.CANCELLED, Finish.STOP]))
                elif deal < 0.95 and number % 3 == 0:
                    await world.fleet.kill(rng.randrange(3))
                elif frozen:
                    await world.fleet.thaw(frozen.pop())
                elif world.pool.describe()[worker := rng.randrange(3)]["alive"]:
                    await world.fleet.freeze(worker)
                    frozen.add(worker)
                if number % 20 == 0:
                    rows = (await world.fleet.audit())["invariants"] if not frozen else []
                    assert [row for row in rows if row["ok"] is False] == []
            for worker in frozen:
                await world.fleet.thaw(worker)
            await world.quiet()
            await asyncio.sleep(5.0)
            await world.check_at_rest()
            assert refusals <= {429, 503}
            gateway = world.fleet.gateway
            assert gateway.lives.admitted == gateway.lives.terminal == len(ids)
            assert len(await world.fleet.truth()) == len(ids)
            assert all(gateway.dispatcher.ledger.load(w).requests == 0 for w in range(3))
            assert len(gateway.dispatcher.predicted) == 0
            for worker in range(3):
                life = world.pool._lives.get(worker)
                if life is not None:
                    held = {content.digest for content in life.worker.cache.content.values()}
                    assert gateway.dispatcher.events.keys(worker) == held, "the index is what is there (I24)"

    run_virtual(main)
