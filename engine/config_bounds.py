"""What values an engine could not work with, each with its place and what it takes instead.

Two bounds hold for every number. Whole numbers stay below 2^53, so that every process and file can hold them.
Times stay below 10^9 s, some 31 years, so that they can be counted in ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from engine.config import CacheConfig, ClassConfig, CostModel, EngineConfig, HealthConfig

Place = tuple[str, ...]
_MOST = 2**53
_MOST_SECONDS = 1e9
"""Also of every other fraction."""

_MOST_THREADS = 1024
"""Of one worker; torch crashes where the machine cannot start as many."""

_AT_LEAST: Mapping[Place, float] = {
    ("workers",): 1,
    ("threads",): 1,
    ("max_model_len",): 2,
    ("memory", "kv_blocks"): 1,
    ("memory", "total"): 1,
    ("memory", "block_size"): 1,
    ("scheduler", "max_step_tokens"): 1,
    ("scheduler", "max_running"): 1,
    ("scheduler", "prefill_chunk"): 1,
    ("scheduler", "min_prefill_share"): 0,
    ("scheduler", "max_partial_prefills"): 1,
    ("scheduler", "long_prefill_cap"): 1,
    ("admission", "kv_headroom"): 0,
    ("admission", "busy_ratio"): 0,
    ("queue", "max_requests"): 1,
    ("queue", "max_tokens"): 1,
    ("queue", "input_weight"): 0,
    ("queue", "output_weight"): 0,
    ("router", "decode_weight"): 0,
    ("router", "max_dispatched"): 1,
    ("health", "max_restarts_per_minute"): 0,
    **{("cost", field.name): 0 for field in fields(CostModel)},
    ("max_adapters",): 1,
    ("max_lora_rank",): 1,
}
_CLASS_AT_LEAST = {
    "rank": 0,
    "max_input": 1,
    "max_output": 1,
    "max_total": 2,
    "default_output": 1,
    "max_queued": 1,
    "max_queued_tokens": 1,
}
_SHARES = (("scheduler", "min_prefill_share"), ("admission", "kv_headroom"), ("admission", "busy_ratio"))
_TIMES = (
    ("queue", "aging"),
    ("cache", "ttl"),
    ("cache", "reuse_horizon"),
    ("health", "heartbeat"),
    ("health", "suspect_after"),
    ("health", "eject_after"),
    ("health", "stall_after"),
    ("health", "restart_backoff"),
)


def problems(config: EngineConfig) -> Iterator[tuple[Place, str]]:
    """(place, message) of each value with which an engine could not work: refused before it starts, where
    it would wait for ever or quietly take another value."""
    if huge := list(_huge(config, ())):
        yield from huge
        return
    for place, least in _AT_LEAST.items():
        value = _at(config, place)
        if value is not None and not value >= least:
            yield place, f"at least {least:g}, not {value}"
    if config.threads > _MOST_THREADS:
        yield ("threads",), f"at most {_MOST_THREADS}, not {config.threads}"
    for place in _SHARES:
        if _at(config, place) > 1:
            yield place, f"a share is at most 100 %, not {_at(config, place):.0%}"
    for place in _TIMES:
        value = _at(config, place)
        if value is not None and not value > 0:
            yield place, f"a time longer than 0s, not {value:g} s"
    yield from _tiers(config.cache)
    yield from _people(config)
    yield from _silence(config.health)
    yield from conflicts(config)


def _huge(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Numbers that no process could count with."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _huge(getattr(value, field.name), (*place, field.name))
    elif isinstance(value, Mapping):
        for name, row in value.items():
            yield from _huge(row, (*place, name))
    elif isinstance(value, int | float):
        time = isinstance(value, float) or place in _TIMES or place[-1] == "deadline" or "retention" in place
        most = _MOST_SECONDS if time else _MOST
        if not abs(value) <= most:
            digits = str(value)
            yield place, f"at most {most:,.0f}, not {digits[:20]}{'...' if len(digits) > 20 else ''}"


def _tiers(cache: CacheConfig) -> Iterator[tuple[Place, str]]:
    """What is wrong with lives and with the tiers below the device."""
    place, tiers, disk = ("cache", "tiers"), cache.tiers, cache.tiers.disk
    for name, life in cache.retention.items():
        if not life > 0:
            yield ("cache", "retention", name), f"a time longer than 0s, not {life:g} s"
    least = {"host": 1, "host_bandwidth": 1, "host_latency": 0, "swap": 0, "in_flight": 1}
    for name, bound in least.items():
        if (value := getattr(tiers, name)) is not None and not value >= bound:
            yield (*place, name), f"at least {bound}, not {value}"
    for name, bound in {"size": 1, "bandwidth": 1, "latency": 0}.items() if disk else ():
        if not (value := getattr(disk, name)) >= bound:
            yield (*place, "disk", name), f"at least {bound}, not {value}"
    if disk is not None and tiers.host is None:
        yield (*place, "disk"), "what goes to disk passes through host memory: set cache.tiers.host too"


def _silence(health: HealthConfig) -> Iterator[tuple[Place, str]]:
    """Waits that every worker would outlast between two of its heartbeats."""
    for name in ("suspect_after", "eject_after"):
        if 0 < (value := getattr(health, name)) <= health.heartbeat:
            message = f"longer than health.heartbeat, which is {health.heartbeat:g} s, not {value:g} s"
            yield ("health", name), message


def _people(config: EngineConfig) -> Iterator[tuple[Place, str]]:
    """What is wrong with classes, tenants and the names of adapters."""
    if not config.classes:
        yield ("classes",), "at least one, such as default: {}"
    for name in config.adapters:
        if name in ("", config.model):
            yield ("adapters", name), "a name that requests can tell from the model's own"
    for name, class_ in config.classes.items():
        for field, message in _class(class_, config.cache.retention):
            yield ("classes", name, field), message
    for name, tenant in config.tenants.items():
        if not tenant.weight > 0:
            yield ("tenants", name, "weight"), f"a number above 0, not {tenant.weight}"
        for cap in ("max_queued", "max_active", "max_queued_tokens", "max_kv_tokens"):
            if (value := getattr(tenant, cap)) is not None and value < 1:
                yield ("tenants", name, cap), f"at least 1, not {value}"
        if tenant.class_ is not None and tenant.class_ not in config.classes:
            known = ", ".join(config.classes)
            yield ("tenants", name, "class"), f"{tenant.class_} is no class; there is {known}"


def _class(class_: ClassConfig, retention: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """(field, message) of what is wrong with a row of the class table."""
    for field, least in _CLASS_AT_LEAST.items():
        if (value := getattr(class_, field)) is not None and not value >= least:
            yield field, f"at least {least}, not {value}"
    if class_.deadline is not None and not class_.deadline > 0:
        yield "deadline", f"a time longer than 0s, not {class_.deadline:g} s"
    if class_.retention is not None and class_.retention not in retention:
        lives = ", ".join(retention) or "none"
        yield "retention", f"{class_.retention} is not in cache.retention, which has {lives}"


def conflicts(config: EngineConfig) -> Iterator[tuple[Place, str]]:
    """(place, message) of values that do not go together."""
    policy = config.admission.policy
    if config.preemption == "none" and policy != "lifetime":
        message = f"none takes no blocks back, which needs admission.policy lifetime, not {policy}"
        yield ("preemption",), message
    if config.preemption == "none" and config.priority_preemption:
        yield ("preemption",), "none takes no blocks back, so there is no priority_preemption with it"
    if not config.cost.a + config.cost.b > 0:
        yield ("cost", "a"), "a step with prompt tokens takes some time: a or b must be above 0s"
    if config.preemption == "swap" and not config.cache.tiers.swap:
        yield ("preemption",), "swap needs memory to swap to: set cache.tiers.swap"


def _at(config: EngineConfig, place: Place) -> Any:
    value: Any = config
    for name in place:
        value = getattr(value, name)
    return value
