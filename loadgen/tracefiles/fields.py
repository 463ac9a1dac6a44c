"""Single values of a trace, strictly: what is not exactly what the format says is refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.tracefiles.errors import Say
from loadgen.workload.lengths import MOST_TOKENS

NS = 1_000_000_000
MOST_SECONDS = 1_000_000_000

_NEGATIVE = re.compile(r"-[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"(-?)([0-9]{1,9})(?:\.([0-9]{1,18}))?", re.ASCII)


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or what is known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(names)})"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class Field:
    """How a value is read; ``read`` raises ValueError that says what it is instead."""

    read: Callable[[Any], Any]
    must: bool = True


def take(row: Mapping[str, Any], spec: Mapping[str, Field], say: Say) -> dict[str, Any] | None:
    """The values of a row by ``spec``, None if anything is wrong with it; all of that is said."""
    sound = True
    values: dict[str, Any] = {}
    if not row.keys() <= spec.keys():
        sound = False
        for key in row:
            if key not in spec:
                say(f"unknown key {key!r}{nearest(key, spec)}")
    for key, field in spec.items():
        if key in row:
            try:
                values[key] = field.read(row[key])
            except ValueError as error:
                sound = False
                say(f"{key}: {error}")
        elif field.must:
            sound = False
            say(f"missing {key!r}")
    return values if sound else None


def tokens(value: Any) -> int:
    """A length of 1 to MOST_TOKENS."""
    return _length(_integer(value), 1)


def tokens_or_none(value: Any) -> int:
    """A length that may be 0: of an answer that never came."""
    return _length(_integer(value), 0)


def count(value: Any) -> int:
    n = _integer(value)
    if n < 0:
        raise ValueError(f"{n} is negative")
    return n


def whole(value: Any) -> int:
    """A whole number that may be negative, as ids are."""
    return _integer(value)


def seconds(value: Any) -> int:
    """A time in s, as ns."""
    return _number(value, NS)


def milliseconds(value: Any) -> int:
    """A time in ms, as ns."""
    return _number(value, NS // 1000)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    return value


def words(value: Any) -> str:
    """Text that can be sent."""
    try:
        text(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"half a surrogate pair at character {error.start + 1}: no text") from error
    return str(value)


def anything(value: Any) -> Any:
    return value


def either(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{shown(value)} is none of {', '.join(words)}")
        return str(value)

    return read


def maybe(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``read``, or None for null and for an empty field."""
    return lambda value: None if value is None or value == "" else read(value)


def digits(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``read`` for the whole number that the text of a CSV field is."""

    def parsed(value: str) -> Any:
        if not ((value.isdigit() and value.isascii() and len(value) <= 18) or _NEGATIVE.fullmatch(value)):
            raise ValueError(f"{shown(value)} is not a whole number")
        return read(int(value))

    return parsed


def decimal_seconds(value: str) -> int:
    """The text of a CSV field as a time in s, exactly in ns."""
    found = _DECIMAL.fullmatch(value)
    if found is None:
        raise ValueError(f"{shown(value)} is not a number")
    if found[1]:
        raise ValueError(f"{shown(value)} is negative")
    return int(found[2]) * NS + int((found[3] or "")[:9].ljust(9, "0"))


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


def _length(n: int, least: int) -> int:
    if not least <= n <= MOST_TOKENS:
        raise ValueError(f"a length is {least} to {MOST_TOKENS:,} tokens, not {n}")
    return n


def _number(value: Any, unit_ns: int) -> int:
    if type(value) not in (int, float) or value != value:
        raise ValueError(f"{shown(value)} is not a number")
    if value < 0:
        raise ValueError(f"{shown(value)} is negative")
    if value * unit_ns > MOST_SECONDS * NS:
        raise ValueError(f"{shown(value)} is more than {MOST_SECONDS:,} s")
    ns: int = round(value * unit_ns)
    return ns
