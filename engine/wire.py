"""Messages as bytes: a 4-byte big-endian length, then msgpack ``[kind, {field: value}]`` (JOINTS 9)."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgpack

from engine import messages
from engine.plain import PlainError, codec

MAX_FRAME = 64 * 1024 * 1024
"""Bytes. A longer frame means that the peer does not speak this protocol."""

_LENGTH = struct.Struct(">I")
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (*get_args(messages.ToWorker), *get_args(messages.FromWorker))
}


class WireError(Exception):
    """The peer sent what is no message."""


def encode(message: messages.ToWorker | messages.FromWorker) -> bytes:
    """One frame, ready to be written."""
    body: bytes = msgpack.packb([type(message).__name__, codec(type(message)).encode(message)])
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> Any:
    """The message of one frame's body. Raises WireError."""
    try:
        name, fields = msgpack.unpackb(body, strict_map_key=False)
        return codec(_KINDS[name]).decode(fields, name)
    except (KeyError, PlainError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"not a message: {error!r}") from error


class Frames:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Messages completed by ``data``, in order. Raises WireError."""
        self._buffer += data
        complete, start = [], 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            complete.append(decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return complete
