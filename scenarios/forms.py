"""Pydantic forms made from the dataclasses: the dataclass is the schema, written once.

``form(hint)`` turns a type hint into one that pydantic checks strictly and that yields the dataclass
itself: unknown keys are refused, quantities need their unit, ``type:`` picks from a table, and a union
of dataclasses is told apart by the first key of each (``{prefill: 1}`` or ``{decode: 5}``).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    create_model,
)

from faults.fault import Fault
from faults.table import FAULTS
from loadgen.arrivals import ARRIVALS
from loadgen.plan import Arrival, Workload
from loadgen.tracefiles import TRACES, Trace
from loadgen.workload import WORKLOADS
from scenarios.schema import NotAKey
from scenarios.units import UNITS, Unit

TABLES: Mapping[Any, Mapping[str, type[Any]]] = {
    Arrival: ARRIVALS,
    Workload: WORKLOADS,
    Trace: TRACES,
    Fault: FAULTS,
}
"""Which table stands behind which protocol."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


def key_of(name: str) -> str:
    """The YAML key of a field: ``class_`` is ``class``."""
    return name.rstrip("_")


def keys(cls: type[Any]) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(key, field, type hint) of every field that a file may name."""
    hints = get_type_hints(cls, include_extras=True)
    for f in dataclasses.fields(cls):
        if NotAKey not in getattr(hints[f.name], "__metadata__", ()):
            yield key_of(f.name), f, hints[f.name]


def unit_of(hint: Any) -> Unit | None:
    """The unit that a hint asks for, if any, also inside ``X | None``."""
    if is_union(hint):
        units = [unit_of(arg) for arg in get_args(hint) if arg is not NoneType]
        return units[0] if len(units) == 1 else None
    marks = getattr(hint, "__metadata__", ())
    return next((UNITS[mark] for mark in marks if isinstance(mark, str) and mark in UNITS), None)


def is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def tag(name: str) -> str:
    """A step in an error's path that is no key of the file."""
    return f"<{name}>"


@cache
def model_of(cls: type[Any], type_name: str | None = None) -> type[BaseModel]:
    """The form of a dataclass; with the key ``type`` if it is an entry of a table."""
    fields: dict[str, Any] = {}
    if type_name is not None:
        fields["type_"] = (Literal[type_name], Field(alias="type"))
    for key, f, hint in keys(cls):
        fields[f.name] = (form(hint), Field(alias=key, **_default(f)))
    doc = inspect.getdoc(cls) or ""
    return create_model(cls.__name__, __config__=_STRICT, __doc__=doc, **fields)


def _default(f: dataclasses.Field[Any]) -> dict[str, Any]:
    if f.default is not dataclasses.MISSING:
        return {"default": f.default}
    if f.default_factory is not dataclasses.MISSING:
        return {"default_factory": f.default_factory}
    return {}


def form(hint: Any) -> Any:
    """``hint`` as pydantic shall check it."""
    if hint in TABLES:
        return _entry_of(TABLES[hint])
    if unit := unit_of(hint) if get_origin(hint) is Annotated else None:
        return Annotated[get_args(hint)[0], BeforeValidator(unit.parse), WithJsonSchema(_unit_schema(unit))]
    if is_union(hint):
        return _union(get_args(hint))
    if get_origin(hint) is Literal:
        return Annotated[hint, BeforeValidator(_of_type(get_args(hint)))]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _built(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return Annotated[list[form(args[0])], BeforeValidator(_or(list)), AfterValidator(tuple)]  # type: ignore[misc]
    if origin in (dict, Mapping):
        return Annotated[dict[str, form(args[1])], BeforeValidator(_or(dict))]  # type: ignore[misc]
    return hint


def _of_type(members: tuple[Any, ...]) -> Any:
    """Of a Literal: 1 is meant, and neither ``true`` nor 1.0, which are equal to it."""

    def check(value: Any) -> Any:
        if value in members and not any(type(value) is type(member) for member in members):
            raise ValueError(f"{value!r} is not {' or '.join(map(repr, members))}")
        return value

    return check


def _or(empty: type[Any]) -> Any:
    """A key whose items are all commented out has no value: that is empty, not wrong."""
    return lambda value: empty() if value is None else value


def _built(cls: type[Any], type_name: str | None = None) -> Any:
    """The form of a dataclass, giving the dataclass. Its own ValueErrors become errors of the file."""
    names = [f.name for _, f, _ in keys(cls)]

    def build(model: BaseModel) -> Any:
        return cls(**{name: getattr(model, name) for name in names})

    model = model_of(cls, type_name)  # type: ignore[arg-type]  # a class is hashable
    return Annotated[model, AfterValidator(build)]


def _entry_of(table: Mapping[str, type[Any]]) -> Any:
    """One of a table's entries, chosen by ``type``."""
    members = [Annotated[_built(cls, name), Tag(tag(name))] for name, cls in table.items()]

    def choose(value: Any) -> str | None:
        name = value.get("type") if isinstance(value, dict) else None
        return tag(name) if isinstance(name, str) else None

    return Annotated[_any_of(members), Discriminator(choose)]


def _union(args: tuple[Any, ...]) -> Any:
    """``X | None``, or dataclasses told apart by the first key of each, or these and plain values."""
    classes = first_keys(args)
    others = [form(arg) for arg in args if arg not in classes.values() and arg is not NoneType]
    if not classes:
        made = _any_of(others)
    elif len(classes) == 1 and not others:
        made = _built(next(iter(classes.values())))
    else:
        made = _told_apart(classes, others)
    return _any_of([made, None]) if NoneType in args else made


def first_keys(args: tuple[Any, ...]) -> dict[str, type[Any]]:
    """The dataclasses of a union by the key that tells them apart."""
    return {
        next(keys(arg))[0]: arg for arg in args if isinstance(arg, type) and dataclasses.is_dataclass(arg)
    }


def _told_apart(classes: dict[str, type[Any]], words: list[Any]) -> Any:
    members = [Annotated[_built(cls), Tag(tag(key))] for key, cls in classes.items()]
    if words:
        members.append(Annotated[_any_of(words), Tag(tag("word"))])

    def choose(value: Any) -> str | None:
        if isinstance(value, dict):
            return next((tag(key) for key in classes if key in value), None)
        return tag("word") if words else None

    return Annotated[_any_of(members), Discriminator(choose)]


def _any_of(members: list[Any]) -> Any:
    return reduce(or_, members)


def _unit_schema(unit: Unit) -> dict[str, Any]:
    text = {"type": "string", "pattern": unit.pattern}
    about = {"description": f"{unit.noun}, such as {unit.example}"}
    number = {"type": "number", "minimum": 0, "maximum": 1}
    return about | ({"anyOf": [text, number]} if unit.plain else text)
