"""Dataclasses to plain values (dict, list, str, numbers, bytes) and back, driven by their type hints.

One codec per type, made once: messages between processes and configuration files share it.

=================  =======================
type               plain
=================  =======================
dataclass          dict of its fields
enum               its value
array("I")         bytes, 4 a token, little-endian on every machine we run on
tuple, list        list
Mapping            dict
anything else      itself
=================  =======================
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from array import array
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class PlainError(ValueError):
    """A plain value that does not fit the type; the message begins with the path of keys to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    encode: Callable[[Any], Any]
    decode: Callable[[Any, str], Any]
    """``decode(plain, path)``; path is only for error messages."""
    trivial: bool = False
    """Encoding changes nothing, so containers of it may be handed over as they are."""


def to_plain(value: Any) -> Any:
    """The plain form of a dataclass."""
    return codec(type(value)).encode(value)


def from_plain(kind: type[T], plain: Any, path: str = "") -> T:
    """The dataclass that ``plain`` describes. Absent fields take their defaults; unknown keys, missing
    values and wrong types raise PlainError."""
    return cast(T, codec(kind).decode(plain, path))


def codec(hint: Any) -> Codec:
    """The codec of one type hint, made once."""
    return _codec(hint)


@cache
def _codec(hint: Any) -> Codec:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return codec(arguments[0])
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is Literal:
        return Codec(_same, lambda plain, path: _one_of(plain, arguments, path), trivial=True)
    if hint is array:
        return Codec(lambda value: value.tobytes(), lambda plain, _: array("I", plain))
    if origin in (tuple, list):
        return _sequence(origin, codec(arguments[0]))
    if origin in (dict, Mapping):
        return _mapping(codec(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _fields(cast(type[Any], hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Codec(lambda value: value.value, lambda plain, path: _member(hint, plain, path))
    return Codec(_same, _scalar(hint), trivial=True)


class _ArrayHint:
    """Stands in for ``Tokens`` in hints: array is not subscriptable before Python 3.12."""

    def __class_getitem__(cls, item: Any) -> Any:
        return array


def _same(value: Any) -> Any:
    return value


def _scalar(hint: Any) -> Callable[[Any, str], Any]:
    accepted = (float, int) if hint is float else hint

    def decode(plain: Any, path: str) -> Any:
        if hint is not Any and (
            not isinstance(plain, accepted) or (isinstance(plain, bool) and hint is not bool)
        ):
            raise PlainError(f"{path}: expected {hint.__name__}, not {plain!r}")
        return plain

    return decode


def _optional(arguments: tuple[Any, ...]) -> Codec:
    (some,) = [argument for argument in arguments if argument is not type(None)]
    inner = codec(some)
    return Codec(
        lambda value: None if value is None else inner.encode(value),
        lambda plain, path: None if plain is None else inner.decode(plain, path),
        inner.trivial,
    )


def _one_of(plain: Any, allowed: tuple[Any, ...], path: str) -> Any:
    if plain not in allowed:
        raise PlainError(f"{path}: {plain!r} is none of {', '.join(map(str, allowed))}")
    return plain


def _member(kind: type[Enum], plain: Any, path: str) -> Enum:
    return kind(_one_of(plain, tuple(member.value for member in kind), path))


def _sequence(kind: type[Any], item: Codec) -> Codec:
    def decode(plain: Any, path: str) -> Any:
        if not isinstance(plain, list | tuple):
            raise PlainError(f"{path}: expected a list, not {plain!r}")
        return kind(item.decode(value, f"{path}[{i}]") for i, value in enumerate(plain))

    if item.trivial:
        return Codec(list, decode)
    return Codec(lambda values: [item.encode(value) for value in values], decode)


def _mapping(item: Codec) -> Codec:
    def decode(plain: Any, path: str) -> Any:
        if not isinstance(plain, Mapping):
            raise PlainError(f"{path}: expected a mapping, not {plain!r}")
        return {key: item.decode(value, _join(path, str(key))) for key, value in plain.items()}

    if item.trivial:
        return Codec(dict, decode)
    return Codec(lambda values: {key: item.encode(value) for key, value in values.items()}, decode)


def _fields(kind: type[Any]) -> Codec:
    hints = get_type_hints(kind, localns={"Tokens": _ArrayHint}, include_extras=True)
    parts = {field.name: codec(hints[field.name]) for field in dataclasses.fields(kind)}
    encoders = [(name, part.encode) for name, part in parts.items()]

    def encode(value: Any) -> dict[str, Any]:
        return {name: encode_field(getattr(value, name)) for name, encode_field in encoders}

    def decode(plain: Any, path: str) -> Any:
        if not isinstance(plain, Mapping):
            raise PlainError(f"{path or kind.__name__}: expected a mapping, not {plain!r}")
        for key in plain.keys() - parts.keys():
            near = difflib.get_close_matches(str(key), parts, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise PlainError(f"{_join(path, str(key))}: unknown key{hint}")
        try:
            return kind(**{key: parts[key].decode(value, _join(path, key)) for key, value in plain.items()})
        except TypeError as error:
            raise PlainError(f"{path or kind.__name__}: {error}") from error

    return Codec(encode, decode)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
