"""What blocks in a worker's host or on its disk are worth to the decision (FLEET F21, ENGINE E45).

A worker restores so many of them as gain most, ``computing - moving`` > 0; the rest is computed again and is
no hit. Here the same is reckoned from what it tells of itself: the bytes of a block in its ``hello``, and in
its heartbeats how long computing and moving really take there.

F21's 0.75 and 0.25 are the most that a block below is worth: it may be gone before the request comes to it.
Where loading it costs more than the rest of a block, it is worth what it saves less what loading costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import CostModel, TiersConfig
from engine.fleet.router import Overlap
from engine.runner.cost import moving_seconds, prefill_seconds


@dataclass(frozen=True, slots=True)
class Restoring:
    """One worker's rates. ``factors``: how long it takes to compute, to move to and from the host, and to and
    from the disk, in times of what the configuration says. ``block_bytes`` 0: it has not told, and whatever
    it holds is taken to be restored."""

    cost: CostModel
    tiers: TiersConfig
    block_size: int
    block_bytes: int = 0
    factors: Sequence[float] = (1.0, 1.0, 1.0)

    def worth(self, have: Overlap) -> tuple[Overlap, float]:
        """What of it the worker will read from cache, and what that saves less what loading costs, in prefill
        blocks. Of a tier it pays to restore all or nothing, since computing costs the more the further on."""
        if not self.block_bytes or not (have.host or have.disk):
            return have, have.credit
        kept, best, saved = Overlap(have.device), 0.0, 0.0
        for most in (Overlap(have.device, have.host), have):
            computing, moving = self._seconds(most)
            if computing - moving > best:
                kept, best = most, computing - moving
                saved = (most.blocks - most.device) * best / computing
        return kept, min(kept.credit, have.device + saved)

    def _seconds(self, have: Overlap) -> tuple[float, float]:
        """What computing all that lies below the device would take, and what loading it."""
        blocks = have.host + have.disk
        compute, host, disk = self.factors
        computing = prefill_seconds(self.cost, have.device * self.block_size, blocks * self.block_size)
        # What comes from the disk passes through the host.
        moving = host * moving_seconds(self.tiers, self.block_bytes, blocks)
        moving += disk * moving_seconds(self.tiers, self.block_bytes, 0, have.disk)
        return compute * computing, moving
