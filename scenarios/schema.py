"""The scenario: one file, parsed into frozen values. A field's name is its YAML key.

A trailing underscore (``class_``) is not part of the key. Units stand in ``Annotated`` metadata (see
scenarios.units). What stands behind ``type:`` comes from the tables ARRIVALS, WORKLOADS, TRACES and
FAULTS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, cast

from engine.config import (
    AdmissionConfig,
    CacheConfig,
    CostModel,
    HealthConfig,
    MemoryConfig,
    Preemption,
    QueueConfig,
    RouterConfig,
    SchedulerConfig,
    TenantConfig,
)
from faults.fault import Fault
from loadgen.plan import Arrival, Phases, Rate, Seconds, Share, Workload
from loadgen.rules import Cap, Retries, Timeouts
from loadgen.targets.http import option_fault
from loadgen.tenants import check_shares, zipf
from loadgen.tracefiles import Trace
from results.judging import HealthLimits

NotAKey = "not a key"
"""Marks a field that the loader fills and no file may name."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Our own engine, started by ``bench``. ``model``: a pulled name, folder, hub id, tiny or simulated.

    The fields are those of engine.config.EngineConfig; its classes come from the scenario's.
    """

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
    queue: QueueConfig = QueueConfig()
    router: RouterConfig = RouterConfig()
    cache: CacheConfig = CacheConfig()
    health: HealthConfig = HealthConfig()
    cost: CostModel = CostModel()
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    max_adapters: int = 8
    max_lora_rank: int = 64
    expose_miss_reasons: bool = False


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """The built-in engine as the system under test. ``price`` is that of one worker, in any currency."""

    engine: Engine
    price: Rate | None = None


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """Any endpoint that speaks one of the dialects. ``key_env`` names the environment variable that holds its
    key, ``key_header`` the header for it if not the dialect's own; ``headers`` are sent too and hold no
    secret. ``strict`` sends documented fields only; ``accepts`` are the extensions that the target is known
    to understand (MEASUREMENT C14). https is verified by the system's authorities, or by those in the PEM
    file ``ca`` alone. With the path of its
    ``tokenizer`` (tokenizer.json) prompts have exactly the tokens asked for, but for the chat template;
    loads that could pass ``max_model_len`` tokens, prompt and answer, are refused. ``price`` is that of one
    of its ``replicas``, in any currency."""

    url: str
    model: str
    dialect: Literal["openai_chat", "openai_completions", "openai_responses", "anthropic_messages"] = (
        "openai_chat"
    )
    key_env: str | None = None
    key_header: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    temperature: float | None = 0.0
    accepts: tuple[
        Literal["ignore_eos", "min_tokens", "token_ids", "priority", "max_completion_tokens"], ...
    ] = ()
    ca: str | None = None
    tokenizer: str | None = None
    max_model_len: int | None = None
    price: Rate | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {self.replicas}")
        if fault := option_fault(self):
            raise ValueError(fault)
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, not {self.url!r}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Most tokens of one request: prompt, answer, and both together (ENGINE E28)."""

    input: int | None = None
    output: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Queued:
    """Most requests and tokens of one class that may wait (ENGINE E32)."""

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that a request must meet to be good (MEASUREMENT 3, C26); absent = no bound."""

    ttft: Seconds | None = None
    ttft_sched: Seconds | None = None
    ttfo: Seconds | None = None
    ttfo_sched: Seconds | None = None
    e2e: Seconds | None = None
    e2e_sched: Seconds | None = None
    tpot: Seconds | None = None
    itl: Seconds | None = None
    icl: Seconds | None = None
    stall: Seconds | None = None

    def bounds(self) -> dict[str, float]:
        """The bounds that are set, in s by metric."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True)
class Checks:
    """What makes an answer correct: its finish reason in ``finish``, exactly as many tokens as asked."""

    finish: tuple[Literal["stop", "length", "tool_calls", "content_filter"], ...] | None = None
    exact_output: bool = False


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A named kind of request. ``rank`` 0 is the most urgent; ``deadline`` counts from its arrival;
    ``retention`` names one of ``cache.retention``; ``queued`` bounds what of it may wait at our engine."""

    rank: int = 0
    limits: Limits = Limits()
    default_output: int | None = None
    deadline: Seconds | None = None
    retention: str | None = None
    queued: Queued = Queued()
    stream: bool = True
    cap: Cap | None = None
    slo: Slo = Slo()
    checks: Checks = Checks()


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """One stream of requests: whose, and either a recorded load, or when and what.

    ``tenants`` draws the tenant of each session by shares; ``zipf_tenants`` names that many, of which the
    k-th has a share in proportion to 1/k. Without them all belong to ``tenant``. ``adapters`` are shares of
    the sessions that ask for an adapter by this name instead of the model.
    """

    class_: str
    arrival: Arrival | None = None
    workload: Workload | None = None
    trace: Trace | None = None
    tenant: str = "default"
    tenants: Mapping[str, Share] | None = None
    zipf_tenants: int | None = None
    adapters: Mapping[str, Share] | None = None

    def __post_init__(self) -> None:
        if self.tenants is not None:
            check_shares(self.tenants)
        if self.adapters is not None:
            check_shares(self.adapters, "adapter", whole=False)
        if self.tenants is not None and self.zipf_tenants is not None:
            raise ValueError("give tenants or zipf_tenants, not both")
        self.shares()
        made = [key for key in ("arrival", "workload") if getattr(self, key) is not None]
        if self.trace is not None and made:
            raise ValueError(f"a load has a trace, or arrival and workload; this one has trace and {made[0]}")
        if self.trace is None and len(made) < 2:
            missing = "workload" if made == ["arrival"] else "arrival"
            raise ValueError(f"missing key {missing!r} (a load has arrival and workload, or a trace)")

    def shares(self) -> Mapping[str, float] | None:
        """Of the tenants; None if there is one only. Raises ValueError for a number that cannot be."""
        return self.tenants if self.zipf_tenants is None else zipf(self.zipf_tenants)

    @property
    def arrives(self) -> Arrival:
        """When its sessions start."""
        return self.trace.arrives if self.trace is not None else cast(Arrival, self.arrival)

    @property
    def works(self) -> Workload:
        """What its sessions send."""
        return cast(Workload, self.workload or self.trace)


_RAY_ADDRESS = re.compile(r"auto|local|[^\s/]+:\d{1,5}")


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """The load generator itself: how many ``processes`` share the plan, at most how many ``connections``
    each holds (absent = as many as there are requests in flight), and whether it tries again.

    ``launcher``: whether they run on this machine or are spread over a Ray cluster; ``ray_address`` is then
    its HOST:PORT, ``auto`` for the one that this machine belongs to, or ``local`` for one made for the run.
    """

    processes: int = 1
    connections: int | None = None
    retries: Retries = Retries()
    launcher: Literal["local", "ray"] = "local"
    ray_address: str = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= 256:
            raise ValueError(f"processes must be 1 to 256, not {self.processes}")
        if self.connections is not None and self.connections < 1:
            raise ValueError(f"connections must be at least 1, not {self.connections}")
        if not _RAY_ADDRESS.fullmatch(self.ray_address):
            raise ValueError(f"ray_address must be auto, local or HOST:PORT, not {self.ray_address!r}")


@dataclass(frozen=True, slots=True)
class HealthSpec:
    """When the client's own numbers are believed (MEASUREMENT 8): what a value may be and still be valid,
    and with ``_degraded`` what it may be and still be degraded."""

    latency_floor: Seconds = 0.005
    latency_share: Share = 0.05
    min_class_n: int = 30
    pool_wait: Seconds = 0.001
    cpu: Share = 0.8
    steal: Share = 0.05
    offered: Share = 0.005
    offered_degraded: Share = 0.02
    little: Share = 0.001
    little_degraded: Share = 0.02

    def __post_init__(self) -> None:
        self.limits()

    def limits(self) -> HealthLimits:
        return HealthLimits(**{f.name: getattr(self, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run needs to know. Frozen; the same scenario and seed make the same plan."""

    headrace: Literal[1]
    target: EngineTarget | UrlTarget
    classes: Mapping[str, ClassSpec]
    phases: Phases
    load: tuple[LoadSpec, ...]
    seed: int | None = None
    cache: Literal["cold", "warm", "as_is"] = "cold"
    faults: tuple[Fault, ...] = ()
    gates: tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()
    client: ClientSpec = ClientSpec()
    health: HealthSpec = HealthSpec()
    virtual: Mapping[str, Any] = field(default_factory=dict)
    """Overrides for runs in virtual time, each as for ``--set``: ``load.0.workload.system: 60000``."""
    name: Annotated[str, NotAKey] = ""
    """The file's name without its ending."""
    question: Annotated[str, NotAKey] = ""
    """The comment on the file's first line: what the scenario finds out."""
