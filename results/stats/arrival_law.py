"""How requests arrived: what is reported of it, and whether it was by the law that its name states
(MEASUREMENT C18, C19). Times are ns, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, gammainc, kolmogorov, ndtr, pdtr, pdtrc

from results.stats.quantiles import Values

Times = NDArray[np.int64]

NS = 1_000_000_000
WIDTHS = {"dispersion_100ms": 100_000_000, "dispersion_1s": NS}
"""Bins of the index of dispersion of counts, ns."""
FEWEST = 100
"""Arrivals that a law test needs; with fewer its approximations do not hold."""
_PHASES = {"most_at_one_phase_of_a_second": 1_000_000, "most_in_one_ms_of_a_second": 1_000}
"""Cells that a second is cut into, to find arrivals that keep to one place of it, to the µs or roughly."""


@dataclass(frozen=True, slots=True)
class ArrivalFacts:
    """Arrivals in a window. None = undefined; ``reasons`` says why."""

    n: int
    rate: float | None
    """1/s."""
    gap_cv: float | None
    """Standard deviation / mean of the gaps: 0 constant, 1 Poisson, above 1 in clumps."""
    gap_lag1: float | None
    """Correlation of each gap with the next one."""
    dispersion_100ms: float | None
    dispersion_1s: float | None
    """Variance / mean of the counts in whole bins of the window: 1 Poisson at every width."""
    peak_1s: int
    """Most arrivals in any 1 s."""
    first_to_last_s: float | None
    """Of a burst: how long issuing it took (C19)."""
    reasons: dict[str, str] = field(default_factory=dict)


def arrival_facts(times: Times, a: int, b: int) -> ArrivalFacts:
    """Facts of the arrivals in [a, b)."""
    inside = times[(times >= a) & (times < b)]
    n = len(inside)
    gaps = np.diff(inside).astype(np.float64)
    reasons: dict[str, str] = {}
    if n < 3:
        reasons |= dict.fromkeys(("gap_cv", "gap_lag1"), "n<3")
    elif gaps.mean() == 0:
        reasons |= dict.fromkeys(("gap_cv", "gap_lag1"), "all at once")
    elif gaps.std() == 0:
        reasons["gap_lag1"] = "the gaps are all equal"
    counts = {name: _counts(inside, a, b, width) for name, width in WIDTHS.items()}
    for name, bins in counts.items():
        if len(bins) < 2 or not bins.any():
            reasons[name] = "fewer than two bins" if len(bins) < 2 else "no arrivals"
    if b <= a:
        reasons["rate"] = "an empty window"
    if n < 2:
        reasons["first_to_last_s"] = "n<2"
    return ArrivalFacts(
        n=n,
        rate=None if "rate" in reasons else n / ((b - a) / NS),
        gap_cv=None if "gap_cv" in reasons else float(gaps.std() / gaps.mean()),
        gap_lag1=None if "gap_lag1" in reasons else _lag1(gaps),
        peak_1s=_peak(inside),
        first_to_last_s=None if n < 2 else float(inside[-1] - inside[0]) / NS,
        reasons=reasons,
        **{name: None if name in reasons else _dispersion(bins) for name, bins in counts.items()},
    )


def _counts(times: Times, a: int, b: int, width: int) -> NDArray[np.int64]:
    """Arrivals in each bin that lies wholly in [a, b)."""
    bins = max(0, (b - a) // width)
    return np.bincount((times - a) // width, minlength=bins)[:bins] if bins else np.zeros(0, np.int64)


def _dispersion(counts: NDArray[np.int64]) -> float:
    return float(counts.var(ddof=1) / counts.mean())


def _lag1(gaps: Values) -> float:
    centred = gaps - gaps.mean()
    return float(centred[1:] @ centred[:-1] / (centred @ centred))


def _peak(times: Times) -> int:
    if not len(times):
        return 0
    return int((np.searchsorted(times, times + NS, side="left") - np.arange(len(times))).max())


@dataclass(frozen=True, slots=True)
class Check:
    """One property of a law: what was found, and how likely chance alone is that far off."""

    name: str
    value: float
    p: float


@dataclass(frozen=True, slots=True)
class LawTest:
    """``passed`` None comes with a ``reason``."""

    passed: bool | None
    checks: tuple[Check, ...] = ()
    reason: str | None = None


def law_test(
    times: Times, a: int, b: int, rate: float, cv: float = 1.0, false_alarm: float = 0.001
) -> LawTest:
    """Whether arrivals in [a, b) may be a process of ``rate`` (1/s) with independent gamma gaps of
    coefficient of variation ``cv``: 0 constant, 1 Poisson.

    A true process fails with a probability of about ``false_alarm``, shared by all checks (Bonferroni).
    Beside gaps and counts, arrivals that keep to one place of the second are found; mean rates alone would
    show none of it. Another law is tested on its own clock: expected arrivals until each time.
    """
    inside = times[(times >= a) & (times < b)]
    if len(inside) < FEWEST:
        return LawTest(None, reason=f"n<{FEWEST}")
    if cv == 0:
        checks: tuple[Check, ...] = (_even(inside, rate),)
    else:
        checks = (*_renewal(inside, a, b, rate, cv), *(_poisson(inside, a, b) if cv == 1 else ()))
    return LawTest(all(check.p >= false_alarm / len(checks) for check in checks), checks)


def _even(times: Times, rate: float) -> Check:
    """Each time is rounded to 1 ns."""
    off = float(np.abs(np.diff(times) - NS / rate).max())
    return Check("largest_gap_error_ns", off, 1.0 if off <= 1.0 + NS / rate * 1e-9 else 0.0)


def _renewal(times: Times, a: int, b: int, rate: float, cv: float) -> Iterator[Check]:
    """Count, spread, order and shape of independent gamma gaps."""
    n, gaps = len(times), np.diff(times)
    expected = rate * (b - a) / NS
    if cv == 1:
        yield Check("n", n, _two_sided(float(pdtr(n, expected)), float(pdtrc(n - 1, expected))))
    else:
        yield Check("n", n, _normal((n - expected) / (cv * math.sqrt(expected))))
    if not gaps.any():
        yield Check("largest_gap_ns", 0.0, 0.0)
        return
    found = float(gaps.std() / gaps.mean())
    yield Check("gap_cv", found, _normal((found - cv) / (cv * math.sqrt((1 + cv**2) / (2 * len(gaps))))))
    if found > 0:
        lag1 = _lag1(gaps.astype(np.float64))
        yield Check("gap_lag1", lag1, _normal(lag1 * math.sqrt(len(gaps))))
    shape = 1 / cv**2
    yield _ks("gap_shape", gaps, lambda ns: gammainc(shape, shape * rate / NS * ns))


def _poisson(times: Times, a: int, b: int) -> Iterator[Check]:
    """What a Poisson process also is: as scattered in every bin, and as likely at every moment."""
    for name, width in WIDTHS.items():
        counts = _counts(times, a, b, width)
        if len(counts) >= 10 and counts.any():
            found, free = _dispersion(counts), len(counts) - 1
            p = _two_sided(float(chdtr(free, found * free)), float(chdtrc(free, found * free)))
            yield Check(name, found, p)
    yield _ks("evenly_over_window", times - a, lambda ns: ns / (b - a))
    for name, cells in _PHASES.items():
        most = int(np.unique(times % NS * cells // NS, return_counts=True)[1].max())
        p = cells * float(pdtrc(most - 1, len(times) / cells))
        yield Check(name, most, min(1.0, p))


def _ks(name: str, times: Times, share_below: Callable[[Values], Values]) -> Check:
    """Kolmogorov and Smirnov: the largest distance between how many times lie below a moment and how many
    should. Times of one ns are compared at the edges of that ns, between which they were rounded."""
    n = len(times)
    found, counts = np.unique(times, return_counts=True)
    moments, until = found.astype(np.float64), np.cumsum(counts, dtype=np.float64)
    after = np.abs(until / n - share_below(moments + 0.5))
    before = np.abs((until - counts) / n - share_below(np.maximum(moments - 0.5, 0.0)))
    distance = float(max(after.max(), before.max()))
    return Check(name, distance, float(kolmogorov(distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)))))


def _normal(z: float) -> float:
    return float(2 * ndtr(-abs(z)))


def _two_sided(below: float, above: float) -> float:
    return min(1.0, 2 * min(below, above))
