"""What the gateway's own Python costs: a message, a submit and an end while others wait in its queue."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

from benchmarks.timing import calls, no_collection
from engine import messages as m
from engine.config import ClassConfig, EngineConfig, MemoryConfig, QueueConfig, RouterConfig
from engine.fleet.backend import Ask
from engine.fleet.door import Identity
from engine.fleet.gateway import Gateway
from engine.request import Finish, Request, WorkerTruth
from engine.telemetry import Meter

BLOCK = 16
PROMPT = 100


class Gate:
    """A gateway with one full worker and a queue."""

    def __init__(self, waiting: int, running: int = 64, order: str = "fcfs") -> None:
        config = EngineConfig(
            memory=MemoryConfig(kv_blocks=100_000, block_size=BLOCK),
            queue=QueueConfig(max_requests=1_000_000, max_tokens=1 << 40, order=order),  # type: ignore[arg-type]
            router=RouterConfig(max_dispatched=running),
            classes={"default": ClassConfig(default_output=64)},
        )
        self.gateway = Gateway(config, Identity("null"), Meter(config, "router", "fleet"))
        self.now = 1
        self.sent: list[Request] = []
        self.say(m.Hello(0, "w", 1, 100_000, BLOCK, 1_600_000))
        self.say(m.Heartbeat("w", 1, 0, None, "ready", m.Load()))
        for id in range(running + waiting):
            self.submit(id)
            if id < running:  # it is sent, and starts at once
                latest = self.sent[-1]
                self.say(m.Progress(latest.id, 1, len(latest.tokens)), m.TokensOut(latest.id, 1, (7,)))

    def say(self, *messages: m.FromWorker) -> None:
        for message in messages:
            self.now += 1000
            self.gateway.on_message(0, message, self.now)
        self.take()

    def take(self) -> None:
        for action in self.gateway.take_actions():
            message = getattr(action, "message", None)
            if isinstance(message, m.Submit):
                self.sent.append(message.request)

    def submit(self, id: int) -> None:
        tokens = array("I", [(id * 7919 + i * 31) % 50_000 for i in range(PROMPT)])
        self.gateway.submit(Ask(tokens, 64), self.now)
        self.take()


def gateway_costs(waiting: int, rounds: int) -> dict[str, float]:
    """Median seconds of a token message of a request in decode, of a first token (after which somebody else
    may be sent), of a submit, and of an end with the next dispatch."""
    gate = Gate(waiting)
    times: dict[str, list[float]] = {"first": [], "token": [], "submit": [], "end": []}

    def timed(what: str, function: Callable[..., None], *arguments: Any) -> None:
        began = time.thread_time()
        function(*arguments)
        times[what].append(time.thread_time() - began)

    with no_collection():
        for number in range(rounds):
            runner = gate.sent[number]
            timed("first", gate.say, m.TokensOut(runner.id, 1, (7,)))
            timed("token", gate.say, m.TokensOut(runner.id, 1, (7,)))
            timed("submit", gate.submit, 1_000_000 + number)
            truth = WorkerTruth(first_scheduled=1, prompt=len(runner.tokens), generated=2)
            timed("end", gate.say, m.Done(runner.id, 1, Finish.LENGTH, truth))
    return {what: statistics.median(values) for what, values in times.items()}


def message_calls(waiting: int, what: str) -> int:
    """Calls that a ``token`` or an ``end`` makes at the gateway while so many wait there."""
    gate = Gate(waiting, running=8)
    for runner in gate.sent[:2]:  # the first of its kind may set something up
        truth = WorkerTruth(first_scheduled=1, prompt=len(runner.tokens), generated=2)
        end = m.Done(runner.id, 1, Finish.LENGTH, truth)
        message = m.TokensOut(runner.id, 1, (7,)) if what == "token" else end
        count = calls(lambda message=message: gate.say(message))  # type: ignore[misc]
    return count
