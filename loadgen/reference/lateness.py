"""How late writes were, kept small: to 1 µs up to 65 ms, to 1 ms beyond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Late = NDArray[np.uint32]

_FINE, _COARSE = 10, 20
"""Bits of ns that a bucket drops: 1.024 µs, 1.049 ms."""
_EDGE = 1 << 26
_FOLD = 32_768
"""Bytes that are counted together."""


class Lateness:
    """Adding costs next to nothing: what was added is counted in bulk."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0
        self._fine = np.zeros(_EDGE >> _FINE, np.int64)
        self._coarse = np.zeros(1 << (32 - _COARSE), np.int64)
        self.longest_ns = 0

    def add(self, late_ns: bytes) -> None:
        """The bytes of a `Late`."""
        self._waiting.append(late_ns)
        self._size += len(late_ns)
        if self._size >= _FOLD:
            self._fold()

    @property
    def count(self) -> int:
        self._fold()
        return int(self._fine.sum() + self._coarse.sum())

    def quantile_us(self, q: float) -> float | None:
        """The upper edge of the bucket that holds the quantile, at most the longest; None without data."""
        self._fold()
        total = int(self._fine.sum() + self._coarse.sum())
        if total == 0:
            return None
        both = np.concatenate([self._fine, self._coarse])
        at = int(np.searchsorted(np.cumsum(both), q * (total - 1), side="right"))
        fine = len(self._fine)
        edge = (at + 1) << _FINE if at < fine else (at - fine + 1) << _COARSE
        return min(edge, self.longest_ns) / 1000

    def _fold(self) -> None:
        if not self._size:
            return
        late = np.frombuffer(b"".join(self._waiting), np.uint32)
        self._waiting, self._size = [], 0
        self.longest_ns = max(self.longest_ns, int(late.max()))
        near = late < _EDGE
        for counts, buckets in ((self._fine, late[near] >> _FINE), (self._coarse, late[~near] >> _COARSE)):
            found = np.bincount(buckets)  # up to the last of them: all are half a megabyte
            counts[: len(found)] += found
