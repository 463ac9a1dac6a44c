"""Mixes of policies and features for a soak, and the requests that it sends."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import (
    AdmissionConfig,
    CacheConfig,
    ClassConfig,
    CostModel,
    DiskConfig,
    EngineConfig,
    MemoryConfig,
    QueueConfig,
    RouterConfig,
    SchedulerConfig,
    TenantConfig,
    TiersConfig,
)
from engine.fleet.backend import Ask
from engine.kv.eviction import EVICTIONS
from engine.request import Sampling
from engine.sched.admission import ADMISSIONS
from engine.sched.orders import ORDERS

FACTORS: dict[str, tuple[Any, ...]] = {
    "admission": tuple(ADMISSIONS),
    "order": tuple(ORDERS),
    "eviction": tuple(EVICTIONS),
    "preemption": ("recompute", "swap", "none"),
    "tiers": ("device", "host", "disk"),
    "n": (1, 3),
    "adapters": (0, 2),
}
LIVES = {"short": 0.5, "long": 5.0}
BLOCK = 8


@dataclass(frozen=True)
class Mix:
    """One choice of policies and features."""

    admission: str = "prompt"
    order: str = "fcfs"
    eviction: str = "lru"
    preemption: str = "recompute"
    tiers: str = "disk"
    n: int = 3
    adapters: int = 2

    @property
    def possible(self) -> bool:
        """``none`` needs lifetime (E26)."""
        return self.preemption != "none" or self.admission == "lifetime"

    def __str__(self) -> str:
        values = (self.admission, self.order, self.eviction, self.preemption, self.tiers)
        return "-".join((*values, f"n{self.n}", f"a{self.adapters}"))


def pairwise() -> list[Mix]:
    """Few mixes in which every two values of different factors meet, where they can (greedy)."""
    names = list(FACTORS)
    every = [Mix(**dict(zip(names, values, strict=True))) for values in itertools.product(*FACTORS.values())]
    every = [mix for mix in every if mix.possible]
    random.Random(0).shuffle(every)
    todo = {pair for mix in every for pair in _pairs(mix)}
    chosen = []
    while todo:
        best = max(every, key=lambda mix: len(todo & _pairs(mix)))
        chosen.append(best)
        todo -= _pairs(best)
    return chosen


def _pairs(mix: Mix) -> set[tuple[tuple[str, Any], ...]]:
    values = [(name, getattr(mix, name)) for name in FACTORS]
    return set(itertools.combinations(values, 2))


def config(mix: Mix, folder: Path, blocks: int = 60) -> EngineConfig:
    """A pool that is too small, queues that are long enough, three classes and tenants of unequal weight."""
    host = None if mix.tiers == "device" else 1 << 20
    disk = DiskConfig(str(folder / "disk"), 1 << 20) if mix.tiers == "disk" else None
    return EngineConfig(
        model="simulated",
        memory=MemoryConfig(kv_blocks=blocks, block_size=BLOCK),
        scheduler=SchedulerConfig(max_step_tokens=96, prefill_chunk=48),
        admission=AdmissionConfig(policy=mix.admission, over_length="clamp"),  # type: ignore[arg-type]
        preemption=mix.preemption,  # type: ignore[arg-type]
        priority_preemption=mix.preemption != "none",
        queue=QueueConfig(max_requests=10_000, max_tokens=10_000_000, order=mix.order),  # type: ignore[arg-type]
        router=RouterConfig(max_dispatched=24),
        cache=CacheConfig(
            eviction=mix.eviction,  # type: ignore[arg-type]
            ttl=2.0,
            retention=LIVES,
            copied_first=mix.tiers != "device",
            tiers=TiersConfig(host=host, disk=disk, swap=4 << 20 if mix.preemption == "swap" else 0),
        ),
        cost=CostModel(a=0.01, b=0.0001, c=0.0005),
        classes={
            "urgent": ClassConfig(rank=0, default_output=8, retention="long"),
            "default": ClassConfig(rank=1, default_output=12),
            "batch": ClassConfig(rank=2, default_output=16),
        },
        tenants={"t0": TenantConfig(weight=4.0), "t1": TenantConfig(max_active=4)},
        adapters={f"ad{i}": f"/nowhere/ad{i}" for i in range(mix.adapters)},
        max_adapters=1,
    )


def asks(mix: Mix, rng: random.Random) -> Iterator[Ask]:
    """Random requests for ever: shared beginnings, own ends, all sorts of limits."""
    for number in itertools.count():
        family, own = rng.randrange(12), int(rng.expovariate(1 / 12))
        shared = array("I", range(family * 1000, family * 1000 + int(rng.expovariate(1 / 60))))
        tokens = shared + array("I", [50_000 + (number * 131 + i) % 10_000 for i in range(own + 1)])
        yield Ask(
            tokens=tokens[:300],
            max_tokens=rng.choice((None, 1, rng.randint(1, 12), rng.randint(1, 12), rng.randint(1, 40))),
            sampling=Sampling(temperature=rng.choice((0.0, 0.8)), seed=number, ignore_eos=True),
            class_=rng.choice(("urgent", "default", "default", "batch")),
            tenant=f"t{rng.randrange(4)}",
            session=f"s{rng.randrange(200)}",
            client_id=f"c{number}",
            cache_salt=rng.choice((None, None, None, "salt")),
            deadline_s=rng.choice((None,) * 8 + (0.05, 0.5, 3.0)),
            n=rng.randint(1, mix.n),
            adapter=rng.choice((None, *(f"ad{i}" for i in range(mix.adapters)))),
            retention=rng.choice((None, None, *LIVES)),
        )
