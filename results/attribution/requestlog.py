"""Earlier requests, indexed by what they share with a later one.

Each token hash already names its position, so the running (wrapping) sum of a prompt's hashes at token n
names its first n tokens. Two requests share n tokens when their sums at n are equal, which makes the
longest shared prefix a binary search, and "who held this prefix" a dictionary.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from results.attribution.observed import Component, Observed
from results.attribution.policies import Policy

GRID = 64
"""Tokens between two indexed prefixes of a prompt."""
RECENT = 64
"""Holders of one prefix, or of one component, that are looked at: the latest ones."""

DOMAIN_FIELDS = ("model", "provider", "upstream", "workspace", "adapter", "tier", "cache_key")
Domain = tuple[str | None, ...]
Sums = NDArray[np.uint64]

_ANSWERED = ("completed", "ok")


@dataclass(slots=True)
class Entry:
    """One request, prepared for comparing. Token counts; times in s."""

    order: int
    seen: Observed
    prompt: int
    """P: what the endpoint counted, else what we counted."""
    reusable: int
    """Its prompt, and its answer where the policy caches answers."""
    domain: Domain
    sums: Sums | None
    """Running sums over prompt and (where cached) answer; None: no token hashes."""
    parent: Entry | None = None
    """What it was attributed against, once it was."""

    @property
    def components(self) -> list[Component]:
        return self.seen.components

    @property
    def answered(self) -> bool:
        return self.seen.status in _ANSWERED

    @property
    def drawn(self) -> int:
        """Tokens of the answer among ``reusable``."""
        return self.reusable - self.prompt

    def ready_at(self, now: float) -> bool:
        """Its prompt was cached by ``now`` as far as the sender can know (A10)."""
        if self.seen.ts_first_token is not None:
            return self.seen.ts_first_token <= now
        return self.seen.ts_end is not None and self.seen.ts_end <= now

    def holds(self, other: Entry, tokens: int) -> bool:
        """Whether ``other``'s prompt begins with the same ``tokens`` tokens."""
        if tokens <= 0:
            return True
        if self.sums is None or other.sums is None or tokens > min(len(self.sums), other.prompt):
            return False
        return bool(self.sums[tokens - 1] == other.sums[tokens - 1])


def entry(seen: Observed, order: int, policy: Policy) -> Entry:
    """Prepare one request under a policy."""
    counted = len(seen.hashes) if seen.hashes is not None else sum(c.tok for c in seen.components)
    prompt = counted if seen.prompt_total is None else seen.prompt_total
    sums = None
    answer = 0
    if seen.hashes is not None and prompt == counted:
        tokens = seen.hashes
        if policy.outputs and seen.output_hashes is not None:
            tokens = np.concatenate([tokens, seen.output_hashes])
            answer = len(seen.output_hashes)
        sums = np.cumsum(tokens, dtype=np.uint64)
    elif policy.outputs and seen.output is not None:
        answer = seen.output.tok
    key = seen.cache_key if policy.keyed else None
    domain: Domain = (
        seen.model,
        seen.provider,
        f"{seen.upstream}|{seen.endpoint}",
        seen.workspace,
        seen.adapter,
        seen.service_tier,
        key,
    )
    return Entry(order, seen, prompt, prompt + answer, domain, sums)


def shared_tokens(t: Entry, earlier: Entry) -> int:
    """S: leading tokens of t's prompt that ``earlier`` held (prompt, and answer where cached)."""
    if t.sums is not None and earlier.sums is not None:
        n = min(t.prompt, len(earlier.sums))
        return _equal_leading(t.sums[:n], earlier.sums[:n])
    equal, counted = 0, sum(c.tok for c in t.components) or 1
    for mine, theirs in zip(t.components, earlier.components, strict=False):
        if not mine.hash or mine.hash != theirs.hash or mine.kind != theirs.kind or mine.role != theirs.role:
            break
        equal += mine.tok
    return equal * t.prompt // counted


def _equal_leading(a: Sums, b: Sums) -> int:
    low, high = 0, len(a)
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(slots=True)
class RequestLog:
    """All requests so far, in order of sending."""

    sessions: defaultdict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    holders: defaultdict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    """By running sum at each multiple of GRID."""
    carriers: defaultdict[tuple[str, str], list[Entry]] = field(default_factory=lambda: defaultdict(list))
    """By (workspace, canon_hash) of a component."""
    longest_life: float = 0.0
    """Longest time from start to end so far, in s."""

    def add(self, e: Entry) -> None:
        """Append a request that was sent at or after all others."""
        self.sessions[e.seen.session].append(e)
        if e.sums is not None:
            for running in e.sums[GRID - 1 :: GRID].tolist():
                self.holders[running].append(e)
        for component in e.components:
            if component.canon_hash:
                self.carriers[e.seen.workspace, component.canon_hash].append(e)
        if e.seen.ts_end is not None:
            self.longest_life = max(self.longest_life, e.seen.ts_end - e.seen.ts_start)

    def prefix_holders(self, t: Entry, now: float, *, ready: bool) -> list[Entry]:
        """In t's workspace, the latest requests among those that share the longest indexed prefix with t
        and are ready (or in flight) at ``now``."""
        if t.sums is None:
            return []
        for running in reversed(t.sums[GRID - 1 : t.prompt : GRID].tolist()):
            found = [
                e
                for e in self.holders.get(running, [])[-4 * RECENT :]
                if e.seen.workspace == t.seen.workspace and e.ready_at(now) == ready
            ]
            if not ready:
                found = [e for e in found if in_flight(e, now)]
            if found:
                return found[-RECENT:]
        return []

    def overlapping(self, t: Entry, now: float) -> list[Entry]:
        """In t's workspace, ready requests that share a component with t, the latest of each."""
        found: dict[int, Entry] = {}
        for component in t.components:
            for e in self.carriers.get((t.seen.workspace, component.canon_hash), [])[-RECENT:]:
                if e.ready_at(now):
                    found[e.order] = e
        return [found[order] for order in sorted(found)]

    def last_touch(
        self, t: Entry, tokens: int, domain: Domain, policy: Policy, also: Entry
    ) -> tuple[float, bool]:
        """Latest touch (s) before t by a request in ``domain`` that holds t's first ``tokens`` tokens, and
        whether its end is known (A16). ``also`` is looked at in any case."""
        now, clock, floor = t.seen.ts_start, policy.clock, policy.floor
        best, known = touch(also, now, clock)
        aligned = tokens - tokens % GRID
        if t.sums is None or aligned == 0:
            return best, known
        for e in reversed(self.holders.get(int(t.sums[aligned - 1]), [])):
            if best >= now or e.seen.ts_start + self.longest_life < best:
                break  # nothing before it can be later
            used = e.ready_at(now) or (e.seen.cache_read or 0) >= max(1, tokens - floor)
            # A request that is only now writing the prefix again has not kept it alive.
            if e is not also and used and e.domain == domain and e.holds(t, tokens):
                best, known = max((best, known), touch(e, now, clock))
            if clock == "start" and best >= e.seen.ts_start:
                break
        return best, known


def touch(e: Entry, now: float, clock: str) -> tuple[float, bool]:
    """When ``e`` last used its prefix as of ``now``, and whether that is certain: at its start, or
    (clock ``release``) at its end and all the time before."""
    if clock == "start":
        return e.seen.ts_start, True
    if e.seen.ts_end is not None:
        return min(e.seen.ts_end, now), True
    first = e.seen.ts_first_token
    return min(e.seen.ts_start if first is None else first, now), False


def in_flight(e: Entry, now: float) -> bool:
    """Sent, and neither answering nor ended at ``now``."""
    return not e.ready_at(now) and (e.seen.ts_end is None or e.seen.ts_end > now)
