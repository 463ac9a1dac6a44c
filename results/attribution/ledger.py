"""Every prompt token in exactly one of eight buckets (ATTRIBUTION A14, A16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from results.attribution.policies import Life

BUCKETS = ("new", "changed", "policy", "boundary", "expiry", "unexplained", "read", "bonus")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Tokens of one prompt. ``read + bonus`` is what the endpoint reported as read from its cache."""

    new: int = 0
    changed: int = 0
    policy: int = 0
    boundary: int = 0
    expiry: int = 0
    unexplained: int = 0
    read: int = 0
    bonus: int = 0

    @property
    def total(self) -> int:
        return sum(self.counts())

    @property
    def lost(self) -> int:
        """Readable, and not read."""
        return self.boundary + self.expiry + self.unexplained

    def counts(self) -> tuple[int, ...]:
        """In the order of ``BUCKETS``."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def as_dict(self) -> dict[str, int]:
        return dict(zip(BUCKETS, self.counts(), strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """Where one prompt is cut: the numbers that decide each token's bucket.

    ::

        0        C           R_d          R      S        base       P
        |  read  |   lost    |  boundary  |policy| changed |   new   |    (C < R_d < R, domains differ)
    """

    prompt: int
    """P."""
    cached: int
    """C, at most P."""
    base: int
    shared: int
    readable: int
    readable_here: int
    same_domain: bool
    expired: bool
    """Belief in expiry is at least 0.5 (A16): what is lost in t's own domain has lapsed."""

    def runs(self) -> Iterator[tuple[int, int, str]]:
        """``(from, to, bucket)`` in order of position, together all of [0, P). Empty runs are left out."""
        lost = "expiry" if self.expired else "unexplained"
        within = self.readable if self.same_domain else min(self.readable, self.readable_here)
        edges = (
            (min(self.cached, self.readable), "read"),
            (self.cached, "bonus"),
            (within, lost),
            (self.readable, "boundary"),
            (self.shared, "policy"),
            (self.base, "changed"),
            (self.prompt, "new"),
        )
        at = 0
        for end, bucket in edges:
            if end > at:
                yield at, end, bucket
                at = end

    def ledger(self) -> Ledger:
        """The eight sums, with the identities of A14 asserted."""
        counts = dict.fromkeys(BUCKETS, 0)
        for start, end, bucket in self.runs():
            counts[bucket] += end - start
        made = Ledger(**counts)
        assert made.total == self.prompt, f"the ledger holds {made.total} of {self.prompt} tokens"
        assert made.read + made.bonus == self.cached
        return made


def belief(idle_s: float | None, life: Life | None, *, end_known: bool = True) -> float:
    """e of A16: how likely a prefix that was idle so long has lapsed."""
    if idle_s is None or life is None:
        return 0.0
    sure, longest = life
    if idle_s <= sure:
        return 0.0
    if longest is None:
        e = 0.5
    elif idle_s > longest:
        e = 0.9
    else:
        e = 0.3 + 0.5 * (idle_s - sure) / (longest - sure)
    return e if end_known else min(e, 0.5)
