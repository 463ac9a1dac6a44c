"""Whose session it is, and by which adapter it is answered: shares of a load."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

MOST_TENANTS = 100_000
_ROUNDING = 1e-6


def zipf(tenants: int, exponent: float = 1.0) -> dict[str, float]:
    """Shares of ``t1`` .. ``tN``: that of tenant k is proportional to k ** -exponent; 0 = all alike.

    Raises ValueError for a number or an exponent that gives no shares.
    """
    if not 1 <= tenants <= MOST_TENANTS:
        raise ValueError(f"tenants must be 1 to {MOST_TENANTS:,}, not {tenants}")
    if not 0 <= exponent <= 10:
        raise ValueError(f"the exponent of a zipf law of tenants must be 0 to 10, not {exponent}")
    weights = np.arange(1, tenants + 1, dtype=np.float64) ** -exponent
    return {f"t{k}": float(w) for k, w in enumerate(weights / weights.sum(), start=1)}


def check_shares(shares: Mapping[str, float], what: str = "tenant", *, whole: bool = True) -> None:
    """Raises ValueError unless every share is above 0 and they sum to 1, or to no more if not ``whole``."""
    if not shares:
        raise ValueError(f"{what}s is empty: name at least one, or leave it out")
    for name, share in shares.items():
        if not (math.isfinite(share) and share > 0):
            raise ValueError(f"the share of {what} {name!r} must be above 0%, not {share:g}")
    total = math.fsum(shares.values())
    if total > 1 + _ROUNDING or (whole and total < 1 - _ROUNDING):
        most = "" if whole else " at most"
        raise ValueError(f"the shares of the {what}s must sum to{most} 100%, not {total:.4%}")


def draw(shares: Mapping[str, float], sessions: int, rng: np.random.Generator) -> list[str]:
    """The tenant of each of ``sessions`` sessions. More sessions do not change the first ones."""
    names = list(shares)
    edges = np.cumsum(list(shares.values()))
    picks = np.searchsorted(edges / edges[-1], rng.random(sessions), side="right")
    return [names[pick] for pick in picks]


def draw_some(shares: Mapping[str, float], sessions: int, rng: np.random.Generator) -> list[str | None]:
    """The same where the shares need not be the whole; None has what they leave."""
    rest = max(0.0, 1 - math.fsum(shares.values()))
    names: list[str | None] = [*shares, None]
    edges = np.cumsum([*shares.values(), rest])
    picks = np.searchsorted(edges / edges[-1], rng.random(sessions), side="right")
    return [names[pick] for pick in picks]
