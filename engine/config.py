"""The engine's whole configuration as frozen values.

A number's unit stands in its ``Annotated`` metadata as a plain string, so that whoever reads
configuration files can parse ``5m`` or ``2%`` without this package depending on a parser:

``"s"`` seconds · ``"share"`` 0..1 · ``"bytes"`` · ``"1/s"`` a rate. A trailing underscore in a field
name (``class_``) is not part of its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

Seconds = Annotated[float, "s"]
Share = Annotated[float, "share"]
Bytes = Annotated[int, "bytes"]

Admission = Literal["prompt", "estimate", "peak", "lifetime"]
Order = Literal["fcfs", "priority", "fair", "edf", "shortest_uncached"]
Preemption = Literal["recompute", "swap", "none"]
Routing = Literal["cost", "load_only", "round_robin"]
FootprintOf = Literal["tenant", "session"]
Eviction = Literal["lru", "ttl", "priority", "reuse", "footprint"]

POLICIES: Mapping[str, Mapping[str, str]] = {
    "admission.policy": {
        "prompt": "The whole prompt must fit; outputs may preempt.",
        "estimate": "Prompt and a share of the outputs, learned from preemptions.",
        "peak": "The most that prompts and expected outputs will ever hold together.",
        "lifetime": "Reserves prompt and whole answer: never preempts for memory (E23).",
    },
    "queue.order": {
        "fcfs": "In order of arrival.",
        "priority": "By class rank, which improves with waiting (E30).",
        "fair": "By class rank, then the tenant that was served least for its weight (VTC, E29).",
        "edf": "Earliest deadline; who can no longer end in time is dropped before its prefill.",
        "shortest_uncached": "Least uncached prompt, aged so that nobody waits for ever.",
    },
    "preemption": {
        "recompute": "The victim gives its blocks back and is computed again.",
        "swap": "To host memory and back where that is cheaper, else recompute.",
        "none": "Nobody loses blocks; needs admission lifetime.",
    },
    "router.policy": {
        "cost": "Least prefill still to do, cached prefixes credited (FLEET F21).",
        "load_only": "The same without the credit.",
        "round_robin": "One worker after the other.",
    },
    "cache.eviction": {
        "lru": "Longest since its last release first.",
        "ttl": "No promised life first, then least life left.",
        "priority": "Blocks of the least urgent class first.",
        "reuse": "Least predicted reuse times recomputation cost first.",
        "footprint": "Blocks of whom holds the most cache for its weight first.",
    },
}
"""The names that each policy key takes, for people. The code behind them is in ADMISSIONS, ORDERS,
ROUTINGS and EVICTIONS; a test holds all three lists together."""


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """How much KV memory a worker has: a number of blocks, or bytes to cut into blocks."""

    kv_blocks: int | None = None
    total: Bytes | None = None
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What one step may compute (ENGINE E20)."""

    max_step_tokens: int = 512
    max_running: int = 64
    prefill_chunk: int = 256
    min_prefill_share: Share = 0.25
    max_partial_prefills: int = 2
    long_prefill_cap: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Who is let into the pool (ENGINE E22, E23)."""

    policy: Admission = "lifetime"
    kv_headroom: Share = 0.01
    over_length: Literal["reject", "clamp"] = "reject"
    busy_ratio: Share = 0.8
    """KV use above which ``peak`` counts each request's whole out_max."""
    backfill: bool = True
    """Others may pass the one at the head that lacks capacity, if they do not delay it (E25)."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The gateway's queue: its bounds and its order (ENGINE E30, E32)."""

    max_requests: int = 200
    max_tokens: int = 200_000
    order: Order = "fair"
    aging: Seconds = 10.0
    """A request rises by one rank each time it has waited so long (E30)."""
    input_weight: float = 1.0
    output_weight: float = 2.0
    """What an uncached prompt token and an output token count for in fairness (E29)."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """How a worker is chosen (FLEET F21, F27)."""

    policy: Routing = "cost"
    decode_weight: float = 1.0
    max_dispatched: int = 64


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The slowest tier: a folder that this engine alone uses, emptied when it starts. Each worker has its own
    in it, of ``size`` bytes of K/V."""

    path: str
    size: Bytes
    bandwidth: Bytes = 1_000_000_000
    """Bytes/s that a transfer is expected to make at first, and in virtual time; measured ones correct it."""
    latency: Seconds = 0.001


@dataclass(frozen=True, slots=True)
class TiersConfig:
    """Where evicted blocks go (ENGINE E45), sizes by worker. Nothing set: they are gone."""

    host: Bytes | None = None
    host_bandwidth: Bytes = 8_000_000_000
    host_latency: Seconds = 0.0002
    disk: DiskConfig | None = None
    swap: Bytes = 0
    """Host memory for swapped requests (``preemption: swap``)."""
    in_flight: Bytes = 64_000_000
    """Bytes that one step moves between tiers at most, half of it each way. More goes down only where a step
    would overwrite what has not moved yet, and for ``swap``."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The prefix cache: which block goes first, and how long an unused one lives."""

    enabled: bool = True
    eviction: Eviction = "lru"
    ttl: Seconds | None = None
    retention: Mapping[str, Seconds] = field(default_factory=dict)
    """Named lives that a request may ask for by ``prompt_cache_retention`` (E15)."""
    copied_first: bool = False
    """Blocks with a copy in a slower tier go before all others."""
    reuse_horizon: Seconds = 60.0
    footprint_of: FootprintOf = "tenant"
    tiers: TiersConfig = TiersConfig()


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times of the simulated runner, in seconds (ENGINE E40).

    ``t_step = a + b*sum(chunk) + e*sum(chunk*(start + chunk/2)) + c*decode_rows + d*sum(contexts)``
    and, outside the step, ``t_request = g0 + g1*P``. ``sigma`` is the log-normal noise of a step.
    """

    a: Seconds = 0.012
    b: Seconds = 0.0012
    c: Seconds = 0.004
    d: Seconds = 2e-6
    e: Seconds = 6e-7
    g0: Seconds = 0.001
    g1: Seconds = 2e-6
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """One row of the class table (ENGINE E28). ``rank`` 0 is the most urgent."""

    rank: int = 0
    max_input: int | None = None
    max_output: int | None = None
    max_total: int | None = None
    default_output: int = 256
    deadline: Seconds | None = None
    retention: str | None = None
    """The longest of ``cache.retention`` that it may ask for, and the one that it gets unasked."""
    max_queued: int | None = None
    max_queued_tokens: int | None = None
    """Queue bounds of this class beside those of the whole queue (E32)."""


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """What one tenant may have (ENGINE E29); None = no limit of its own."""

    weight: float = 1.0
    max_queued: int | None = None
    max_active: int | None = None
    max_queued_tokens: int | None = None
    max_kv_tokens: int | None = None
    """Over the caps on what waits a request is refused; at the others it waits, and nothing else does."""
    class_: str | None = None
    """Its class; a request may name a less urgent one. None = any (E28)."""


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """When a worker counts as gone (FLEET F35, F39)."""

    heartbeat: Seconds = 0.25
    suspect_after: Seconds = 1.0
    eject_after: Seconds = 2.0
    stall_after: Seconds = 30.0
    restart_backoff: Seconds = 1.0
    max_restarts_per_minute: int = 3


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that the gateway and its workers need to know, fixed at start."""

    model: str = "smollm2-135m"
    workers: int = 1
    threads: int = 1
    dtype: Literal["fp32", "bf16"] = "bf16"
    max_model_len: int | None = None
    seed: int = 0
    memory: MemoryConfig = MemoryConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    preemption: Preemption = "recompute"
    priority_preemption: bool = False
    """An urgent request may take the blocks of a lower class (E26)."""
    queue: QueueConfig = QueueConfig()
    router: RouterConfig = RouterConfig()
    cache: CacheConfig = CacheConfig()
    health: HealthConfig = HealthConfig()
    cost: CostModel = CostModel()
    classes: Mapping[str, ClassConfig] = field(default_factory=lambda: {"default": ClassConfig()})
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    """By name; ``default`` stands for all that are not named."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """LoRA adapters loaded at start: name -> PEFT folder (E39)."""
    max_adapters: int = 8
    max_lora_rank: int = 64
    slo_bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Extra histogram bucket bounds in seconds by metric (``ttft``, ``itl``, ``e2e``): OBSERVABILITY O5."""
    expose_miss_reasons: bool = False
    """Answers tell why prompt tokens were not read from cache; it may tell of others' requests (E18)."""
