"""The controls that may change while everything runs (ENGINE E50): the gateway's own, then the workers'.

Places are dotted: ``queue.order``, ``classes.chat.rank``, ``tenants.alice.weight``. Classes are those of the
start; a tenant that is named for the first time gets a row, ``null`` takes it away. What waits or runs keeps
the rank, deadline and limits that it came with; bounds, caps and weights hold at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from engine.config import ClassConfig, EngineConfig, TenantConfig
from engine.config_bounds import problems
from engine.config_io import config_to_dict
from engine.plain import from_plain
from engine.sched.controls import CONTROLS, ECHOES, apply_changes

GATEWAY_CONTROLS: Mapping[str, tuple[str, str]] = {
    "order": ("queue", "order"),
    "max_requests": ("queue", "max_requests"),
    "max_tokens": ("queue", "max_tokens"),
    "input_weight": ("queue", "input_weight"),
    "output_weight": ("queue", "output_weight"),
    "routing": ("router", "policy"),
    "decode_weight": ("router", "decode_weight"),
    "max_dispatched": ("router", "max_dispatched"),
    "over_length": ("admission", "over_length"),
    "retention": ("cache", "retention"),
    "suspect_after": ("health", "suspect_after"),
    "eject_after": ("health", "eject_after"),
}
"""Control -> where it stands in EngineConfig. The dotted place names it as well."""

Place = tuple[str, ...]

_ROWS: Mapping[str, type[Any]] = {"classes": ClassConfig, "tenants": TenantConfig}
"""Tables with a row per name."""
_PLACES = {*CONTROLS.values(), *GATEWAY_CONTROLS.values()}
_PARTS = {place[0] for place in _PLACES if len(place) > 1}
_ENDS = _PLACES | {(name,) for name in {*CONTROLS, *GATEWAY_CONTROLS} - _PARTS}
"""Where a value stands, whatever it is. ``admission`` is also a part: there a mapping means the part."""
_WORKERS = frozenset({*CONTROLS, *(".".join(place) for place in CONTROLS.values())})


def changed(config: EngineConfig, changes: Mapping[str, Any]) -> tuple[EngineConfig, dict[str, Any]]:
    """The new configuration, and the changes that the workers must be told. Raises ValueError naming
    every key or value that is wrong; nothing is changed then. Values are judged together."""
    wrong: list[str] = []
    ours: list[tuple[Place, Any]] = []
    for_workers: dict[str, Any] = {}
    for place, value in _flat(changes):
        key = ".".join(place)
        own = GATEWAY_CONTROLS.get(key, place)
        if own in GATEWAY_CONTROLS.values() or own[0] in _ROWS:
            ours.append((own, value))
        elif key in _WORKERS:
            for_workers[key] = value
        else:
            wrong.append(_unknown(key))
    try:
        config = apply_changes(config, for_workers)
    except ValueError as error:
        wrong.append(str(error))
    for own, value in ours:
        try:
            config = _set(config, own, value)
        except ValueError as error:
            wrong.append(str(error))
    wrong = wrong or [f"{'.'.join(place)}: {message}" for place, message in problems(config)]
    if wrong:
        raise ValueError("; ".join(wrong))
    told = {place[0] if place[0] in ECHOES else place[-1] for place, _ in ours} & ECHOES.keys()
    plain = config_to_dict(config)
    return config, for_workers | {name: _at(plain, ECHOES[name]) for name in told}


def effective(config: EngineConfig) -> dict[str, Any]:
    """Every control with its present value, under its dotted place."""
    plain = config_to_dict(config)
    places: list[Place] = [*CONTROLS.values(), *GATEWAY_CONTROLS.values()]
    places += [(table, name, key) for table in _ROWS for name in plain[table] for key in plain[table][name]]
    return {".".join(place).rstrip("_"): _at(plain, place) for place in sorted(places)}


def _at(plain: Any, place: Place) -> Any:
    for name in place:
        plain = plain[name]
    return plain


def _flat(changes: Mapping[str, Any], above: Place = ()) -> Iterator[tuple[Place, Any]]:
    """``{"queue": {"order": ..}}`` and ``{"queue.order": ..}`` say the same. Names of rows may have dots."""
    for key, value in changes.items():
        place = (*above, key) if above else _split(key)
        if isinstance(value, Mapping) and value and place not in _ENDS:
            yield from _flat(value, place)
        else:
            yield place, value


def _split(key: str) -> Place:
    table, _, rest = key.partition(".")
    if table not in _ROWS or not rest:
        return tuple(key.split("."))
    name, _, field = rest.rpartition(".")
    named = [f.name.rstrip("_") for f in fields(_ROWS[table])]
    return (table, name, field) if name and field in named else (table, rest)


def _set(config: EngineConfig, place: Place, value: Any) -> EngineConfig:
    """``config`` with one value changed. Raises ValueError saying where and what is wrong."""
    plain = config_to_dict(config)
    table = place[0]
    if table in _ROWS and len(place) != 3 and not (table == "tenants" and len(place) == 2 and value is None):
        raise ValueError(f"{'.'.join(place)}: a row of {table} has {_names(_ROWS[table])}")
    if table == "classes" and place[1] not in plain["classes"]:
        raise ValueError(
            f"classes.{place[1]}: no class has this name; there is {', '.join(plain['classes'])}"
        )
    if len(place) == 2 and table == "tenants":
        plain["tenants"].pop(place[1], None)
    else:
        row = plain[table].setdefault(place[1], {}) if len(place) == 3 else plain[table]
        row[f"{place[-1]}_" if place[-1] == "class" else place[-1]] = value
    return from_plain(EngineConfig, plain)


def _names(row: type[Any]) -> str:
    return ", ".join(f.name.rstrip("_") for f in fields(row))


def _unknown(key: str) -> str:
    ours = (*GATEWAY_CONTROLS, *(".".join(place) for place in GATEWAY_CONTROLS.values()))
    near = difflib.get_close_matches(key, (*ours, *_WORKERS), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{key} cannot be changed while running{hint}"
