"""A whole engine in virtual time: HTTP interface, gateway, workers, simulated runners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from engine.api.exchange import ApiRequest
from engine.api.service import Service
from engine.config import EngineConfig
from engine.model.byte_tokenizer import ByteTokenizer
from engine.runner.simulated import SimulatedRunner
from loadgen.clock import Clock, run_virtual
from tests.engine.api.fake import STAMPS, FakeSink
from tests.engine.fleet.world import VirtualFleet


class Whole:
    """An engine from its HTTP interface down to its simulated runner."""

    def __init__(self, of: EngineConfig, clock: Clock) -> None:
        self.runners: list[SimulatedRunner] = []
        self.world = VirtualFleet(of, clock)
        self.world.pool.make_runner = self._runner
        self.service = Service(self.world.fleet, ByteTokenizer(), of, STAMPS)

    def _runner(self, worker: int) -> SimulatedRunner:
        """Says printable text in the byte tokenizer."""
        of = self.world.pool.config
        self.runners.append(SimulatedRunner(of.cost, of.seed, worker, drawn=127, tiers=of.cache.tiers))
        return self.runners[-1]

    def send(self, body: Any, path: str = "/v1/completions", **headers: str) -> FakeSink:
        sink = FakeSink()
        data = body if isinstance(body, bytes) else json.dumps({"model": "simulated", **body}).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.service.handle(ApiRequest("POST", path, named, data), sink)
        return sink

    async def answer(self, body: Any, path: str = "/v1/completions", **headers: str) -> FakeSink:
        sink = self.send(body, path, **headers)
        await asyncio.sleep(0.1)  # tokenizing may take its time
        await self.world.quiet()
        assert sink.ended
        return sink

    async def refuses(self, status: int, *words: str, body: Any, **headers: str) -> None:
        """This answer, with these words in its message."""
        sink = await self.answer(body, **headers)
        message = sink.json["error"]["message"]
        assert sink.status == status, sink.body
        assert all(word in message for word in words), message

    async def serves(self) -> None:
        """An ordinary request gets its text, and nothing is left of anybody."""
        sink = await self.answer({"prompt": "hello", "max_tokens": 4, "ignore_eos": True})
        assert sink.status == 200, sink.body
        assert sink.json["usage"]["completion_tokens"] == 4
        await self.world.check_at_rest()


def engine(body: Callable[[Whole], Awaitable[None]], of: EngineConfig) -> None:
    """Run ``body`` over a fresh engine, then see that it still serves."""

    async def main(clock: Clock) -> None:
        whole = Whole(of, clock)
        async with whole.world:
            await body(whole)
            await whole.serves()

    run_virtual(main)
