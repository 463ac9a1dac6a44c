"""What our own Python costs: scheduling and bookkeeping of a step whose model takes no time.

    python -m benchmarks.core [--steps 200] [--quick]

Curves of the time per step over running requests, pool size and queue length, the gateway's time per message
over its queue, and the prefix match of a long prompt. Times are CPU time of this thread. Prints tables, then
one JSON line. Run it on an idle machine all the same: the load average stands in the line, and what an empty
Python call took (``call_ns``). ``calls`` are Python and C calls of a step, which no other process can change.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from array import array
from dataclasses import dataclass

from benchmarks.gate import gateway_costs
from benchmarks.timing import call_ns, calls, machine, no_collection, us
from engine import messages as m
from engine.config import EngineConfig, MemoryConfig, SchedulerConfig
from engine.kv.blocks import Content, block_digests, blocks_for, namespace_root
from engine.request import Request, Sampling
from engine.runner.base import StepPlan, StepResult
from engine.worker import Worker

BLOCK = 16
CONTEXT = 100
RUNNING = (1, 16, 64, 256, 1024)
POOLS = (1_000, 10_000, 100_000, 1_000_000)
QUEUES = (0, 100, 1_000, 10_000)
LONG_PROMPT = 100_000
STEP_NS = 20_000_000
ROOT = namespace_root(model="null", block_size=BLOCK, isolation_key="t")
TARGETS = {64: 100e-6, 1024: 1e-3}
"""Running requests -> the most seconds that a step may cost (issue "What must hold")."""


def null_runner(plan: StepPlan) -> StepResult:
    """Computes nothing; each row that draws says token 7."""
    return StepResult(tuple(7 if row.samples else None for row in plan.rows))


def request(id: int, length: int, out_max: int) -> Request:
    tokens = array("I", [(id * 7919 + i * 31) % 50_000 for i in range(length)])
    digests = block_digests(ROOT, tokens, BLOCK)
    return Request(id, tokens, ROOT, digests, out_max, sampling=Sampling(ignore_eos=True), arrived=1)


class Loop:
    """One worker with a batch that decodes for ever, as far as ``out_max`` goes."""

    def __init__(self, running: int, blocks: int, out_max: int, full: bool = False) -> None:
        config = EngineConfig(
            memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
            scheduler=SchedulerConfig(max_step_tokens=max(512, 2 * running), max_running=running),
        )
        self.worker = Worker(config, 0, "w", eos_ids=frozenset(), max_positions=1 << 30, vocabulary=1 << 30)
        self.now = 1
        if full:
            self._fill_cache(blocks)
        for id in range(1, running + 1):
            self.worker.receive(m.Submit(request(id, CONTEXT, out_max)), self.now)
            self.step()
        assert self.worker.load.running == running

    def step(self) -> StepPlan | None:
        self.now += STEP_NS
        plan = self.worker.plan(self.now)
        if plan is not None:
            self.now += STEP_NS
            self.worker.commit(plan, null_runner(plan), self.now)
        self.worker.take_outbox()
        return plan

    def queue(self, waiting: int) -> None:
        """So many wait behind the full batch, as no gateway would let them."""
        self.worker._backlog_full = lambda sequence: False  # type: ignore[method-assign]
        for id in range(1_000_000, 1_000_000 + waiting):
            self.worker.receive(m.Submit(request(id, CONTEXT, 16)), self.now)
        self.worker.take_outbox()

    def _fill_cache(self, blocks: int) -> None:
        """Every block of the pool is cached: what is allocated from now on must be taken from the cache."""
        chain = 512
        for first in range(0, blocks, chain):
            count = min(chain, blocks - first)
            ids = self.worker.pool.allocate(count, self.now) or []
            parent = first.to_bytes(8, "little")
            for index, block in enumerate(ids):
                digest = (first + index).to_bytes(16, "big")
                self.worker.cache.publish(block, Content(digest, parent, b"", parent), digest)
                parent = digest
            self.worker.pool.release(ids, self.now)
        self.worker.take_outbox()


@dataclass(frozen=True)
class Cost:
    """Seconds per step: median of planning, of committing, of both; ``p99`` of both; calls of one step."""

    plan: float
    commit: float
    both: float
    p99: float
    calls: int


def measure(loop: Loop, steps: int) -> Cost:
    """Time ``steps`` steps after a few that do not count, then count the calls of one more."""
    for _ in range(5):
        loop.step()
    plans, commits = [], []
    with no_collection():
        for _ in range(steps):
            loop.now += STEP_NS
            began = time.thread_time()
            plan = loop.worker.plan(loop.now)
            planned = time.thread_time()
            assert plan is not None
            result = null_runner(plan)
            loop.now += STEP_NS
            computed = time.thread_time()
            loop.worker.commit(plan, result, loop.now)
            loop.worker.take_outbox()
            plans.append(planned - began)
            commits.append(time.thread_time() - computed)
    both = sorted(p + c for p, c in zip(plans, commits, strict=True))
    p99 = both[min(len(both) - 1, int(0.99 * len(both)))]
    median = statistics.median
    return Cost(median(plans), median(commits), median(both), p99, calls(loop.step))


def over_running(steps: int, most: int = 1024) -> dict[int, Cost]:
    out_max = steps + 1500
    pool = {n: n * blocks_for(CONTEXT + out_max, BLOCK) + n + 64 for n in RUNNING if n <= most}
    return {n: measure(Loop(n, int(blocks * 1.02), out_max), steps) for n, blocks in pool.items()}


def over_pools(steps: int, most: int = 1_000_000) -> dict[int, Cost]:
    """64 running in a pool that is full of cached blocks; fewer where it is too small for them."""
    out_max = steps + 100
    running = min(64, int(POOLS[0] * 0.95) // blocks_for(CONTEXT + out_max, BLOCK))
    return {n: measure(Loop(running, n, out_max, full=True), steps) for n in POOLS if n <= most}


def over_queues(steps: int, most: int = 10_000) -> dict[int, Cost]:
    """64 running, others waiting behind them in the worker's own backlog."""
    costs = {}
    for n in (n for n in QUEUES if n <= most):
        loop = Loop(64, 20_000, steps + 200)
        loop.queue(n)
        costs[n] = measure(loop, steps)
    return costs


def prefix_match(length: int, repeat: int) -> dict[str, float]:
    """Median seconds of digesting a long prompt and of matching it against a cache that holds all of it."""
    loop = Loop(1, blocks_for(length, BLOCK) + 1000, 64)
    long = request(5, length, 1)
    worker = loop.worker
    ids = worker.pool.allocate(blocks_for(length, BLOCK), 1)
    assert ids is not None
    parent = ROOT
    for index, digest in enumerate(long.digests):
        block = long.tokens[index * BLOCK : (index + 1) * BLOCK].tobytes()
        worker.cache.publish(ids[index], Content(digest, parent, block, ROOT), digest)
        parent = digest
    worker.pool.release(ids, 1)
    matches, digests = [], []
    with no_collection():
        for _ in range(repeat):
            began = time.thread_time()
            block_digests(ROOT, long.tokens, BLOCK)
            digested = time.thread_time()
            match = worker.cache.match(ROOT, list(long.digests), long.tokens)
            matches.append(time.thread_time() - digested)
            digests.append(digested - began)
    assert len(match.blocks) == (length - 1) // BLOCK
    return {"match": statistics.median(matches), "digests": statistics.median(digests)}


def table(title: str, costs: dict[int, Cost]) -> None:
    print(f"\n{title:>18} {'plan':>10} {'commit':>10} {'step':>10} {'p99':>10} {'calls':>8}")
    for n, cost in costs.items():
        times = " ".join(f"{us(t):>10}" for t in (cost.plan, cost.commit, cost.both, cost.p99))
        print(f"{n:>18,} {times} {cost.calls:>8,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps that are timed in each place")
    parser.add_argument("--quick", action="store_true", help="leave out the largest pool and queue")
    asked = parser.parse_args()
    load, reference = os.getloadavg()[0], call_ns()
    running = over_running(asked.steps)
    table("running", running)
    pools = over_pools(asked.steps, 100_000 if asked.quick else 1_000_000)
    table("pool blocks", pools)
    queues = over_queues(asked.steps, 1_000 if asked.quick else 10_000)
    table("worker's backlog", queues)
    kinds = ("first", "token", "submit", "end")
    print(f"\n{'gateway queue':>18} " + " ".join(f"{kind:>10}" for kind in kinds))
    gateway = {n: gateway_costs(n, asked.steps) for n in QUEUES if not asked.quick or n <= 1_000}
    for n, times in gateway.items():
        print(f"{n:>18,} " + " ".join(f"{us(times[what]):>10}" for what in kinds))
    match = prefix_match(LONG_PROMPT, 21)
    print(f"\nprompt of {LONG_PROMPT:,} tokens: match {us(match['match'])}, digests {us(match['digests'])}")
    print(
        json.dumps(
            {
                **machine(),
                "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
                "call_ns": [round(reference, 1), round(call_ns(), 1)],
                "steps": asked.steps,
                "step_us": {n: round(cost.both * 1e6, 1) for n, cost in running.items()},
                "step_calls": {n: cost.calls for n, cost in running.items()},
                "target_us": {n: target * 1e6 for n, target in TARGETS.items()},
                "meets": {n: running[n].both <= target for n, target in TARGETS.items()},
                "pool_us": {n: round(cost.both * 1e6, 1) for n, cost in pools.items()},
                "pool_calls": {n: cost.calls for n, cost in pools.items()},
                "queue_us": {n: round(cost.both * 1e6, 1) for n, cost in queues.items()},
                "queue_calls": {n: cost.calls for n, cost in queues.items()},
                "gateway_us": {
                    n: {what: round(t * 1e6, 1) for what, t in times.items()} for n, times in gateway.items()
                },
                "match_ms": round(match["match"] * 1e3, 3),
                "digests_ms": round(match["digests"] * 1e3, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
