"""What is remembered of a cached block's use, and what an eviction policy is asked and told about it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

Key = tuple[bool, Hashable]
"""(has a copy in a slower tier, the policy's key)."""
Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """Who gives a block back. ``owner`` is its tenant or session, whichever ``footprint_of`` names."""

    life: int | None = None
    """ns that it was promised to stay; None = no promise."""
    rank: int = 0
    class_: str = "default"
    owner: str = "default"


@dataclass(slots=True)
class Uses:
    """How a block has been used since it got its content. Times in ns."""

    life: int | None = None
    """The longest of its users' (ENGINE E15)."""
    rank: int | None = None
    """Of its most urgent user."""
    class_: str = "default"
    owner: str = "default"
    hits: int = 0
    start: int = 0
    """Position of its first token."""
    released: int = 0

    @property
    def expires(self) -> int | None:
        """When its life ends if nobody uses it again."""
        return None if self.life is None else self.released + self.life

    def add(self, use: Use) -> None:
        """One more user has given it back."""
        if use.life is not None:
            self.life = max(use.life, self.life or 0)
        self.rank = use.rank if self.rank is None else min(self.rank, use.rank)
        self.class_, self.owner = use.class_, use.owner


class Eviction:
    """A policy; this one is ``lru``. The hooks from ``released`` on tell what happens to blocks, for
    policies that learn."""

    def key(self, uses: Uses) -> Hashable:
        """In which list the block waits. It must not change while it waits there."""
        return None

    def rank(self, key: Key, uses: Uses, now: int) -> Rank:
        """Sort key of a list's head; the smallest goes first."""
        return (uses.released,)

    def contenders(self, lists: Iterable[Key]) -> Iterable[Key]:
        """The lists whose heads are compared, of those that hold anything."""
        return lists

    def resized(self, key: Key, length: int) -> None:
        """A list has one block more or less than before."""

    def released(self, block: int, uses: Uses) -> None:
        """A block begins to wait."""

    def hit(self, block: int, now: int) -> None:
        """It is used again."""

    def evicted(self, block: int, digest: bytes | None) -> None:
        """It lost its content; ``digest`` if that was the last copy."""

    def wanted(self, digest: bytes, now: int) -> None:
        """Content was computed or brought back; it may have been evicted before."""

    def forgotten(self, digest: bytes) -> None:
        """Nobody remembers that this content was evicted."""

    def cleared(self) -> None:
        """No block has any content, and nobody remembers any."""
