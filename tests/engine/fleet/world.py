"""What the fleet's tests share: prompts, a gateway whose workers are the test, a virtual fleet."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from array import array
from collections.abc import Callable
from typing import Any

from engine import messages as m
from engine.config import ClassConfig, CostModel, EngineConfig, MemoryConfig
from engine.fleet.backend import Ask, Ended, Generated, StreamEvent
from engine.fleet.door import Identity
from engine.fleet.fleet import Fleet
from engine.fleet.gateway import Gateway
from engine.fleet.inproc import InprocPool
from engine.fleet.run import Emit, Send
from engine.model import read_adapter
from engine.request import Finish, Request, WorkerTruth
from engine.runner.simulated import SimulatedRunner
from engine.telemetry import Meter

MS = 1_000_000
S = 1_000_000_000

BASE = EngineConfig(
    model="simulated",
    workers=2,
    memory=MemoryConfig(kv_blocks=512),
    classes={"default": ClassConfig(default_output=16)},
)


def config(**changes: Any) -> EngineConfig:
    return dataclasses.replace(BASE, **changes)


def prompt(length: int, seed: int = 0) -> array[int]:
    rng = random.Random(f"{seed}/{length // 4096}")
    return array("I", [rng.randrange(4096) for _ in range(length)])


def ask(length: int = 64, seed: int = 0, max_tokens: int = 16, **fields: Any) -> Ask:
    return Ask(prompt(length, seed), max_tokens, **fields)


class Yard:
    """A gateway whose workers are the test: it reads what each was sent and speaks for it."""

    def __init__(self, of: EngineConfig = BASE, ready: bool = True) -> None:
        self.config = of
        self.meter = Meter(of, "router", "fleet")
        self.gateway = Gateway(of, Identity(of.model), self.meter)
        self.now = 0
        self.sent: dict[int, list[m.ToWorker]] = {w: [] for w in range(of.workers)}
        self.heard: dict[int, list[StreamEvent]] = {}
        self.lives = dict.fromkeys(range(of.workers), 0)
        for worker in range(of.workers) if ready else ():
            self.hello(worker)
            self.beat(worker)

    def hello(self, worker: int) -> None:
        self.lives[worker] += 1
        life, blocks = self.lives[worker], self.config.memory.kv_blocks or 0
        hello = m.Hello(worker, f"w{worker}-{life}", life * 1000, blocks, 16, blocks * 16)
        self.say(worker, hello)

    def beat(self, worker: int, step: int = 0, state: str = "ready", epoch: int | None = None) -> None:
        life = self.lives[worker]
        epoch = life * 1000 if epoch is None else epoch
        self.say(worker, m.Heartbeat(f"w{worker}-{life}", epoch, step, None, state, m.Load()))

    def say(self, worker: int, *messages: m.FromWorker) -> None:
        for message in messages:
            self.gateway.on_message(worker, message, self.now)
        self.collect()

    def submit(self, ask: Ask) -> int:
        id, _ = self.gateway.submit(ask, self.now)
        self.collect()
        return id

    def pass_time(self, seconds: float, beating: tuple[int, ...] | None = None) -> None:
        """Time passes in heartbeats of 250 ms; ``beating`` workers send them (all that have said hello)."""
        end = self.now + int(seconds * S)
        workers = [w for w, life in self.lives.items() if life] if beating is None else list(beating)
        while self.now < end:
            self.now = min(self.now + 250 * MS, end)
            for worker in workers:
                self.beat(worker)
            self.gateway.tick(self.now)
            self.collect()

    def lose(self, worker: int) -> None:
        self.gateway.on_lost(worker, "killed", self.now)
        self.collect()

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED) -> None:
        self.gateway.cancel(id, self.now, reason)
        self.collect()

    def collect(self) -> None:
        for action in self.gateway.take_actions():
            if isinstance(action, Send):
                self.sent[action.worker].append(action.message)
            elif isinstance(action, Emit):
                self.heard.setdefault(action.id, []).append(action.event)

    def requests(self, worker: int) -> list[Request]:
        """Everything that was ever submitted to a worker."""
        return [message.request for message in self.sent[worker] if isinstance(message, m.Submit)]

    def where(self, id: int) -> list[int]:
        """The workers that were given a request."""
        return [w for w in self.sent for request in self.requests(w) if request.id == id]

    def ended(self, id: int) -> Ended:
        """The one terminal event of a request."""
        events = [event for event in self.heard.get(id, []) if isinstance(event, Ended)]
        assert len(events) == 1, events
        assert self.heard[id][-1] is events[0]
        return events[0]

    def tokens_of(self, id: int) -> list[int]:
        return [t for event in self.heard.get(id, []) if isinstance(event, Generated) for t in event.ids]

    def progress(self, worker: int, id: int, computed: int, attempt: int = 1) -> None:
        self.say(worker, m.Progress(id, attempt, computed))

    def token(self, worker: int, id: int, token: int = 7, attempt: int = 1) -> None:
        self.say(worker, m.TokensOut(id, attempt, (token,)))

    def done(
        self, worker: int, id: int, reason: Finish = Finish.LENGTH, attempt: int = 1, **truth: Any
    ) -> None:
        error = "boom" if reason is Finish.ERROR else None
        self.say(worker, m.Done(id, attempt, reason, WorkerTruth(worker=worker, **truth), error))

    def stored(self, worker: int, request: Request, blocks: int, seq: int = 1) -> None:
        event = m.KvEvent("stored", request.digests[:blocks], request.root)
        self.say(worker, m.KvEvents(self.lives[worker] * 1000, seq, (event,)))

    def counter(self, name: str, **labels: str) -> float:
        return self.meter.get(f"headrace_router_{name}_total", **labels)


class Listening:
    """Counts what one request of a virtual fleet hears."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.tokens: list[int] = []
        self.ends: list[Ended] = []
        self.ended_at: int | None = None
        self.after_end = 0

    def __call__(self, event: StreamEvent) -> None:
        self.after_end += bool(self.ends)
        if isinstance(event, Ended):
            self.ends.append(event)
            self.ended_at = self._clock()
        else:
            self.tokens += event.ids

    @property
    def end(self) -> Ended:
        assert len(self.ends) == 1, self.ends
        assert self.after_end == 0
        return self.ends[0]


class VirtualFleet:
    """A fleet over workers in this process, in virtual time. ``fleet`` is the thing itself."""

    def __init__(
        self,
        of: EngineConfig,
        clock: Callable[[], int],
        cost: CostModel | None = None,
        latency: float = 0.0,
        runner: Callable[[int], type[SimulatedRunner] | None] = lambda worker: None,
    ) -> None:
        def make(worker: int) -> SimulatedRunner:
            made = (runner(worker) or SimulatedRunner)(cost or of.cost, of.seed, worker)
            made.adapter_digest = lambda folder: read_adapter(of, folder).digest
            return made

        self.clock = clock
        self.pool = InprocPool(of, clock, make, latency=latency)
        self.fleet = Fleet(of, self.pool, clock)
        self.streams: list[Listening] = []

    async def __aenter__(self) -> VirtualFleet:
        await self.fleet.start()
        while self.fleet.not_ready() is not None or self._warming():
            assert self.clock() < 600 * S, "no worker gets ready"
            await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.fleet.stop()

    def _warming(self) -> bool:
        return any(h.state != "in_rotation" for h in self.fleet.gateway.health.values())

    def submit(self, ask: Ask) -> tuple[int, Listening]:
        listening = Listening(self.clock)
        id, _ = self.fleet.submit(ask, listening)
        self.streams.append(listening)
        return id, listening

    async def quiet(self, limit: float = 600.0) -> None:
        """Until every request has ended; fails if one hangs."""
        deadline = self.clock() + int(limit * S)
        while self.fleet.gateway.lives.runs:
            assert self.clock() < deadline, f"hangs: {self.fleet.gateway.lives.runs}"
            await asyncio.sleep(0.1)

    async def check_at_rest(self) -> dict[str, Any]:
        """Every invariant holds and every stream has had its one end."""
        await asyncio.sleep(1.0)
        audit = await self.fleet.audit()
        assert [row for row in audit["invariants"] if row["ok"] is False] == []
        for row in audit["workers"]:
            if row["answered"]:
                assert row["free"] == row["blocks"], row
                assert row["waiting"] == row["running"] == 0, row
        assert all(listening.end for listening in self.streams)
        return audit
