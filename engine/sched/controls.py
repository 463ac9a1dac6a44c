"""The controls that may change between steps (ENGINE E50), applied to a frozen configuration."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from engine.config import EngineConfig, FootprintOf, Preemption, TenantConfig
from engine.config_bounds import conflicts
from engine.kv.eviction import EVICTIONS
from engine.plain import from_plain
from engine.sched.admission import ADMISSIONS

CONTROLS: Mapping[str, tuple[str, ...]] = {
    "max_step_tokens": ("scheduler", "max_step_tokens"),
    "max_running": ("scheduler", "max_running"),
    "prefill_chunk": ("scheduler", "prefill_chunk"),
    "min_prefill_share": ("scheduler", "min_prefill_share"),
    "max_partial_prefills": ("scheduler", "max_partial_prefills"),
    "long_prefill_cap": ("scheduler", "long_prefill_cap"),
    "admission": ("admission", "policy"),
    "kv_headroom": ("admission", "kv_headroom"),
    "busy_ratio": ("admission", "busy_ratio"),
    "backfill": ("admission", "backfill"),
    "aging": ("queue", "aging"),
    "preemption": ("preemption",),
    "priority_preemption": ("priority_preemption",),
    "prefix_cache": ("cache", "enabled"),
    "eviction": ("cache", "eviction"),
    "ttl": ("cache", "ttl"),
    "copied_first": ("cache", "copied_first"),
    "reuse_horizon": ("cache", "reuse_horizon"),
    "footprint_of": ("cache", "footprint_of"),
}
"""Control -> where it stands in EngineConfig. The dotted place (``cache.ttl``) names it as well."""

ECHOES: Mapping[str, tuple[str, ...]] = {
    "input_weight": ("queue", "input_weight"),
    "output_weight": ("queue", "output_weight"),
    "tenants": ("tenants",),
}
"""Controls of the gateway that workers go by too, in evictions and metrics: it has judged them, and sends
them whole."""

CHOICES = {
    "admission": tuple(ADMISSIONS),
    "eviction": tuple(EVICTIONS),
    "footprint_of": get_args(FootprintOf),
    "preemption": get_args(Preemption),
}
_FLAGS = ("backfill", "copied_first", "priority_preemption", "prefix_cache")
_SHARES = ("min_prefill_share", "kv_headroom", "busy_ratio")
_SECONDS = ("ttl", "aging", "reuse_horizon")


def apply_changes(config: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """``config`` with ``changes``; raises ValueError naming every key or value that is wrong, and values
    that would not go together."""
    by_place = {".".join(place): name for name, place in CONTROLS.items()}
    problems = []
    for key, value in changes.items():
        name = by_place.get(key, key)
        if name in ECHOES:
            config = _replaced(config, ECHOES[name], _tenants(value) if name == "tenants" else value)
        elif name not in CONTROLS:
            near = difflib.get_close_matches(key, [*CONTROLS, *by_place], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"{key} cannot be changed while running{hint}")
        elif problem := _wrong(name, value):
            problems.append(f"{key} = {value!r}: {problem}")
        else:
            config = _replaced(config, CONTROLS[name], value)
    problems = problems or [f"{'.'.join(place)}: {message}" for place, message in conflicts(config)]
    if problems:
        raise ValueError("; ".join(problems))
    return config


def _wrong(name: str, value: Any) -> str | None:
    if name in CHOICES:
        return None if value in CHOICES[name] else f"must be one of {', '.join(CHOICES[name])}"
    if name in _FLAGS:
        return None if isinstance(value, bool) else "must be true or false"
    if name in ("ttl", "long_prefill_cap") and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if name in _SHARES:
        return None if 0 <= value <= 1 else "must be a share between 0 and 1"
    if name in _SECONDS:
        return None if 0 < value < math.inf else "must be more than 0 seconds"
    if not isinstance(value, int) or value < 1:
        return "must be a whole number, at least 1"
    return None


def _tenants(rows: Mapping[str, Any]) -> dict[str, TenantConfig]:
    return {name: from_plain(TenantConfig, row) for name, row in rows.items()}


def _replaced(config: EngineConfig, place: tuple[str, ...], value: Any) -> EngineConfig:
    if len(place) == 1:
        return replace(config, **{place[0]: value})
    part = replace(getattr(config, place[0]), **{place[1]: value})
    return replace(config, **{place[0]: part})
