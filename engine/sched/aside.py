"""What a request has that waits aside while its K/V moves (ENGINE E26, E45)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from engine.kv.places import Entry

Tier = Literal["device", "host", "disk"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a block of K/V is to be had: in a device block, below the device, or in a swap slot."""

    tier: Tier
    block: int = 0
    entry: Entry | None = None
    slot: int = 0


@dataclass(slots=True, eq=False)
class Swapped:
    """The K/V of a victim in host memory: of its first ``computed`` tokens, one source per block."""

    computed: int
    sources: tuple[Source, ...]
    saving: int
    """Blocks whose move has not landed."""
    lost: bool = False
    """One of them failed: it has to be computed again."""


@dataclass(slots=True, eq=False)
class Loading:
    """K/V on its way into the blocks that a request holds. ``since`` in ns."""

    computed: int
    """Tokens whose K/V will be there."""
    todo: deque[tuple[int, Source]]
    """(block index, source) of what no step has taken yet, in order."""
    since: int
    slowest: Tier
    swapped: bool = False
    """It comes back from a swap; else it is a restore of cached blocks."""
    flying: int = 0
    """Moves in the step that is being executed."""
    steps: int = 0
    """Steps that have loaded blocks for it."""
    held: bool = False
    """A breakpoint has stopped it: nobody loses patience with it any more."""
    lost: int | None = None
    """The first block that could not be loaded."""

    @property
    def settled(self) -> bool:
        """Everything is there, or something never will be."""
        return not self.flying and (not self.todo or self.lost is not None)

    @property
    def may_fail(self) -> bool:
        """It is given up if it takes too long: a restore that waits for steps, and at no breakpoint."""
        return bool(self.todo) and not self.held and not self.swapped

    def failed(self, index: int) -> None:
        self.lost = index if self.lost is None else min(self.lost, index)
