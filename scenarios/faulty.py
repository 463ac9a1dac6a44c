"""What is wrong with a scenario file, in words: pydantic's errors, made ours."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from scenarios.forms import TABLES, first_keys, is_union, keys, unit_of
from scenarios.schema import Scenario

_SHAPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "finite_number": "a finite number",
}


def path_of(loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """An error's path in keys of the file: without the steps into a union."""
    return tuple(step for step in loc if not (isinstance(step, str) and step.startswith("<")))


def explain(error: ErrorDetails) -> str:
    """One error in the user's words, with the nearest name where a name is wrong."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown key {loc[-1]!r}{nearest(str(loc[-1]), _known(loc[:-1]))}"
    if kind == "missing":
        return f"missing key {str(loc[-1])!r}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _no_choice(value, _inside(loc))
    if kind == "literal_error":
        expected = error["ctx"]["expected"]
        return f"{value!r} is not {expected}{nearest(str(value), expected.replace(' or ', ', ').split(', '))}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind in _SHAPES:
        return f"expected {_SHAPES[kind]}, found {_short(value)}{_as_number(kind, value)}"
    return f"{error['msg']} (found {_short(value)})"


def _as_number(kind: str, value: Any) -> str:
    """What YAML 1.1 takes for text though it looks like a number, such as 1e-3: how to write it."""
    if kind not in ("float_type", "int_type") or not isinstance(value, str):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    remedy = "write it without quotes, and an exponent as in 1.0e-3"
    return f" (YAML takes that for text: {remedy})" if math.isfinite(number) else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or all that is known if nothing is near and it is little."""
    names = [k.strip("'\"") for k in known]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(names)})" if 0 < len(names) <= 16 else ""


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_choice(value: Any, hint: Any) -> str:
    """No member of a union fits."""
    table = TABLES.get(hint)
    if table is not None:
        if not isinstance(value, dict):
            return f"expected keys and values, found {_short(value)}"
        if "type" not in value:
            return f"missing key 'type' (known: {', '.join(table)})"
        return f"unknown type {value['type']!r}{nearest(str(value['type']), table)}"
    names = first_keys(get_args(hint))
    words = [word for arg in get_args(hint) for word in _plain_words(arg)]
    forms = " or ".join([*(f"{{{name}: ..}}" for name in names), *words])
    wrong = next((str(key) for key in value), "") if isinstance(value, dict) else ""
    return f"expected {forms}, found {_short(value)}" + (nearest(wrong, names) if wrong else "")


def _plain_words(hint: Any) -> list[str]:
    """What a member of a union takes that is no block of keys."""
    if get_origin(hint) is Literal:
        return [repr(word) for word in get_args(hint)]
    if unit := unit_of(hint):
        return [f"{unit.noun} ({unit.example})"]
    return ["a whole number"] if hint is int else []


def _known(loc: Sequence[str | int]) -> list[str]:
    """The keys that the block at ``loc`` may have."""
    hint = _inside(loc)
    if is_union(hint):  # `X | None`: other unions have a step of their own in the path
        hint = next((arg for arg in get_args(hint) if is_dataclass(arg)), None)
    names = [key for key, _, _ in keys(hint)] if is_dataclass(hint) and isinstance(hint, type) else []
    typed = bool(loc) and _inside(loc[:-1]) in TABLES
    return [*(["type"] if typed else []), *names]


def _inside(loc: Sequence[str | int]) -> Any:
    """The type hint at a path from the scenario's root."""
    hint: Any = Scenario
    for step in loc:
        hint = _step(_entries(hint), step)
    return _entries(hint)


def _entries(hint: Any) -> Any:
    """A table's protocol where ``hint`` is one or None."""
    members = [arg for arg in get_args(hint) if arg is not NoneType] if is_union(hint) else []
    return members[0] if len(members) == 1 and members[0] in TABLES else hint


def _step(hint: Any, step: str | int) -> Any:
    if is_union(hint):
        args = tuple(arg for arg in get_args(hint) if arg is not NoneType)
        if isinstance(step, str) and step.startswith("<"):
            return first_keys(args).get(step.strip("<>"))
        hint = args[0]
    if hint in TABLES and isinstance(step, str):
        return TABLES[hint].get(step.strip("<>"))
    if isinstance(step, int) and get_origin(hint) is tuple:
        return get_args(hint)[0]
    if isinstance(hint, type) and is_dataclass(hint):
        return next((inner for key, _, inner in keys(hint) if key == step), None)
    return get_args(hint)[-1] if get_args(hint) else None
