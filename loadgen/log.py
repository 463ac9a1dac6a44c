"""The reads of one answer, one after the other in one piece of memory (MEASUREMENT C38).

```
stamp, 8 bytes | kernel's stamp, 8 | size, 4 | the bytes || the next read ..
```
At 100,000 reads a second what costs is memory that is touched, not instructions; and what lies so is handed
to the clerk as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from loadgen import native

_READ = struct.Struct("=qqI")


class Log:
    """Grows only. Stamps are ns; see `loadgen.raw.Raw`."""

    __slots__ = ("_bytes", "_count")

    def __init__(self) -> None:
        self._bytes, self._count = bytearray(), 0

    def add(self, t: int, real: int, data: bytes) -> None:
        self._bytes += _READ.pack(t, real, len(data)) + data
        self._count += 1

    def packed(self) -> bytes:
        return bytes(self._bytes)

    def unpack(self, packed: bytes) -> None:
        """Append what `packed` gave. Raises ValueError for anything else."""
        at = count = 0
        while at < len(packed):
            if len(packed) - at < _READ.size:
                raise ValueError("the log of an answer ends within a stamp")
            at += _READ.size + _READ.unpack_from(packed, at)[2]
            count += 1
        if at != len(packed):
            raise ValueError("the log of an answer ends within a read")
        self._bytes += packed
        self._count += count

    def __len__(self) -> int:
        """Reads in it."""
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and self._bytes == other._bytes

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def users(self) -> list[int]:
        """The client's stamps."""
        return [t for t, _, _ in self._reads()]

    @property
    def reals(self) -> list[int]:
        """The kernel's receive stamps, 0 = none."""
        return [real for _, real, _ in self._reads()]

    @property
    def chunks(self) -> list[bytes]:
        return [data for _, _, data in self._reads()]

    def _reads(self) -> Iterator[tuple[int, int, bytes]]:
        at, end = 0, len(self._bytes)
        while at < end:
            t, real, size = _READ.unpack_from(self._bytes, at)
            at += _READ.size
            yield t, real, bytes(self._bytes[at : at + size])
            at += size


def make_log() -> Log:
    """The quicker one of the two kinds."""
    log: Log = Log() if native.extension is None else native.extension.Log()
    return log


def log_of(users: Iterable[int], reals: Iterable[int], chunks: Iterable[bytes]) -> Log:
    """A log of three columns."""
    log = make_log()
    for t, real, data in zip(users, reals, chunks, strict=True):
        log.add(t, real, data)
    return log
