"""The nouns of the tiers below the device: how much fits, and what lies where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from engine.config import TiersConfig
from engine.kv.blocks import Content


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many blocks each tier takes. Host slots are numbered from 1: those of the cache, and behind them
    ``swap`` ones for swapped requests. ``per_step`` bounds the moves of one step, half of it each way."""

    block_bytes: int = 0
    host: int = 0
    swap: int = 0
    disk: int = 0
    per_step: int = 2

    @classmethod
    def of(cls, tiers: TiersConfig, block_bytes: int) -> Sizes:
        """Raises ValueError if a tier is too small for a block."""
        if not (tiers.host or tiers.swap or tiers.disk):
            return cls()
        if block_bytes < 1:
            raise ValueError("cache.tiers is set, and how many bytes a block takes is not known")
        disk = tiers.disk.size if tiers.disk else 0
        for name, size in (("host", tiers.host), ("disk.size", disk), ("swap", tiers.swap)):
            if size and size < block_bytes:
                raise ValueError(f"cache.tiers.{name} {size} is less than one block of {block_bytes} bytes")
        return cls(
            block_bytes,
            (tiers.host or 0) // block_bytes,
            tiers.swap // block_bytes,
            disk // block_bytes,
            max(2, tiers.in_flight // block_bytes),
        )

    @property
    def slots(self) -> int:
        """Host slots in all."""
        return self.host + self.swap


class Copy(Enum):
    """Whether a tier holds a content."""

    NONE = auto()
    COMING = auto()
    """Its move is decided and has not landed."""
    THERE = auto()


@dataclass(slots=True, eq=False)
class Entry:
    """A content below the device, and where."""

    content: Content
    host: Copy = Copy.NONE
    slot: int = 0
    """Its host slot, 0 = none."""
    disk: Copy = Copy.NONE
    pins: int = 0
    """Restores that have chosen it and not yet planned its move: its places stay."""
    gone: bool = False
    """Dropped while pinned or on its way; its places come free after that."""
    expires: int | None = None
    """ns; None while a device copy exists or if it has no life."""
