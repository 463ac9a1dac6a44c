"""The schema described from itself: JSON Schema, the tables of ``bench list``, and a scenario as YAML."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_origin

import yaml
from pydantic import TypeAdapter

from engine.config import POLICIES
from loadgen.plan import Workload
from loadgen.workload.lengths import Amount
from loadgen.workload.waits import Wait
from scenarios.forms import TABLES, first_keys, form, is_union, keys, unit_of
from scenarios.schema import Scenario

_DRAWN = {"amounts": Amount, "waits": Wait}
_NAMES = {"Arrival": "arrivals", "Workload": "workloads", "Trace": "traces", "Fault": "faults"}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of scenario files, for editors."""
    schema = TypeAdapter(form(Scenario)).json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "headrace scenario"} | schema


def tables() -> dict[str, list[dict[str, Any]]]:
    """Every name that may stand behind ``type:``, by table: its help text, and what its fields take. Then
    the blocks within workloads, by WORKLOAD.KEY; then how numbers and times may be drawn, by the first key of
    the block that says so; then the policies of the built-in engine, by their key in ``target.engine``."""
    types: dict[str, list[dict[str, Any]]] = {
        _NAMES[protocol.__name__]: [
            {
                "name": name,
                "doc": help_of(cls),
                "fields": {key: _field(f, hint) for key, f, hint in keys(cls)},
            }
            for name, cls in table.items()
        ]
        for protocol, table in TABLES.items()
    }
    drawn: dict[str, list[dict[str, Any]]] = {
        name: [
            {"name": key, "doc": help_of(cls), "fields": {k: _field(f, hint) for k, f, hint in keys(cls)}}
            for key, cls in first_keys(get_args(union)).items()
        ]
        for name, union in _DRAWN.items()
    }
    policies: dict[str, list[dict[str, Any]]] = {
        f"target.engine.{key}": [{"name": name, "doc": doc, "fields": {}} for name, doc in entries.items()]
        for key, entries in POLICIES.items()
    }
    return types | {"workload blocks": _inner_blocks()} | drawn | policies


def _inner_blocks() -> list[dict[str, Any]]:
    """Blocks within workloads, such as the tools of sessions."""
    return [
        {
            "name": f"{name}.{key}",
            "doc": help_of(inner),
            "fields": {k: _field(f, hint) for k, f, hint in keys(inner)},
        }
        for name, cls in TABLES[Workload].items()
        for key, _, hint in keys(cls)
        if (inner := _optional_block(hint)) is not None
    ]


def _optional_block(hint: Any) -> type[Any] | None:
    members = [arg for arg in get_args(hint) if arg is not NoneType] if is_union(hint) else []
    (only, *others) = members or [None]
    return only if isinstance(only, type) and dataclasses.is_dataclass(only) and not others else None


def help_of(cls: type[Any]) -> str:
    """The first paragraph of a class's help text, on one line."""
    paragraph = (inspect.getdoc(cls) or "").split("\n\n", 1)[0]
    return " ".join(paragraph.split())


def _field(f: dataclasses.Field[Any], hint: Any) -> str:
    """What a field takes and its default, such as ``time (5s or 250ms) = 10s``."""
    takes, default = _takes(hint), default_of(f)
    if default is dataclasses.MISSING:
        return takes
    return f"{takes}, optional" if default is None else f"{takes} = {json.dumps(_plain(default, hint))}"


def _takes(hint: Any) -> str:
    """What a field takes, in words."""
    if unit := unit_of(hint):
        return f"{unit.noun.removeprefix('a ')} ({unit.example})"
    if hint in TABLES:
        return f"one of the {_NAMES[hint.__name__]}"
    if is_union(hint):
        classes = first_keys(get_args(hint)).values()
        for name, union in _DRAWN.items():
            if set(get_args(union)) <= set(get_args(hint)):
                return f"{_takes(get_args(union)[0])}, or drawn (see {name})"
        brief = len(classes) > 1
        members = [arg for arg in get_args(hint) if arg is not NoneType]
        return " or ".join(_block_of(arg, brief) if arg in classes else _takes(arg) for arg in members)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _block_of(hint)
    if get_origin(hint) in (dict, Mapping):
        return f"{{name: {_takes(get_args(hint)[1])}, ..}}"
    if get_origin(hint) is tuple:
        members = list(get_args(hint))
        return (
            f"list of {_takes(members[0])}" if members[-1] is ... else f"[{', '.join(map(_takes, members))}]"
        )
    if get_args(hint):
        return " or ".join(str(arg) for arg in get_args(hint))
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(hint, "list")


def _block_of(cls: type[Any], brief: bool = False) -> str:
    """The keys of a block; if ``brief``, the one that tells it from other blocks."""
    names = [key for key, _, _ in keys(cls)]
    shown = names[:1] if brief else names
    return "{" + ", ".join(f"{name}: .." for name in shown) + (", ..}" if len(shown) < len(names) else "}")


def resolved(scenario: Scenario) -> str:
    """The scenario as YAML with every default written out; loading it gives an equal scenario."""
    body = yaml.safe_dump(_plain(scenario, Scenario), sort_keys=False, allow_unicode=True, width=100)
    return f"# {scenario.question}\n{body}" if scenario.question else body


def _plain(value: Any, hint: Any) -> Any:
    """A value as it stands in a file."""
    unit = unit_of(hint)
    if unit is not None and value is not None:
        return unit.write(value)
    if is_union(hint):
        members = [arg for arg in get_args(hint) if arg is not NoneType]
        found = next((arg for arg in members if isinstance(arg, type) and type(value) is arg), members[0])
        return value if value is None else _plain(value, found)
    if hint in TABLES:
        name = next(name for name, cls in TABLES[hint].items() if type(value) is cls)
        return {"type": name} | _block(value)
    if dataclasses.is_dataclass(value):
        return _block(value)
    if isinstance(value, tuple):
        return [_plain(item, (get_args(hint) or (Any,))[0]) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, (get_args(hint) or (Any, Any))[-1]) for key, item in value.items()}
    return value


def _block(value: Any) -> dict[str, Any]:
    """A dataclass without what is absent by default: None, and empty lists and blocks."""
    block = {}
    for key, f, hint in keys(type(value)):
        item = _plain(getattr(value, f.name), hint)
        if item not in (None, [], {}) or getattr(value, f.name) != default_of(f):
            block[key] = item
    return block


def default_of(f: dataclasses.Field[Any]) -> Any:
    """A field's default; MISSING if it has none."""
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
