"""What it takes to move blocks and to compute them again (ENGINE E40, E45).

By the cost model and the bandwidths of the configuration, each corrected by how long it really takes: a
running mean of measured over expected.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.runner.base import StepPlan
from engine.runner.cost import moving_seconds, prefill_seconds, step_moving, step_terms

_SMOOTH = 0.1
"""Weight of the latest measurement."""


class Prices:
    """Seconds. ``block_bytes`` 0: nothing ever moves, and nobody asks."""

    def __init__(self, config: EngineConfig, block_bytes: int) -> None:
        self.config = config
        self.block_bytes = block_bytes
        self.computing_factor = self.host_factor = self.disk_factor = 1.0
        """How long things take, in times of what is expected."""

    def computing(self, start: int, tokens: int) -> float:
        """To compute ``tokens`` behind ``start`` others."""
        return self.computing_factor * prefill_seconds(self.config.cost, start, tokens)

    def moving(self, host: int, disk: int = 0) -> float:
        """To move so many blocks between device and host, and between host and disk."""
        tiers, size = self.config.cache.tiers, self.block_bytes
        return self.host_factor * moving_seconds(tiers, size, host) + self.disk_factor * moving_seconds(
            tiers, size, 0, disk
        )

    def learn(self, plan: StepPlan, seconds: float, moving: float) -> None:
        """A step has taken ``seconds``, and ``moving`` of them its transfers."""
        if not self.block_bytes:
            return
        if plan.rows:
            expected = sum(step_terms(self.config.cost, plan))
            self.computing_factor = _mean(self.computing_factor, max(0.0, seconds - moving), expected)
        if plan.transfers:
            host, disk = step_moving(self.config.cache.tiers, self.block_bytes, plan.transfers)
            if disk:
                taken = max(0.0, moving - self.host_factor * host)
                self.disk_factor = _mean(self.disk_factor, taken, disk)
            else:
                self.host_factor = _mean(self.host_factor, moving, host)


def _mean(factor: float, taken: float, expected: float) -> float:
    return factor + _SMOOTH * (taken / expected - factor) if expected > 0 else factor
