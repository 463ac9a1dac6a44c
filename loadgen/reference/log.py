"""The reference server's own record: when it read each request and wrote each token (MEASUREMENT C42).

A log is ``MAGIC`` and then one entry for each request, in order of their ends; all stamps are ns on
CLOCK_MONOTONIC. Entries of several processes may stand in one file, in any order. Layout of an entry,
little-endian: the fixed part (`_FIXED`), the request id (UTF-8), the stamp of each token event (int64),
how late each was against the script (uint32, ns; 4.29 s and more are 4.29 s).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.reference.answers import End
from loadgen.reference.lateness import Late
from loadgen.reference.requests import Request
from loadgen.reference.streams import Stream

MAGIC = b"HDRREF1\n"
_FIXED = struct.Struct("<QqqIHBBHB8s")
"""Index of arrival, read, head (-1 = nothing was written), token events, status, end, process, bytes of
the id, 1 if the client's window was full in between, digest of the body."""

Stamps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entry:
    """One request. ``stamps`` are taken just before the write that completes each token event; ``late`` is
    how far each is behind the script. A stream that ``blocked`` was late because the client did not read."""

    request_id: str
    arrival: int
    process: int
    read: int
    """The read of the request's last byte."""
    head: int | None
    status: int
    end: End
    blocked: bool
    digest: str
    """blake2b-64 of the body, hex: for clients that send no id."""
    stamps: Stamps
    late: Late


def encode(process: int, request: Request, stream: Stream, end: End, stamps: bytes, late: bytes) -> bytes:
    """One entry as it stands in the file; ``stamps`` and ``late`` are what the stream says of itself when it
    has ended so (`Stream.written`)."""
    name = request.request_id.encode()[:65_535]
    fixed = _FIXED.pack(
        stream.number,
        stream.base,
        stream.first,
        len(late) // 4,
        stream.answer.status,
        end,
        process,
        len(name),
        stream.blocked,
        blake2b(request.body, digest_size=8).digest(),
    )
    return b"".join((fixed, name, stamps, late))


def entries(data: bytes) -> Iterator[Entry]:
    """The entries of a log's bytes after its magic; half an entry at the end is left out."""
    at = 0
    while at + _FIXED.size <= len(data):
        arrival, read, head, n, status, end, process, size, blocked, digest = _FIXED.unpack_from(data, at)
        name = at + _FIXED.size
        stamps = name + size
        late = stamps + 8 * n
        at = late + 4 * n
        if at > len(data):
            return
        yield Entry(
            data[name:stamps].decode("utf-8", "replace"),
            arrival,
            process,
            read,
            head if head >= 0 else None,
            status,
            End(end),
            bool(blocked),
            digest.hex(),
            np.frombuffer(data, np.dtype("<i8"), n, stamps),
            np.frombuffer(data, np.dtype("<u4"), n, late),
        )


def complete(data: bytes) -> int:
    """Bytes of ``data`` (after the magic) that whole entries make."""
    at = 0
    while at + _FIXED.size <= len(data):
        _, _, _, n, _, _, _, size, _, _ = _FIXED.unpack_from(data, at)
        end = at + _FIXED.size + size + 12 * n
        if end > len(data):
            break
        at = end
    return at


def read_log(path: Path) -> list[Entry]:
    """Raises ValueError if the file is no log."""
    return list(entries(_after_magic(path.read_bytes(), path)))


def _after_magic(data: bytes, path: Path) -> bytes:
    if not data.startswith(MAGIC):
        raise ValueError(f"{path} is no log of the reference server: it does not begin with {MAGIC!r}")
    return data[len(MAGIC) :]


def merge(parts: Sequence[Path], into: Path) -> None:
    """One file of the logs of several processes."""
    with into.open("wb") as file:
        file.write(MAGIC)
        for part in parts:
            file.write(_after_magic(part.read_bytes(), part))


def ndjson(data: bytes) -> bytes:
    """A log's bytes after its magic as one JSON object a line."""
    return b"".join(_line(entry) for entry in entries(data))


def _line(entry: Entry) -> bytes:
    said = {
        "request_id": entry.request_id,
        "arrival": entry.arrival,
        "process": entry.process,
        "read_ns": entry.read,
        "head_ns": entry.head,
        "status": entry.status,
        "end": entry.end.name.lower(),
        "blocked": entry.blocked,
        "digest": entry.digest,
        "token_ns": entry.stamps.tolist(),
        "late_ns": entry.late.tolist(),
    }
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


class LogTail:
    """Reads what was added to the logs of running servers since the last look."""

    def __init__(self, parts: Sequence[Path]) -> None:
        self._at = dict.fromkeys(parts, len(MAGIC))

    def new(self) -> list[Entry]:
        found: list[Entry] = []
        for path, at in self._at.items():
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            whole = complete(data)
            self._at[path] = at + whole
            found += entries(data[:whole])
        return found


class LogFile:
    """One process's log while it is written: in pieces large enough that the server hardly notices."""

    PIECE = 65_536

    def __init__(self, path: Path | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._waiting = bytearray()
        if self._fd is not None:
            self._write(MAGIC)

    def append(self, entry: bytes) -> None:
        if self._fd is not None:
            self._waiting += entry
            if len(self._waiting) >= self.PIECE:
                self.flush()

    def flush(self) -> None:
        if self._fd is not None and self._waiting:
            data, self._waiting = self._waiting, bytearray()
            self._write(data)

    def close(self) -> None:
        """Idempotent."""
        if self._fd is not None:
            self.flush()
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            assert self._fd is not None
            view = view[os.write(self._fd, view) :]
