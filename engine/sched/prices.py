"""What it takes to move blocks and to compute them again (ENGINE E40, E45).

By the cost model and the bandwidths of the configuration, each corrected by how long it really takes: a
running mean of measured over expected. Steps compute all the time, so what was learned of computing is soon
unlearned; a move that seems too dear is not made and not measured, so what was learned of moving ages.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.runner.base import StepPlan
from engine.runner.cost import moving_seconds, prefill_seconds, step_moving, step_terms

_SMOOTH = 0.1
"""Weight of the latest measurement."""
HALF_LIFE = 16
"""After so many refusals what was learned is believed half: a factor of 9 counts as 5. So a move that would
pay at ``f`` times of what is expected is tried again after ``HALF_LIFE*log2((factor-1) / (f-1))`` of them."""
_AGED: float = 0.5 ** (1 / HALF_LIFE)


class Factor:
    """How long moves take, in times of what is expected."""

    def __init__(self) -> None:
        self._mean = self._trust = 1.0

    @property
    def now(self) -> float:
        return 1.0 + self._trust * (self._mean - 1.0)

    def measured(self, taken: float, expected: float) -> None:
        """The less the mean was believed the more this counts; it is believed in full then."""
        if expected > 0:
            self._mean += (1.0 - (1.0 - _SMOOTH) * self._trust) * (taken / expected - self._mean)
            self._trust = 1.0

    def refused(self) -> None:
        """It has kept a move from being made, and so from being measured."""
        if self._mean > 1.0:
            self._trust *= _AGED


class Prices:
    """Seconds. ``block_bytes`` 0: nothing ever moves, and nobody asks."""

    def __init__(self, config: EngineConfig, block_bytes: int) -> None:
        self.config = config
        self.block_bytes = block_bytes
        self.computing_factor = 1.0
        """How long steps take, in times of what is expected."""
        self.host, self.disk = Factor(), Factor()

    def computing(self, start: int, tokens: int) -> float:
        """To compute ``tokens`` behind ``start`` others."""
        return self.computing_factor * prefill_seconds(self.config.cost, start, tokens)

    def moving(self, host: int, disk: int = 0) -> float:
        """To move so many blocks between device and host, and between host and disk."""
        on_host, on_disk = self._expected(host, disk)
        return self.host.now * on_host + self.disk.now * on_disk

    def hoped(self, host: int, disk: int = 0) -> float:
        """The same, if they took no longer than is expected."""
        on_host, on_disk = self._expected(host, disk)
        return min(1.0, self.host.now) * on_host + min(1.0, self.disk.now) * on_disk

    def refused(self, disk: bool = False) -> None:
        """A move between device and host, and from ``disk``, was not worth ``moving``, but ``hoped``."""
        self.host.refused()
        if disk:
            self.disk.refused()

    def _expected(self, host: int, disk: int) -> tuple[float, float]:
        tiers, size = self.config.cache.tiers, self.block_bytes
        return moving_seconds(tiers, size, host), moving_seconds(tiers, size, 0, disk)

    def learn(self, plan: StepPlan, seconds: float, moving: float) -> None:
        """A step has taken ``seconds``, and ``moving`` of them its transfers."""
        if not self.block_bytes:
            return
        if plan.rows:
            expected = sum(step_terms(self.config.cost, plan))
            if expected > 0:
                taken = max(0.0, seconds - moving)
                self.computing_factor += _SMOOTH * (taken / expected - self.computing_factor)
        if plan.transfers:
            host, disk = step_moving(self.config.cache.tiers, self.block_bytes, plan.transfers)
            if disk:
                self.disk.measured(max(0.0, moving - self.host.now * host), disk)
            else:
                self.host.measured(moving, host)
