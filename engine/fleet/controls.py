"""The controls that may change while everything runs (ENGINE E50): the gateway's own, then the workers'."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine.config import EngineConfig
from engine.fleet.router import ROUTINGS
from engine.sched.controls import CONTROLS, apply_changes
from engine.sched.queue import ORDERS

GATEWAY_CONTROLS: Mapping[str, tuple[str, str]] = {
    "order": ("queue", "order"),
    "max_requests": ("queue", "max_requests"),
    "max_tokens": ("queue", "max_tokens"),
    "routing": ("router", "policy"),
    "decode_weight": ("router", "decode_weight"),
    "max_dispatched": ("router", "max_dispatched"),
    "over_length": ("admission", "over_length"),
}
"""Control -> where it stands in EngineConfig. The dotted place (``queue.order``) names it as well."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "order": tuple(ORDERS),
    "routing": tuple(ROUTINGS),
    "over_length": ("reject", "clamp"),
}


def changed(config: EngineConfig, changes: Mapping[str, Any]) -> tuple[EngineConfig, dict[str, Any]]:
    """The new configuration, and the changes that the workers must be told. Raises ValueError naming
    every key or value that is wrong; nothing is changed then."""
    by_place = {".".join(place): name for name, place in GATEWAY_CONTROLS.items()}
    flat = _flat(changes)
    own = {by_place.get(key, key): value for key, value in flat.items() if by_place.get(key, key) in _NAMES}
    for_workers = {key: value for key, value in flat.items() if by_place.get(key, key) not in _NAMES}
    problems = [f"{name} = {value!r}: {why}" for name, value in own.items() if (why := _wrong(name, value))]
    try:
        config = apply_changes(config, for_workers)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    for name, value in own.items():
        part, field = GATEWAY_CONTROLS[name]
        config = dataclasses.replace(
            config, **{part: dataclasses.replace(getattr(config, part), **{field: value})}
        )
    return config, for_workers


_NAMES = frozenset(GATEWAY_CONTROLS)


def effective(config: EngineConfig) -> dict[str, Any]:
    """Every control with its present value, under its dotted place."""
    places = [*CONTROLS.values(), *GATEWAY_CONTROLS.values()]
    return {".".join(place): _value(config, place) for place in sorted(places)}


def _value(config: EngineConfig, place: tuple[str, ...]) -> Any:
    value: Any = config
    for name in place:
        value = getattr(value, name)
    return value


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """``{"queue": {"order": ..}}`` and ``{"queue.order": ..}`` say the same."""
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            flat[key] = value
    return flat


def _wrong(name: str, value: Any) -> str | None:
    if name in _CHOICES:
        return None if value in _CHOICES[name] else f"must be one of {', '.join(_CHOICES[name])}"
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return "must be a number, at least 0"
    if name != "decode_weight" and (not isinstance(value, int) or value < 1):
        return "must be a whole number, at least 1"
    return None
