"""Who may pass the request at the head of the backlog while it lacks capacity (ENGINE E25).

It reserves t*, when enough of the running will have ended for its need. Another passes if it is gone by
then, or if what it takes is spare at t*::

    blocks free
      ^              ┌───────
      |        ┌─────┘ spare
      |- - - - ┼ - - - - - - -  the head's need
      |   ┌────┘
      └───┴────┴─────┴─────> steps: each jump is an end
               t*
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

LOOK_AHEAD = 8
"""So many behind the head are looked at in a step, so that its cost does not grow with the backlog."""


class Stay(NamedTuple):
    """A request's stay: step number ``end`` will be its last, and ``blocks`` come free then."""

    end: int
    blocks: int


@dataclass(slots=True)
class Reservation:
    """t* is the end of step ``until``; ``spare`` blocks are free then beyond the head's need."""

    until: float
    spare: int

    def allows(self, stay: Stay) -> bool:
        """The head comes no later for it."""
        return stay.end <= self.until or stay.blocks <= self.spare

    def entered(self, stay: Stay) -> None:
        """It has passed; what it holds beyond t* is spare no more."""
        if stay.end > self.until:
            self.spare -= stay.blocks


def reserve(
    stays: Iterable[Stay],
    free: int,
    need: int,
    *,
    step: int = 0,
    growth: float = 0.0,
    shared: int = 0,
    headroom: int = 0,
) -> Reservation:
    """The reservation of a head that needs ``need`` blocks of which ``free`` are there.

    ``growth`` = blocks that each of those who still run takes per step from ``step`` on. ``shared`` blocks
    are counted on more than once, by several of the stays or by one and the head: none of them is taken
    for spare. ``headroom`` is kept free while anybody runs: the head may have it after the last end, nobody
    beside it may. If even the last end does not free enough, what the head waits for is no end, and nobody
    delays it: t* is infinite.
    """
    ends = sorted(stays)
    for index, stay in enumerate(ends):
        still = len(ends) - index - 1
        free += stay.blocks
        spare = free - math.ceil(still * growth * (stay.end - step)) - need
        if spare >= (0 if still else -headroom):
            return Reservation(stay.end, max(0, spare - shared))
    return Reservation(math.inf, 0)
