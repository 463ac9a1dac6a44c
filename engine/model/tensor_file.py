"""Tensors as bytes, out of a safetensors file. Needs neither torch nor safetensors.

The format: 8 bytes little-endian, the length of a JSON header; the header, ``{name: {"dtype", "shape",
"data_offsets": [begin, end]}}``; the bytes of the tensors without gaps, offsets counted from the header's
end (https://github.com/huggingface/safetensors).

Files are read, not mapped: a mapped file that shrinks under us, in a download that starts over for instance,
ends the process with SIGBUS; read, it is an error with the numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
"""How a value is stored, and its bits that are all set in NaN and infinity (IEEE 754)."""
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a value in the types that weights come in."""
_LENGTH = 8
_MOST_HEADER = 100_000_000
"""Bytes, as the library itself has it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a header: it takes the bytes ``begin .. end`` of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """``data`` is writable, because torch only looks into such buffers without a warning."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def finite(self) -> bool:
        """Whether there is neither a NaN nor an infinity in it."""
        kind, exponent = _EXPONENTS[self.dtype]
        return not ((np.frombuffer(self.data, kind) & exponent) == exponent).any()


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes | bytearray, /) -> None: ...


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a file. Raises ValueError naming the file and what is wrong, OSError."""
    return dict(each_tensor(path))


def each_tensor(path: Path, hashed: Hash | None = None) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of a file, one read after the other; ``hashed`` takes in every byte of it. Raises as
    read_tensors, where the file ends early or changes too."""
    header = read_header(path)
    with path.open("rb") as file:
        start = min((entry.begin for entry in header.values()), default=0)
        head = file.read(start)
        if hashed is not None:
            hashed.update(head)
        for name, entry in header.items():
            content = bytearray(entry.end - entry.begin)
            if (found := file.readinto(content)) != len(content):
                raise ValueError(
                    f"{path}: ends at byte {entry.begin + found} in tensor {name}, its header says "
                    f"{entry.end}: it changes while it is read"
                )
            if hashed is not None:
                hashed.update(content)
            yield name, StoredTensor(entry.dtype, entry.shape, memoryview(content))


def read_header(path: Path) -> dict[str, Entry]:
    """What the file holds, in the order of the bytes. Raises ValueError naming the file and what is wrong,
    a length other than the header's too: a download that was cut off. OSError."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(size - _LENGTH, _MOST_HEADER):
            raise ValueError(
                f"{path}: not a safetensors file, or a torn one: {size} bytes cannot hold its header"
            )
        text = file.read(length)
    try:
        described = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from error
    start = _LENGTH + length
    entries = {name: _entry(path, name, entry, start) for name, entry in described.items()}
    entries = dict(sorted(entries.items(), key=lambda item: item[1].begin))
    end = start
    for name, entry in entries.items():
        if entry.begin != end:
            raise ValueError(f"{path}: tensor {name} begins at byte {entry.begin}, not at {end}")
        end = entry.end
    if end != size:
        raise ValueError(f"{path}: has {size} bytes, its header says {end}: it is torn, fetch it again")
    return entries


def _entry(path: Path, name: str, entry: Any, start: int) -> Entry:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise TypeError("negative or no whole numbers")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: tensor {name} is described by {entry!r}: {error!r}") from None
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        raise ValueError(f"{path}: tensor {name} is {dtype}, this engine reads {', '.join(WIDTHS)}")
    expected = math.prod(shape) * WIDTHS[dtype]
    if end - begin != expected:
        raise ValueError(
            f"{path}: tensor {name} {list(shape)} takes {expected} bytes, not the {end - begin} from "
            f"{begin} to {end}"
        )
    return Entry(dtype, shape, start + begin, start + end)
