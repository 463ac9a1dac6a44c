"""What came in and is not understood yet, in order; beyond a limit it waits on disk."""

from __future__ import annotations

import tempfile
from collections import deque
from pathlib import Path
from typing import IO

LIMIT = 64 * 1024 * 1024
"""Bytes held in memory."""


class Backlog:
    """A first-in first-out queue of byte strings.

    ```
    oldest [ memory: head ][ file ][ memory: tail is the file's end ] newest
    ```
    Once something is in the file, all that comes goes there, until it has been read to its end. The file has
    no name, so that nothing is left behind whatever happens.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self._head: deque[bytes] = deque()
        self._held = 0
        self._file: IO[bytes] | None = None
        self._sizes: deque[int] = deque()
        self._read = 0
        self._written = 0

    def __len__(self) -> int:
        return len(self._head) + len(self._sizes)

    def put(self, item: bytes) -> None:
        if self._file is None and self._held + len(item) <= self._limit:
            self._head.append(item)
            self._held += len(item)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  lives as long as this
            self._read = self._written = 0
        self._file.seek(self._written)
        self._file.write(item)
        self._written += len(item)
        self._sizes.append(len(item))

    def get(self) -> bytes:
        """The oldest. Raises IndexError if there is none."""
        if not self._head and self._file is not None:
            self._refill()
        item = self._head.popleft()
        self._held -= len(item)
        return item

    def _refill(self) -> None:
        """Read a part of the file back; at its end it is given up."""
        assert self._file is not None
        self._file.seek(self._read)
        while self._sizes and (not self._head or self._held + self._sizes[0] <= self._limit // 4):
            item = self._file.read(self._sizes.popleft())
            self._read += len(item)
            self._held += len(item)
            self._head.append(item)
        if not self._sizes:
            self._file.close()
            self._file = None
