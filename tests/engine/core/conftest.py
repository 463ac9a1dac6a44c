"""One worker with the simulated runner, stepped by hand, every invariant checked at every step."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from engine import messages as m
from engine.config import CacheConfig, DiskConfig, EngineConfig, MemoryConfig, SchedulerConfig, TiersConfig
from engine.kv.blocks import block_digests, namespace_root
from engine.kv.places import Copy
from engine.metrics import METRICS
from engine.request import Finish, Request, Sampling
from engine.runner.base import StepPlan
from engine.runner.simulated import SimulatedRunner
from engine.worker import Worker
from tests.engine.core.oracle import Leases, Teacher
from tests.engine.said import apart

TEACHERS: dict[int, Teacher] = {}
"""One for all benches of a session, by the range of ids that the runner draws: it remembers texts."""
KV_BYTES = 1
"""Per token."""


def _tiers(host: int, disk: int, swap: int, moves: int, latency: float, block_bytes: int) -> TiersConfig:
    return TiersConfig(
        host=host * block_bytes or None,
        host_latency=latency,
        disk=DiskConfig("/nowhere", disk * block_bytes) if disk else None,
        swap=swap * block_bytes,
        in_flight=moves * block_bytes,
    )


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
        priority_preemption: bool = False,
        max_adapters: int = 8,
        drawn: int = 4096,
        host: int = 0,
        disk: int = 0,
        swap: int = 0,
        moves: int = 64,
        latency: float = 0.0002,
        copied_first: bool = False,
        **scheduler: Any,
    ) -> None:
        """``host``, ``disk`` and ``swap`` are sizes in blocks, ``moves`` the most in one step, and
        ``latency`` (s) what moving to or from the host takes at least."""
        base = EngineConfig()
        self.config = replace(
            base,
            memory=MemoryConfig(kv_blocks=blocks, block_size=block_size),
            scheduler=SchedulerConfig(
                max_step_tokens=budget, max_running=max_running, prefill_chunk=chunk or budget, **scheduler
            ),
            admission=replace(base.admission, policy=policy),
            cache=CacheConfig(
                enabled=cache,
                eviction=eviction,
                ttl=ttl,
                copied_first=copied_first,
                tiers=_tiers(host, disk, swap, moves, latency, KV_BYTES * block_size),
            ),
            preemption=preemption,  # type: ignore[arg-type]
            priority_preemption=priority_preemption,
            max_adapters=max_adapters,
        )
        self.runner = SimulatedRunner(self.config.cost, drawn=drawn, tiers=self.config.cache.tiers)
        self.worker = Worker(
            self.config,
            0,
            "w0",
            eos_ids=self.runner.eos_ids,
            max_positions=self.runner.max_positions,
            vocabulary=self.runner.vocabulary,
            kv_bytes_per_token=KV_BYTES,
            digest_bits=digest_bits,
        )
        self.runner.allocate(blocks, block_size, self.worker.cache.below.sizes.slots)
        self.leases = Leases(self.worker.pool, block_size)
        self.runner.witness = self.text_of
        self.runner.namespace = lambda id: self.requests[id].root
        self.block_size = block_size
        self.now = 0
        self.next_id = 0
        self.said: list[m.FromWorker] = []
        self.done: dict[int, m.Done] = {}
        self.refused: dict[int, m.Refused] = {}
        self.requests: dict[int, Request] = {}
        self.output: dict[int, list[int]] = {}
        """What each request's first choice has said; ``choices`` has them all by (id, choice)."""
        self.choices: dict[tuple[int, int], list[int]] = {}
        self.ended: dict[tuple[int, int], Finish] = {}
        """Choices that ended before the last one of their request did."""
        self._texts: dict[tuple[int, int], array[int]] = {}
        self.teacher = TEACHERS.setdefault(drawn, Teacher(drawn))
        self.steps_of: dict[int, list[int]] = {}
        self.submitted: set[int] = set()
        self.digests: set[bytes] = set()
        self.below: dict[str, set[bytes]] = {"host": set(), "disk": set()}
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
            sampling=more.pop("sampling", Sampling(ignore_eos=True)),
            **more,
        )

    def submit(self, tokens: Any, out_max: int = 4, **more: Any) -> int:
        request = self.request(tokens, out_max, **more)
        self.send(m.Submit(request))
        self.submitted.add(request.id)
        return request.id

    def send(self, message: m.ToWorker) -> None:
        if isinstance(message, m.Submit) and message.request.id not in self.worker.roster.active:
            self.requests[message.request.id] = message.request
        self.worker.receive(message, self.now)
        self.collect()

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED) -> None:
        self.send(m.Cancel(id, reason))

    # -- what a driver would do ---------------------------------------------------------------

    def begin(self) -> StepPlan | None:
        self.flying = self.worker.plan(self.now)
        if self.flying is not None:
            self.leases.departs(self.flying)
        self.collect()
        return self.flying

    def end(self, failed: tuple[int, ...] = ()) -> None:
        """The step is executed and committed. The rows named as ``failed`` come out as no numbers."""
        plan = self._land()
        result = self.runner.execute(plan)
        assert result.duration is not None
        self.now += round(result.duration * 1e9)
        for row in plan.rows:
            self.steps_of.setdefault(row.id, []).append(plan.step)
        failed = (*result.failed, *failed)
        self.leases.spoil(
            (plan.rows[index] for index in failed), (plan.transfers[index] for index in result.lost)
        )
        self.worker.commit(plan, replace(result, failed=failed), self.now)
        self.collect()

    def fail(self, error: str = "boom", executed: bool = True) -> None:
        """The step raises, before or after it has written anything."""
        plan = self._land()
        if executed:
            self.runner.execute(plan)
        self.leases.spoil(plan.rows, plan.transfers)
        self.worker.step_failed(plan, error, self.now)
        self.collect()

    def _land(self) -> StepPlan:
        plan, self.flying = self.flying, None
        assert plan is not None
        self.leases.lands(plan)
        return plan

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
        for message in apart(self.worker.take_outbox()):
            self.said.append(message)
            match message:
                case m.Done(id=id):
                    assert id not in self.done, "two terminal events"
                    assert id not in self.refused
                    self.done[id] = message
                case m.Refused(id=id):
                    self.refused[id] = message
                case m.TokensOut(id=id, ids=ids, choice=choice):
                    assert id not in self.done, "tokens after the terminal event"
                    assert (id, choice) not in self.ended, "tokens after this choice had ended"
                    self.choices.setdefault((id, choice), []).extend(ids)
                    self.text_of(id, choice).extend(ids)
                    if choice == 0:
                        self.output[id] = self.choices[id, 0]
                    if message.finish is not None:
                        self.ended[id, choice] = message.finish
                case m.KvEvents():
                    self._mirror(message)
        if self.worker.pool.size <= 256:  # an audit reads the whole pool
            self._mirrored()
            self.healthy()

    def _mirror(self, batch: m.KvEvents) -> None:
        """An event subscriber: what it believes must equal what is resident, tier by tier."""
        for event in batch.events:
            known = self.digests if event.tier == "device" else self.below[event.tier]
            if event.kind == "cleared":
                assert batch.seq == 1
                for tier in (self.digests, *self.below.values()):
                    tier.clear()
            elif event.kind == "stored":
                assert not known & set(event.digests), "stored twice"
                if event.tier == "device":
                    assert event.parent is None or event.parent in known, "stored without its parent"
                known |= set(event.digests)
            else:
                assert known >= set(event.digests), "removed what was not stored"
                known -= set(event.digests)

    def _mirrored(self) -> None:
        """The events say what is true."""
        cache = self.worker.cache
        resident = {content.digest for content in cache.content.values()}
        assert self.digests == resident, "events and digests differ"
        entries = cache.below.entries.items()
        for tier, known in self.below.items():
            there = {digest for digest, entry in entries if getattr(entry, tier) is Copy.THERE}
            assert known == there, f"events and {tier} differ"

    def text_of(self, id: int, choice: int = 0) -> array[int]:
        """Prompt and output so far of one choice, as an outsider knows them."""
        if (id, choice) not in self._texts:
            self._texts[id, choice] = self.requests[id].tokens[:]
        return self._texts[id, choice]

    def taught(self) -> None:
        """Every text is what its request alone gives, as far as it came."""
        for (id, choice), said in self.choices.items():
            assert said == self.teacher.text(self.requests[id], choice, len(said)), (id, choice)

    def healthy(self) -> dict[str, Any]:
        audit: dict[str, Any] = self.worker.audit()
        assert not audit["violations"], audit["violations"]
        return audit

    def drained(self) -> None:
        """Nothing is held, everybody got exactly one terminal event, gauges say the same."""
        audit = self.healthy()
        for count in ("referenced", "waiting", "running", "reserved", "fenced"):
            assert audit[count] == 0, count
        assert audit["free"] == audit["blocks"]
        assert self.submitted == self.done.keys() | self.refused.keys(), "submitted and never ended"
        metrics = self.worker.heartbeat(self.now).metrics
        assert metrics["headrace_engine_requests_running"] == [[[], 0]]
        assert metrics["headrace_engine_kv_reserved_blocks"] == [[[], 0]]
        assert metrics["headrace_engine_kv_usage_ratio"] == [[[], 0.0]]
        for name, rows in metrics.items():
            for labels, _ in rows:
                for value, known in zip(labels, METRICS[name].labels.values(), strict=True):
                    assert not known or value in known, f"{name} has a label value that its table lacks"
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
