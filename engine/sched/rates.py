"""How fast the pool works and how long answers get: what the gateway learns while serving (ENGINE E40)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.config import CostModel

WINDOW_S = 30.0
"""Busy seconds that a rate looks back over."""
ENOUGH_OUTPUTS = 20
"""Samples before a class's mean output is believed."""

_BUCKET_S = 1.0


@dataclass(slots=True)
class _Bucket:
    seconds: float = 0.0
    prefill: int = 0
    decode: int = 0


class BusyWindow:
    """One worker's computed tokens over its last 30 busy seconds; idle time does not count."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._buckets: deque[_Bucket] = deque([_Bucket()])
        self._seconds = 0.0
        self._since: int | None = None

    def begin(self, now: int) -> None:
        """The worker has something to do."""
        if self._since is None:
            self._since = now

    def end(self, now: int) -> None:
        """The worker has nothing left to do."""
        self._advance(now)
        self._since = None

    def computed(self, now: int, prefill: int = 0, decode: int = 0) -> None:
        """So many tokens of each kind were computed since the last call."""
        self._advance(now)
        self._buckets[-1].prefill += prefill
        self._buckets[-1].decode += decode

    def rates(self) -> tuple[float | None, float | None]:
        """(R_prefill, R_decode) in tokens/s, each None without a sample.

        A second in which both kinds were computed is split by their cost per token; what a step costs
        whatever it holds follows the rest.
        """
        p_tokens = d_tokens = 0
        p_seconds = d_seconds = 0.0
        for bucket in self._buckets:
            p_work, d_work = self._cost.b * bucket.prefill, self._cost.c * bucket.decode
            if p_work + d_work == 0:
                continue
            share = p_work / (p_work + d_work)
            p_tokens, d_tokens = p_tokens + bucket.prefill, d_tokens + bucket.decode
            p_seconds += share * bucket.seconds
            d_seconds += (1 - share) * bucket.seconds
        return _ratio(p_tokens, p_seconds), _ratio(d_tokens, d_seconds)

    def _advance(self, now: int) -> None:
        if self._since is None:
            return
        if self._buckets[-1].seconds >= _BUCKET_S:
            self._buckets.append(_Bucket())
        seconds = (now - self._since) / 1e9
        self._since = now
        self._buckets[-1].seconds += seconds
        self._seconds += seconds
        while len(self._buckets) > 1 and self._seconds - self._buckets[0].seconds >= WINDOW_S:
            self._seconds -= self._buckets.popleft().seconds


def _ratio(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens and seconds > 0 else None


class Rates:
    """R_prefill and R_decode of a pool, in tokens/s summed over its workers."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._workers: dict[int, BusyWindow] = {}

    def of(self, worker: int) -> BusyWindow:
        return self._workers.setdefault(worker, BusyWindow(self._cost))

    def prefill(self, worker: int) -> float | None:
        return self.of(worker).rates()[0]

    def pool(self) -> tuple[float, float] | None:
        """(R_prefill, R_decode), None until both have a sample."""
        prefill = decode = 0.0
        for window in self._workers.values():
            p, d = window.rates()
            prefill, decode = prefill + (p or 0.0), decode + (d or 0.0)
        return (prefill, decode) if prefill and decode else None


class OutputLengths:
    """E[out]: the mean output of a class, ``out_max`` until 20 of its requests have ended."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, int]] = {}

    def ended(self, class_: str, tokens: int) -> None:
        n, total = self._sums.get(class_, (0, 0))
        self._sums[class_] = n + 1, total + tokens

    def expected(self, class_: str, out_max: int) -> float:
        n, total = self._sums.get(class_, (0, 0))
        return min(total / n, out_max) if n >= ENOUGH_OUTPUTS else float(out_max)
