"""Engine cases that need a gateway before the worker: queue bounds, deadlines, health (C14, C15, C19).

The table in tests/engine/core/test_engine_cases.py says where every case is.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from engine.api.exchange import ApiRequest
from engine.api.service import Service
from engine.config import CostModel, HealthConfig, QueueConfig, RouterConfig
from engine.fleet.backend import Rejected
from engine.model.byte_tokenizer import ByteTokenizer
from engine.request import Finish
from engine.runner.base import StepPlan, StepResult
from engine.runner.simulated import SimulatedRunner
from loadgen.clock import Clock, run_virtual
from tests.engine.api.fake import STAMPS, FakeSink
from tests.engine.fleet.world import MS, S, VirtualFleet, ask, config
from tests.engine.whole import Whole, engine

TEN_MS_STEPS = CostModel(a=0.01, b=0.0, c=0.0, d=0.0, e=0.0, g0=0.0, g1=0.0)
SINGLE = config(workers=1, router=RouterConfig(max_dispatched=1), cost=TEN_MS_STEPS)


class Counting(ByteTokenizer):
    """Counts the prompts that it is given."""

    def __init__(self) -> None:
        self.prompts = 0

    def encode(self, text: str) -> list[int]:
        self.prompts += 1
        return super().encode(text)


class TestC7AdapterReload:
    def test_a_name_that_gets_new_content(self) -> None:
        """Same name, other weights: nothing of the old is hit, who runs keeps what it began with, and after
        the unload a new request gets 404."""

        async def main(clock: Clock) -> None:
            async with VirtualFleet(config(workers=1), clock) as world:
                await world.fleet.load_adapter("X", "/nowhere/one")
                _, base = world.submit(ask(40, 1))
                _, first = world.submit(ask(40, 1, adapter="X"))
                await world.quiet()
                _, running = world.submit(ask(40, 1, adapter="X"))
                while len(running.tokens) < 3:
                    await asyncio.sleep(0.01)
                await world.fleet.load_adapter("X", "/nowhere/two")
                _, after = world.submit(ask(40, 1, adapter="X"))
                await world.quiet()
                _, again = world.submit(ask(40, 1, adapter="X"))
                await world.quiet()
                assert running.tokens == first.tokens
                assert after.tokens == again.tokens
                assert len({tuple(s.tokens) for s in (base, first, after)}) == 3
                assert [s.end.cached for s in (base, first, running, after, again)] == [0, 0, 32, 0, 32]
                await world.fleet.unload_adapter("X")
                with pytest.raises(Rejected) as unknown:
                    world.submit(ask(40, 1, adapter="X"))
                assert unknown.value.status == 404
                await world.check_at_rest()

        run_virtual(main)


class TestC14QueueBounds:
    BOUND = dataclasses.replace(SINGLE, queue=QueueConfig(max_requests=10, max_tokens=1000))

    def test_a_burst_while_tokenizing_yields(self) -> None:
        """50 at once, each tokenised with a pause: never more than the bound enters, n = 4 whole or not at
        all; what comes while the queue is full costs no tokenizing; then it accepts again."""

        async def body(whole: Whole) -> None:
            tokenizer, gateway = Counting(), whole.world.fleet.gateway
            whole.service = Service(
                whole.world.fleet, tokenizer, self.BOUND, STAMPS, charge=lambda tokens: 0.002 * (tokens % 7)
            )
            occupant = whole.send({"prompt": "o" * 30, "max_tokens": 400, "ignore_eos": True})
            await asyncio.sleep(0.1)
            sinks = [self._send(whole, i, n=4 if i == 25 else 1) for i in range(50)]
            queue, most = gateway.dispatcher.queue, (0, 0)
            for _ in range(60):
                await asyncio.sleep(0.0005)
                most = max(most[0], len(queue)), max(most[1], queue.tokens)
            assert most[0] <= 10
            assert most[1] <= 1000
            assert most[0] == 10 or most[1] > 900
            refused = [sink for sink in sinks if sink.status is not None]
            assert len(refused) + len(queue) == 50
            self._polite(refused)
            before = tokenizer.prompts
            if len(queue) == 10:
                late = [self._send(whole, 100 + i) for i in range(20)]
                assert tokenizer.prompts == before
                self._polite(late)
            await whole.world.quiet()
            assert occupant.status == 200
            assert {sink.status for sink in sinks} == {200, 429}
            assert self._send(whole, 999).status is None

        engine(body, self.BOUND)

    def _send(self, whole: Whole, number: int, n: int = 1) -> FakeSink:
        return whole.send({"prompt": f"{number:080}", "max_tokens": 16, "ignore_eos": True, "n": n})

    def _polite(self, refused: list[FakeSink]) -> None:
        for sink in refused:
            assert sink.status == 429
            assert 1 <= int(sink.headers["Retry-After"]) <= 60

    def test_refusals_add_up(self) -> None:
        """Accepted + refused by reason = submitted, also while nothing is ready."""

        async def main(clock: Clock) -> None:
            async with VirtualFleet(self.BOUND, clock) as world:
                accepted, refused = 0, []
                for seed in range(50):
                    try:
                        world.submit(ask(80, seed, n=4 if seed == 7 else 1))
                        accepted += 1
                    except Rejected as rejected:
                        refused.append(rejected.status)
                await world.fleet.drain(0)
                with pytest.raises(Rejected) as draining:
                    world.submit(ask(80, 99))
                assert draining.value.status == 503
                meter = world.fleet.meter
                reasons = ("queue_full", "not_ready", "draining")
                counted = sum(
                    meter.get("headrace_router_rejections_total", reason=reason, class_="default")
                    for reason in reasons
                )
                assert set(refused) == {429}
                assert (accepted + len(refused), counted) == (50, len(refused) + 1)

        run_virtual(main)


class TestC15Deadlines:
    """The main case is in test_fleet.py; here are its variants."""

    @pytest.mark.parametrize("steps", [7, 23, 40])
    def test_blocks_are_free_in_that_step(self, steps: int) -> None:
        """Whenever a deadline passes in a decode: partial text, one error, and nothing is held after the
        step; the charge is returned and the next request of the session is served."""

        async def main(clock: Clock) -> None:
            async with VirtualFleet(SINGLE, clock, cost=TEN_MS_STEPS) as world:
                _, late = world.submit(ask(32, 3, max_tokens=200, deadline_s=steps * 0.01, session="s"))
                await world.quiet()
                assert (late.end.finish, late.end.code) == (Finish.EXPIRED, "deadline_exceeded")
                assert 0 < len(late.tokens) < 200
                (row,) = await world.fleet.truth()
                assert row["reclaimed"] - row["cancel_flagged"] <= 10 * MS
                assert row["steps_after_cancel"] <= 1
                assert world.fleet.gateway.dispatcher.ledger.load(0).requests == 0
                _, after = world.submit(ask(32, 3, session="s"))
                await world.quiet()
                assert after.end.finish is Finish.LENGTH
                await world.check_at_rest()

        run_virtual(main)

    def test_edf_drops_what_cannot_end_in_time_at_its_turn(self) -> None:
        """It expires before any prefill, and the feasible one behind it keeps its deadline."""
        of = dataclasses.replace(SINGLE, queue=QueueConfig(order="edf"))

        async def main(clock: Clock) -> None:
            async with VirtualFleet(of, clock, cost=TEN_MS_STEPS) as world:
                for seed in range(25):  # rates and the lengths of outputs are known
                    world.submit(ask(32, seed, max_tokens=40))
                await world.quiet()
                known = len(world.streams)
                world.submit(ask(32, 60, max_tokens=40))  # runs 0.4 s
                _, hopeless = world.submit(ask(32, 61, max_tokens=40, deadline_s=0.6))
                _, feasible = world.submit(ask(32, 62, max_tokens=40, deadline_s=0.95))
                began = clock()
                await world.quiet()
                assert hopeless.end.finish is Finish.EXPIRED
                assert not hopeless.tokens
                assert feasible.end.finish is Finish.LENGTH
                assert feasible.ended_at is not None
                assert feasible.ended_at - began <= 0.95 * S
                rows = (await world.fleet.truth())[known:]
                assert [row["first_scheduled"] is None for row in rows].count(True) == 1
                await world.check_at_rest()

        run_virtual(main)


class Slow(SimulatedRunner):
    """A step takes so many seconds."""

    seconds = 1e9

    def execute(self, plan: StepPlan) -> StepResult:
        return dataclasses.replace(super().execute(plan), duration=self.seconds)


class TestC19Health:
    HEALTH = HealthConfig(stall_after=30.0)

    def served(self, clock: Clock, of: Any, **more: Any) -> tuple[VirtualFleet, Service]:
        world = VirtualFleet(of, clock, **more)
        return world, Service(world.fleet, ByteTokenizer(), of, STAMPS)

    def get(self, service: Service, path: str) -> FakeSink:
        sink = FakeSink()
        service.handle(ApiRequest("GET", path, {}), sink)
        return sink

    def test_stuck(self) -> None:
        """The runner blocks for ever with work pending: not ready after stall_s, and alive."""
        of = config(workers=1, health=self.HEALTH)

        async def main(clock: Clock) -> None:
            world, service = self.served(clock, of, runner=lambda worker: Slow)
            async with world:
                world.submit(ask(32))
                await asyncio.sleep(31.0)
                ready = self.get(service, "/ready")
                assert ready.status == 503
                assert int(ready.headers["Retry-After"]) >= 1
                assert self.get(service, "/live").status == 200

        run_virtual(main)

    def test_slow_is_ready(self) -> None:
        """One prefill step of 3 s is no stall: the heartbeat is the step's start."""
        of = config(workers=1, health=self.HEALTH)

        class Three(Slow):
            seconds = 3.0

        async def main(clock: Clock) -> None:
            world, service = self.served(clock, of, runner=lambda worker: Three)
            async with world:
                world.submit(ask(32, max_tokens=2))
                for _ in range(28):
                    await asyncio.sleep(0.1)
                    assert self.get(service, "/ready").status == 200
                await world.quiet()

        run_virtual(main)

    def test_idle_is_ready(self) -> None:
        """A worker without work for ten minutes."""

        async def main(clock: Clock) -> None:
            world, service = self.served(clock, config(workers=1))
            async with world:
                await asyncio.sleep(600.0)
                assert self.get(service, "/ready").status == 200

        run_virtual(main)

    def test_loading(self) -> None:
        """While it loads it is alive and not ready, and says when to ask again."""

        async def main(clock: Clock) -> None:
            world, service = self.served(clock, config(workers=1))
            await world.fleet.start()
            await asyncio.sleep(0.5)
            ready = self.get(service, "/ready")
            assert (ready.status, self.get(service, "/live").status) == (503, 200)
            assert int(ready.headers["Retry-After"]) >= 1
            await asyncio.sleep(2.0)
            assert self.get(service, "/ready").status == 200
            await world.fleet.stop()

        run_virtual(main)
