"""Texts that are wanted again soon, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

OVERHEAD = 300
"""Bytes of an entry beside its text."""


class TextCache:
    """The texts that were used last, of ``limit`` bytes together. For use from any thread."""

    def __init__(self, limit: int = 64_000_000) -> None:
        self._limit = limit
        self._texts: OrderedDict[Hashable, str] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def get(self, key: Hashable, make: Callable[[], str]) -> str:
        """The text of ``key``, made if it is not here. Equal keys must give equal texts."""
        with self._lock:
            text = self._texts.get(key)
            if text is not None:
                self._texts.move_to_end(key)
                return text
        text = make()
        with self._lock:
            self._keep(key, text)
        return text

    def _keep(self, key: Hashable, text: str) -> None:
        size = len(text) + OVERHEAD
        if key in self._texts or size > self._limit // 2:
            return
        self._texts[key] = text
        self.size += size
        while self.size > self._limit:
            _, oldest = self._texts.popitem(last=False)
            self.size -= len(oldest) + OVERHEAD
