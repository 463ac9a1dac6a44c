"""A run in virtual time: engine, load and faults in this process, on a clock that jumps.

The engine's HTTP layer is called directly, so the client parses the very bytes that a socket would
carry (docs/decisions/0003). Every worker runs on the cost model, whatever model the scenario names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

from engine.api.exchange import ApiRequest, Headers
from engine.api.generation import Stamps
from engine.api.service import Service, gateway_seconds
from engine.config import EngineConfig
from engine.fleet.door import Identity
from engine.fleet.fleet import Fleet
from engine.fleet.inproc import InprocPool
from engine.model import ModelError, identity, load_runner, load_tokenizer, with_kv_blocks
from faults.fault import Controls
from headrace.errors import TargetFailed, UsageFailed
from headrace.manifest import engine_facts
from headrace.site import ATTEMPTS, RECORDS, TEXTS, LoadEnd, LoadOrder, OnTick
from loadgen.clock import Clock
from loadgen.desk import InlineDesk
from loadgen.driver import Driver
from loadgen.health import driver_signals
from loadgen.observe import Kept, keep, observe, tokenizer_of
from loadgen.render import Rendered, Renderer
from loadgen.targets import TARGETS
from loadgen.text import Prompter, TextMaker
from loadgen.texts import write_texts
from loadgen.timeline import Exchange
from loadgen.transport import HttpRequest, Request, Sink
from results.record import Record
from results.run import RecordWriter
from scenarios.parts import engine_config
from scenarios.schema import EngineTarget, Scenario

MODEL = "simulated"
READY_LIMIT_S = 60.0
"""Virtual seconds until all workers must be in rotation; loading takes one."""
SALT = 0x5EED_0F_71E1D
"""Of observed hashes. A fixed one: a virtual run holds no text of anybody's, and must repeat."""


def refuse_url(scenario: Scenario) -> None:
    """Raises UsageFailed for a target that cannot be simulated."""
    if not isinstance(scenario.target, EngineTarget):
        raise UsageFailed("--virtual needs a scenario with `target: {engine: ..}`: a URL has no virtual time")


@asynccontextmanager
async def virtual_site(scenario: Scenario, clock: Clock) -> AsyncIterator[VirtualSite]:
    """Start the scenario's engine in this process, and wait until all its workers are in rotation."""
    refuse_url(scenario)
    config = with_kv_blocks(replace(engine_config(scenario), model=MODEL))
    pool = InprocPool(config, clock, lambda worker: load_runner(config, worker))
    try:
        fleet = Fleet(config, pool, clock, Identity(**identity(config)))
    except ModelError as error:  # an adapter's folder that is there and cannot be read
        raise UsageFailed(str(error)) from error
    await fleet.start()
    try:
        await _until_ready(fleet, clock)
        yield VirtualSite(config, fleet, clock)
    finally:
        await fleet.stop()


async def _until_ready(fleet: Fleet, clock: Clock) -> None:
    """Wait until every worker is in rotation. Raises TargetFailed with what they are instead."""
    limit = clock() + round(READY_LIMIT_S * 1e9)
    while True:
        workers = (await fleet.state())["workers"]
        if all(row["state"] == "in_rotation" for row in workers):
            return
        if clock() >= limit:
            states = ", ".join(f"worker {row['worker']} {row['state']}" for row in workers)
            raise TargetFailed(f"the simulated engine is not ready after {READY_LIMIT_S:g} s: {states}")
        await asyncio.sleep(0.25)


class VirtualSite:
    """The engine in this process, as a site."""

    own = True

    def __init__(self, config: EngineConfig, fleet: Fleet, clock: Clock) -> None:
        self.clock = clock
        self.controls: Controls = fleet
        self.facts: dict[str, Any] = engine_facts(config)
        self._fleet = fleet
        service = Service(
            fleet,
            load_tokenizer(config),
            config,
            Stamps(clock, lambda: clock() // 1_000_000_000),
            charge=gateway_seconds(config.cost),
        )
        self._transport = InprocTransport(service, clock)

    async def scrape(self) -> str:
        return self._fleet.metrics().decode()

    async def load(self, order: LoadOrder, on_tick: OnTick) -> VirtualLoad:
        return VirtualLoad(order, self._transport, self.clock, on_tick)

    def died(self) -> str | None:
        return None


class InprocTransport:
    """loadgen.transport.Transport without sockets. Bytes arrive at the time at which they are written."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        assert isinstance(request, HttpRequest)
        now = self._clock()
        sink.connected(now, new=False)
        sink.sent(now)
        wire = _Wire(sink, self._clock)
        headers = {name.lower(): value for name, value in request.headers}
        # The answer must not begin before the caller holds the abort.
        asyncio.get_running_loop().call_soon(
            wire.begin, self._service, ApiRequest(request.method, request.path, headers, request.body)
        )
        return wire.abort

    async def close(self) -> None:
        """There is nothing to close."""


class _Wire:
    """One exchange: the engine writes at one end (exchange.Sink), the client reads at the other."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._hang_up: Callable[[], None] | None = None
        self._over = False

    def begin(self, service: Service, request: ApiRequest) -> None:
        gone = self._over  # hung up at once; the engine still reads what was sent, and then the end
        hang_up = service.handle(request, self)
        if gone:
            hang_up()
        elif not self._over:  # not answered while it was handled
            self._hang_up = hang_up

    def start(self, status: int, headers: Headers) -> None:
        if not self._over:
            self._sink.headers(self._clock(), status, {name.lower(): value for name, value in headers})

    def write(self, data: bytes) -> None:
        if not self._over:
            self._sink.data(self._clock(), data)

    def end(self) -> None:
        self._close("complete")

    def abort(self) -> None:
        """The client closes its end."""
        if self._over:
            return
        hang_up = self._hang_up
        self._close("aborted")
        if hang_up is not None:
            hang_up()

    def _close(self, how: Any) -> None:
        if not self._over:
            self._over = True
            self._sink.closed(self._clock(), how, "")


class VirtualLoad:
    """The load of a virtual run: one driver on this loop."""

    def __init__(self, order: LoadOrder, transport: InprocTransport, clock: Clock, on_tick: OnTick) -> None:
        self._order = order
        self._transport = transport
        self._clock = clock
        self._on_tick = on_tick
        self._dialect = TARGETS["openai_chat"](model=MODEL, own=True, ignore_eos=True, token_ids=True)  # type: ignore[call-arg]
        self._renderer = Renderer(
            Prompter(TextMaker(order.unit), order.nonce), self._dialect, order.tag, frozenset(order.whole)
        )
        self._records = RecordWriter(order.folder / RECORDS)
        self._kept: list[Kept] = []
        self._interrupted = False
        shots, phases = order.plan.shots, order.plan.phases
        self._desk = InlineDesk(shots, phases, self._renderer, self._on_close, self._on_attempt)
        self._attempts: RecordWriter | None = None
        self._driver: Driver | None = None
        self._task: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    def start(self, t0: int) -> None:
        plan, rules = self._order.plan, self._order.rules
        self._driver = Driver(
            plan.shots, plan.phases, self._desk, self._dialect, self._transport, self._clock, t0, rules
        )
        self._t0 = t0
        self._task = asyncio.create_task(self._driver.run())
        self._ticking = asyncio.create_task(self._tick(self._driver))

    async def finished(self) -> LoadEnd:
        assert self._task is not None, "start comes first"
        assert self._driver is not None
        await self._task
        self._close_files()
        self._show(self._driver)
        if self._order.keep_text:
            write_texts(self._kept, self._order.folder / TEXTS)
        tokenize = tokenizer_of(self._transport, self._dialect)
        observed = await observe(self._kept, tokenize, SALT, "virtual")
        tallies = self._desk.tallies
        said = {"littles_sum": tallies.littles_sum, "lost": tallies.lost}
        return LoadEnd(driver_signals(self._driver, said).as_dict(), self._interrupted, observed)

    def stop(self) -> None:
        self._interrupted = True
        if self._driver is not None:
            self._driver.stop()

    async def close(self) -> None:
        for task in (self._task, self._ticking):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._close_files()

    def _close_files(self) -> None:
        self._records.close()
        if self._attempts is not None:
            self._attempts.close()

    def cancel(self, shot: int) -> None:
        if self._driver is not None:
            self._driver.cancel(shot)

    def request_id(self, shot: int) -> str:
        return self._renderer.request_id(shot)

    def _on_attempt(self, record: Record) -> None:
        if self._attempts is None:
            self._attempts = RecordWriter(self._order.folder / ATTEMPTS)
        self._attempts.append(record)

    def _on_close(self, exchange: Exchange, rendered: Rendered | None) -> None:
        self._records.append(exchange.record)
        kept = keep(exchange, rendered.messages) if rendered is not None else None
        if kept is not None:
            self._kept.append(kept)

    async def _tick(self, driver: Driver) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._records.flush()
            self._show(driver)

    def _show(self, driver: Driver) -> None:
        since = self._clock() - self._t0
        heard = self._desk.tallies.heard()
        self._on_tick(asdict(driver.counts.snapshot(since, driver.in_flight.now, heard)))
