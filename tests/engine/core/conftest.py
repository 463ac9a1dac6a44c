"""One worker with the simulated runner, stepped by hand, every invariant checked at every step."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from engine import messages as m
from engine.config import CacheConfig, EngineConfig, MemoryConfig, SchedulerConfig
from engine.kv.blocks import block_digests, namespace_root
from engine.request import Finish, Request, Sampling
from engine.runner.base import StepPlan
from engine.runner.simulated import SimulatedRunner
from engine.worker import Worker


class Bench:
    """Drives a worker in its own virtual time and keeps everything that it said."""

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int = 4,
        budget: int = 64,
        chunk: int | None = None,
        max_running: int = 64,
        eviction: str = "lru",
        ttl: float | None = None,
        cache: bool = True,
        preemption: str = "recompute",
        policy: str = "lifetime",
        digest_bits: int = 128,
        **scheduler: Any,
    ) -> None:
        base = EngineConfig()
        self.config = replace(
            base,
            memory=MemoryConfig(kv_blocks=blocks, block_size=block_size),
            scheduler=SchedulerConfig(
                max_step_tokens=budget, max_running=max_running, prefill_chunk=chunk or budget, **scheduler
            ),
            admission=replace(base.admission, policy=policy),
            cache=CacheConfig(enabled=cache, eviction=eviction, ttl=ttl),
            preemption=preemption,  # type: ignore[arg-type]
        )
        self.runner = SimulatedRunner(self.config.cost)
        self.runner.allocate(blocks, block_size)
        self.worker = Worker(
            self.config,
            0,
            "w0",
            eos_ids=self.runner.eos_ids,
            max_positions=self.runner.max_positions,
            vocabulary=self.runner.vocabulary,
            digest_bits=digest_bits,
        )
        self.runner.witness = self.worker.tokens_of
        self.block_size = block_size
        self.now = 0
        self.next_id = 0
        self.said: list[m.FromWorker] = []
        self.done: dict[int, m.Done] = {}
        self.refused: dict[int, m.Refused] = {}
        self.output: dict[int, list[int]] = {}
        self.steps_of: dict[int, list[int]] = {}
        self.submitted: set[int] = set()
        self.digests: set[bytes] = set()
        self.flying: StepPlan | None = None

    # -- what a gateway would do --------------------------------------------------------------

    def root(self, tenant: str = "a", salt: str | None = None, adapter: str | None = None) -> bytes:
        return namespace_root(
            model="m", block_size=self.block_size, isolation_key=tenant, salt=salt, adapter=adapter
        )

    def request(self, tokens: Any, out_max: int = 4, **more: Any) -> Request:
        ids = array("I", tokens if not isinstance(tokens, int) else prompt(tokens, seed=self.next_id))
        root = more.pop("root", self.root())
        self.next_id += 1
        return Request(
            id=more.pop("id", self.next_id),
            tokens=ids,
            root=root,
            digests=block_digests(root, ids, self.block_size),
            out_max=out_max,
            sampling=Sampling(ignore_eos=True),
            **more,
        )

    def submit(self, tokens: Any, out_max: int = 4, **more: Any) -> int:
        request = self.request(tokens, out_max, **more)
        self.send(m.Submit(request))
        self.submitted.add(request.id)
        return request.id

    def send(self, message: m.ToWorker) -> None:
        self.worker.receive(message, self.now)
        self.collect()

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED) -> None:
        self.send(m.Cancel(id, reason))

    # -- what a driver would do ---------------------------------------------------------------

    def begin(self) -> StepPlan | None:
        self.flying = self.worker.plan(self.now)
        self.collect()
        return self.flying

    def end(self) -> None:
        assert self.flying is not None
        plan, self.flying = self.flying, None
        result = self.runner.execute(plan)
        assert result.duration is not None
        self.now += round(result.duration * 1e9)
        for row in plan.rows:
            self.steps_of.setdefault(row.id, []).append(plan.step)
        self.worker.commit(plan, result, self.now)
        self.collect()

    def step(self) -> StepPlan | None:
        plan = self.begin()
        if plan is not None:
            self.end()
        return plan

    def run(self, limit: int = 2000) -> None:
        """Step until nothing is left to do, jumping over waits."""
        for _ in range(limit):
            if self.worker.idle:
                return
            if self.step() is None and not self.worker.idle:
                wakeup = self.worker.next_wakeup
                assert wakeup is not None, "the worker is stuck: nothing runs and nothing will wake it"
                self.now = max(self.now, wakeup)
        raise AssertionError(f"not idle after {limit} steps")

    def serve(self, tokens: Any, out_max: int = 4, **more: Any) -> m.Done:
        """Submit one request and run until idle."""
        id = self.submit(tokens, out_max, **more)
        self.run()
        return self.done[id]

    # -- what must hold -----------------------------------------------------------------------

    def collect(self) -> None:
        for message in self.worker.take_outbox():
            self.said.append(message)
            match message:
                case m.Done(id=id):
                    assert id not in self.done, "two terminal events"
                    assert id not in self.refused
                    self.done[id] = message
                case m.Refused(id=id):
                    self.refused[id] = message
                case m.TokensOut(id=id, ids=ids):
                    assert id not in self.done, "tokens after the terminal event"
                    self.output.setdefault(id, []).extend(ids)
                case m.KvEvents():
                    self._mirror(message)
        if self.worker.pool.size <= 256:  # an audit reads the whole pool
            assert self.digests == {content.digest for content in self.worker.cache.content.values()}
            self.healthy()

    def _mirror(self, batch: m.KvEvents) -> None:
        """An event subscriber: what it believes must equal what is resident."""
        for event in batch.events:
            if event.kind == "cleared":
                assert batch.seq == 1
                self.digests.clear()
            elif event.kind == "stored":
                assert not self.digests & set(event.digests), "stored twice"
                assert event.parent is None or event.parent in self.digests
                self.digests |= set(event.digests)
            else:
                assert self.digests >= set(event.digests), "removed what was not stored"
                self.digests -= set(event.digests)

    def healthy(self) -> dict[str, Any]:
        audit: dict[str, Any] = self.worker.audit()
        assert audit["violations"] == []
        return audit

    def drained(self) -> None:
        """Nothing is held, everybody got exactly one terminal event, gauges say the same."""
        audit = self.healthy()
        for count in ("referenced", "waiting", "running", "reserved", "fenced"):
            assert audit[count] == 0, count
        assert audit["free"] == audit["blocks"]
        assert self.submitted == self.done.keys() | self.refused.keys()
        metrics = self.worker.heartbeat(self.now).metrics
        assert metrics["headrace_engine_requests_running"] == [[[], 0]]
        assert metrics["headrace_engine_kv_reserved_blocks"] == [[[], 0]]
        assert metrics["headrace_engine_kv_usage_ratio"] == [[[], 0.0]]
        assert sum(value for _, value in metrics["headrace_engine_requests_waiting"]) == 0
        assert sum(value for _, value in metrics["headrace_engine_kv_blocks"]) == audit["blocks"]

    def count(self, name: str, **labels: str) -> float:
        return self.worker.meter.get(f"headrace_engine_{name}", **labels)

    def told(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Distinct-looking token ids below 4096."""
    return [(seed * 977 + index * 31 + index * index * 7) % 4096 for index in range(length)]


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def tokens() -> Any:
    return prompt
