"""When the tokens of an answer are due, and what befalls it: draws from the script's seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadgen.reference.script import Failure, Jitter, Script
from loadgen.streams import stream

_NS = 1_000_000_000


class Timetable:
    """The draws of one server process, in order of arrival."""

    def __init__(self, script: Script, process: int = 0) -> None:
        self._script = script
        self._regular: dict[int, tuple[int, ...]] = {}
        self._jitter = stream(script.seed, "reference", "jitter", process)
        self._failure = stream(script.seed, "reference", "failure", process)

    def offsets(self, n: int) -> tuple[int, ...]:
        """ns from the read of the request to each of ``n`` tokens; never decreasing."""
        script = self._script
        if script.jitter is None:
            if n not in self._regular:
                self._regular[n] = _stalled(script, _gaps(script, n))
            return self._regular[n]
        return _stalled(script, np.maximum(0.0, _gaps(script, n) + _drawn(script.jitter, n, self._jitter)))

    def failure(self) -> Failure | None:
        """What befalls the next request; None = it is served."""
        if not self._script.failures:
            return None
        left = float(self._failure.random())
        for failure in self._script.failures:
            if left < failure.share:
                return failure
            left -= failure.share
        return None


def _gaps(script: Script, n: int) -> NDArray[np.float64]:
    gaps = np.full(n, script.itl)
    gaps[:1] = script.ttft
    return gaps


def _stalled(script: Script, gaps: NDArray[np.float64]) -> tuple[int, ...]:
    for stall in script.stalls:
        if stall.at <= len(gaps):
            gaps[stall.at - 1] += stall.for_
    return tuple(np.cumsum(np.rint(gaps * _NS).astype(np.int64)).tolist())


def _drawn(jitter: Jitter, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    match jitter.law:
        case "uniform":
            return rng.uniform(-jitter.scale, jitter.scale, n)
        case "normal":
            return rng.normal(0.0, jitter.scale, n)
        case "exponential":
            return rng.exponential(jitter.scale, n)
