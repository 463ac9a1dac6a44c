"""What may stand behind an axis: ``64,256`` (each) or ``1:64`` (searched), with or without a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

from scenarios.units import UNITS, Unit

_QUANTITY = re.compile(r"\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d:]*)\s*")
_OCTAL = re.compile(r"([-+]?)0[0_]*(\d[\d_]*)")
_CLOSES = {"[": "]", "{": "}", "(": ")"}
_RATE: Unit = UNITS["1/s"]


class LevelError(ValueError):
    """A value that no axis can take; the message says why, without the axis."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Values to try one by one, or a span to search."""

    unit: str = ""
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = False


def read(text: str) -> Levels:
    """Of any control: numbers keep the unit that they are written with. Raises LevelError."""
    ends = _ends(text)
    if ends is None:
        return Levels(values=_each(text))
    (low, unit), (high, other) = ends
    if unit != other:
        raise LevelError(
            f"write both ends with the same unit, not {unit or 'none'!r} and {other or 'none'!r}"
        )
    whole = not unit and all(re.fullmatch(r"\s*[-+]?\d+\s*", part) for part in text.split(":"))
    return _span(low, high, unit, whole)


def read_rates(text: str) -> Levels:
    """Of a rate: a plain number is per second. Raises LevelError."""
    ends = _ends(text)
    if ends is not None:
        low, high = (_per_second(number, unit) for number, unit in ends)
        return _span(low, high, "/s", whole=False)
    values = []
    for part in _each(text):
        found = _QUANTITY.fullmatch(part)
        if found is None:
            raise LevelError(f"{part!r} is not a rate: write 4, 4/s or 30/m")
        values.append(_per_second(float(found[1]), found[2]))
    if min(values) <= 0:
        raise LevelError("a rate must be above 0")
    return Levels("/s", _distinct(tuple(f"{value:.12g}/s" for value in values)))


def read_users(text: str) -> Levels:
    """Of a closed loop: whole numbers of users. Raises LevelError."""
    found = read(text)
    bare = all(re.fullmatch(r"\d+", value) and int(value) >= 1 for value in found.values)
    if not bare or (found.low is not None and not found.whole):
        raise LevelError("users are counted in whole numbers from 1 on, such as 1:8 or 2,4,8")
    return found


def _per_second(number: float, unit: str) -> float:
    if not unit:
        return number
    try:
        return float(_RATE.parse(f"{number!r}{unit}"))
    except ValueError as error:
        raise LevelError(str(error)) from error


def _ends(text: str) -> tuple[tuple[float, str], tuple[float, str]] | None:
    """(number, unit) of both sides of a colon; None if this is no such span."""
    parts = text.split(":")
    found = [_QUANTITY.fullmatch(part) for part in parts]
    if len(parts) != 2 or found[0] is None or found[1] is None:
        return None
    low, high = ((float(match[1]), match[2]) for match in found if match is not None)
    return low, high


def _span(low: float, high: float, unit: str, whole: bool) -> Levels:
    if low <= 0:
        raise LevelError(f"the lower end must be above 0, not {low:g}: it is doubled")
    if low >= high:
        raise LevelError(f"{low:g} is not below {high:g}: write the lower end first")
    return Levels(unit, low=low, high=high, whole=whole)


def _each(text: str) -> tuple[str, ...]:
    """Split at commas outside of brackets; each part must be YAML, and none may stand twice."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in _CLOSES) - (letter in _CLOSES.values())
        if letter == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    values = tuple(part.strip() for part in (*parts, text[begin:]))
    for value in values:
        _checked(value)
    return _distinct(values)


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for value in values:
        meant = _meant(value)
        if meant in seen:
            also = "" if seen[meant] == value else f", also as {seen[meant]!r}"
            raise LevelError(f"{value!r} stands there twice{also}")
        seen[meant] = value
    return values


def _meant(value: str) -> str:
    """The same text for values that say the same: 1 and 1.0, 1s and 1000ms."""
    loaded = yaml.safe_load(value)
    for base, unit in UNITS.items():
        try:
            return f"{float(unit.parse(loaded))!r} {base}"
        except ValueError:
            continue
    found = _QUANTITY.fullmatch(str(loaded))
    return repr(loaded) if found is None else f"{float(found[1])!r} {found[2]}"


def _checked(value: str) -> None:
    if not value:
        raise LevelError("an empty value: write v1,v2 or low:high")
    if found := _OCTAL.fullmatch(value):
        raise LevelError(
            f"{value!r} begins with a 0, which makes it octal in YAML: write {found[1]}{found[2]}"
        )
    try:
        yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise LevelError(f"{value!r} is not a YAML value") from error
