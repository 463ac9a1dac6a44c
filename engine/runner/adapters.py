"""The LoRA adapters that a runner holds, whatever one of them is to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from engine.runner.base import AdapterChange, Row

T = TypeVar("T")
log = logging.getLogger(__name__)


class Residents(Generic[T]):
    """Adapters by digest. ``load(folder, digest)`` makes one; what it raises is told, and ends only the
    requests that need it (ENGINE E2)."""

    def __init__(self, load: Callable[[str, str], T]) -> None:
        self._load = load
        self._here: dict[str, T] = {}

    def get(self, digest: str | None) -> T | None:
        return None if digest is None else self._here.get(digest)

    def change(self, changes: Iterable[AdapterChange]) -> dict[str, str]:
        """Load and drop in order; returns why those that could not be loaded could not."""
        failed: dict[str, str] = {}
        for change in changes:
            self._here.pop(change.digest, None)
            failed.pop(change.digest, None)
            if change.folder is not None:
                try:
                    self._here[change.digest] = self._load(change.folder, change.digest)
                except Exception as error:
                    log.warning("adapter %s is not loaded: %s", change.digest, error)
                    failed[change.digest] = str(error) or type(error).__name__
        return failed

    def lacking(self, rows: Sequence[Row], failed: dict[str, str]) -> dict[int, str]:
        """Rows, by index, whose adapter is not here, each with why."""
        return {
            index: f"adapter {row.adapter}: {failed.get(row.adapter, 'not resident')}"
            for index, row in enumerate(rows)
            if row.adapter is not None and row.adapter not in self._here
        }
