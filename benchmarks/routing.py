"""What it costs the gateway to choose a worker: 64 with 100,000 blocks each, long prompts (FLEET F33).

    python -m benchmarks.routing [--workers 64] [--blocks 100000] [--prompt 4000] [--below 0.3]

``search``: how far every worker's tiers reach, digests given; ``choice``: with it what that is worth and the
rank of all workers; ``bound``: with that the reservation and what is written down of each block. Of every
chain ``--below`` of the blocks lie in lower tiers. CPU time of this thread. Prints a table, then one JSON
line; the bytes of a key are those of the whole index.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from array import array

from benchmarks.timing import call_ns, machine, no_collection, us
from engine import messages as m
from engine.config import CacheConfig, ClassConfig, EngineConfig, MemoryConfig, QueueConfig, TiersConfig
from engine.fleet.backend import Ask
from engine.fleet.door import Identity
from engine.fleet.gateway import Gateway
from engine.fleet.health import WorkerHealth
from engine.fleet.run import Run
from engine.kv.blocks import block_digests
from engine.telemetry import Meter

BLOCK = 16
BLOCK_BYTES = 46_080 * BLOCK
SHARED_BY = 16
"""So many workers hold each chain."""
P99_TARGET, RATE_TARGET = 1e-3, 5_000


class Fleet:
    """A gateway that has heard from all its workers what they hold."""

    def __init__(self, workers: int, blocks: int, prompt: int, below: float, policy: str = "cost") -> None:
        config = EngineConfig(
            workers=workers,
            memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
            queue=QueueConfig(max_requests=1_000_000, max_tokens=1 << 40),
            cache=CacheConfig(tiers=TiersConfig(host=blocks * BLOCK_BYTES)),
            classes={"default": ClassConfig(default_output=64)},
        )
        self.gateway = Gateway(config, Identity("null"), Meter(config, "router", "fleet"))
        self.now, self.prompt = 1, prompt
        self.rng = random.Random(7)
        for worker in range(workers):
            life = f"w{worker}"
            hello = m.Hello(worker, life, 1, blocks, BLOCK, blocks * BLOCK, BLOCK_BYTES)
            self.gateway.on_message(worker, hello, self.now)
            self.gateway.on_message(worker, m.Heartbeat(life, 1, 0, None, "ready", m.Load()), self.now)
        self.prompts = [self._tokens(chain) for chain in range(workers * blocks // prompt // SHARED_BY)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for chain, tokens in enumerate(self.prompts):
            digests = block_digests(self._root(), tokens, BLOCK)
            for copy in range(SHARED_BY):
                self._store((chain * SHARED_BY + copy) % workers, digests, below)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        self.keys = len(self.gateway.dispatcher.events)
        self.key_bytes = grown / self.keys

    def _root(self) -> bytes:
        """The namespace that a request of nobody in particular has."""
        door = self.gateway.door
        run = door.admit(Ask(array("I", range(64)), 1), self.now, self.gateway.dispatcher, self._healths())
        self.gateway.dispatcher.queue.remove(run.id)
        return run.request.root

    def _healths(self) -> list[WorkerHealth]:
        return list(self.gateway.health.values())

    def _tokens(self, chain: int) -> array[int]:
        return array("I", [(chain * 7919 + i * 31) % 50_000 for i in range(self.prompt * BLOCK)])

    def _store(self, worker: int, digests: tuple[bytes, ...], below: float) -> None:
        """A worker's copy ends somewhere, and its last part is in the host alone."""
        held = digests[: self.rng.randrange(len(digests) // 2, len(digests) + 1)]
        cut = round(len(held) * (1 - below))
        events = [m.KvEvent("stored", held[:cut])]
        if held[cut:]:
            events.append(m.KvEvent("stored", held[cut:], held[cut - 1] if cut else None, tier="host"))
        index = self.gateway.dispatcher.events
        _, seq = index._epochs.get(worker, (1, 0))
        index.apply(worker, m.KvEvents(1, seq + 1, tuple(events)))

    def admit(self) -> Run:
        """A request that shares a prefix with one of the chains and goes on with something else."""
        tokens = array("I", self.rng.choice(self.prompts))
        at = self.rng.randrange(len(tokens) // 2, len(tokens))
        tokens[at:] = array("I", [self.rng.randrange(50_000) for _ in range(len(tokens) - at)])
        dispatcher = self.gateway.dispatcher
        return self.gateway.door.admit(Ask(tokens, 64), self.now, dispatcher, self._healths())


def measure(fleet: Fleet, decisions: int) -> dict[str, list[float]]:
    """CPU seconds of each decision, sorted."""
    dispatcher = fleet.gateway.dispatcher
    times: dict[str, list[float]] = {"search": [], "choice": [], "bound": []}
    with no_collection():
        for _ in range(decisions):
            run = fleet.admit()
            began = time.thread_time()
            dispatcher.events.all_runs(run.request.digests)
            times["search"].append(time.thread_time() - began)
            began = time.thread_time()
            choice = dispatcher.choose(run, fleet.now)
            chosen = time.thread_time()
            assert choice is not None
            dispatcher.bind(run, choice, fleet.now)
            times["choice"].append(chosen - began)
            times["bound"].append(time.thread_time() - began)
            dispatcher.unbind(run, fleet.now, failed=True)
            dispatcher.queue.remove(run.id)
    return {what: sorted(values) for what, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=100_000, help="that each worker holds")
    parser.add_argument("--prompt", type=int, default=4_000, help="blocks of a prompt")
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--below", type=float, default=0.3, help="share of the blocks in lower tiers")
    asked = parser.parse_args()
    fleet = Fleet(asked.workers, asked.blocks, asked.prompt, asked.below)
    times = measure(fleet, asked.decisions)
    print(f"{'':>8} {'median':>10} {'p99':>10} {'a second':>10}")
    row, meets = {}, {}
    for what, values in times.items():
        p50, p99 = values[len(values) // 2], values[int(0.99 * len(values))]
        rate = len(values) / sum(values)
        row[what] = {"p50_us": round(p50 * 1e6, 1), "p99_us": round(p99 * 1e6, 1), "per_s": round(rate)}
        meets[what] = {"p99": p99 < P99_TARGET, "rate": rate >= RATE_TARGET}
        print(f"{what:>8} {us(p50):>10} {us(p99):>10} {rate:>10,.0f}")
    print(f"{fleet.keys:,} keys of about {fleet.key_bytes:,.0f} bytes")
    print(
        json.dumps(
            {
                **machine(),
                "call_ns": round(call_ns(), 1),
                "workers": asked.workers,
                "blocks": asked.blocks,
                "prompt_blocks": asked.prompt,
                "below": asked.below,
                **row,
                "keys": fleet.keys,
                "key_bytes": round(fleet.key_bytes),
                "meets": meets,
            }
        )
    )


if __name__ == "__main__":
    main()
