"""How fast the pool works and how long answers get: what is learned while serving (ENGINE E40)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.config import CostModel, EngineConfig
from engine.runner.base import StepPlan
from engine.runner.cost import prefill_share

WINDOW_S = 30.0
"""Busy seconds that a rate looks back over."""
ENOUGH_OUTPUTS = 20
"""Samples before a class's outputs are believed."""
RECENT_OUTPUTS = 200

_BUCKET_S = 1.0


@dataclass(slots=True)
class _Kind:
    tokens: int = 0
    seconds: float = 0.0

    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None


@dataclass(slots=True)
class _Bucket:
    prefill: _Kind = field(default_factory=_Kind)
    decode: _Kind = field(default_factory=_Kind)

    @property
    def seconds(self) -> float:
        return self.prefill.seconds + self.decode.seconds


class BusyWindow:
    """One worker's computed tokens over its last 30 busy seconds, those in which a step ran. A mixed step's
    time is split between its kinds by the cost model's terms."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._buckets: deque[_Bucket] = deque([_Bucket()])
        self._seconds = 0.0

    def stepped(self, plan: StepPlan, seconds: float) -> None:
        """A step was computed and took so long."""
        decode = plan.decodes
        prefill = plan.tokens - decode
        if not prefill and not decode:
            return  # it only moved blocks
        if self._buckets[-1].seconds >= _BUCKET_S:
            self._buckets.append(_Bucket())
        bucket, share = self._buckets[-1], prefill_share(self._cost, plan, prefill, decode)
        bucket.prefill.tokens += prefill
        bucket.prefill.seconds += share * seconds
        bucket.decode.tokens += decode
        bucket.decode.seconds += (1 - share) * seconds
        self._seconds += seconds
        while len(self._buckets) > 1 and self._seconds - self._buckets[0].seconds >= WINDOW_S:
            self._seconds -= self._buckets.popleft().seconds

    def rates(self) -> tuple[float | None, float | None]:
        """(R_prefill, R_decode) in tokens/s, each None without a sample."""
        prefill, decode = _Kind(), _Kind()
        for bucket in self._buckets:
            for total, part in ((prefill, bucket.prefill), (decode, bucket.decode)):
                total.tokens += part.tokens
                total.seconds += part.seconds
        return prefill.rate(), decode.rate()


class Rates:
    """R_prefill and R_decode of a pool, in tokens/s summed over its workers, as these tell them.

    ``expected`` is the R_prefill of one worker by the cost model, which stands until it has told its own."""

    def __init__(self, config: EngineConfig) -> None:
        self._workers: dict[int, tuple[float | None, float | None]] = {}
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        cost, chunk = config.cost, min(config.scheduler.prefill_chunk, config.scheduler.max_step_tokens)
        self._expected = chunk / (cost.a + cost.b * chunk)
        self._size = config.workers

    def hears(self, worker: int, prefill: float | None, decode: float | None) -> None:
        self._workers[worker] = prefill, decode

    def forget(self, worker: int) -> None:
        """It is gone: it adds nothing to the pool until its next life has computed something."""
        self._workers.pop(worker, None)

    def prefill(self, worker: int) -> float:
        """R_prefill of one worker."""
        return self._workers.get(worker, (None, None))[0] or self._expected

    def pool_prefill(self) -> float:
        """R_prefill of the pool, by the model before both rates are known."""
        pool = self.pool()
        return pool[0] if pool else self._size * self._expected

    def pool(self) -> tuple[float, float] | None:
        """(R_prefill, R_decode), None until both have a sample."""
        prefill = sum(p or 0.0 for p, _ in self._workers.values())
        decode = sum(d or 0.0 for _, d in self._workers.values())
        return (prefill, decode) if prefill and decode else None


@dataclass(slots=True)
class _Lengths:
    ended: int = 0
    tokens: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_OUTPUTS))


class OutputLengths:
    """How long the answers of a class get, in tokens of one choice."""

    def __init__(self) -> None:
        self._classes: dict[str, _Lengths] = {}

    def ended(self, class_: str, tokens: int) -> None:
        lengths = self._classes.setdefault(class_, _Lengths())
        lengths.ended += 1
        lengths.tokens += tokens
        lengths.recent.append(tokens)

    def expected(self, class_: str, out_max: int) -> float:
        """E[out]: the mean of the class, ``out_max`` until 20 of its requests have ended."""
        lengths = self._classes.get(class_)
        if lengths is None or lengths.ended < ENOUGH_OUTPUTS:
            return float(out_max)
        return min(lengths.tokens / lengths.ended, out_max)

    def short(self, class_: str, out_max: int) -> int:
        """The 10th percentile of its last answers; 1, the shortest that there is, until 20 have ended."""
        lengths = self._classes.get(class_)
        if lengths is None or lengths.ended < ENOUGH_OUTPUTS:
            return 1
        return min(sorted(lengths.recent)[len(lengths.recent) // 10], out_max)
