"""Which earlier request could have served this one (ATTRIBUTION A10 to A13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from results.attribution.policies import NOISE_TOKENS, Policy
from results.attribution.readable import readable_tokens
from results.attribution.requestlog import Entry, RequestLog, in_flight, shared_tokens


@dataclass(frozen=True, slots=True)
class Lineage:
    """A parent p and what t shares with it. Token counts."""

    p: Entry
    shared: int
    """S."""
    readable: int
    """R: the part of S that the policy lets be read, whatever the domain and the time."""
    readable_here: int
    """R_d: the same from the best candidate in t's own domain, 0 without one."""
    head_only: bool
    """Another lineage: it only begins alike (A12), so it can never be an app_reset."""
    same_domain: bool
    returned: bool = False
    """p was taken because t came back to its domain (A13)."""
    tied: bool = False
    """Another candidate shares as much within 1 %."""

    def base(self, prompt: int) -> int:
        """Tokens of t that p could have served, had nothing changed (A14)."""
        return self.shared if self.head_only else min(self.p.reusable, prompt)


@dataclass(frozen=True, slots=True)
class _Choice:
    p: Entry
    shared: int
    tied: bool


def find(t: Entry, log: RequestLog, policy: Policy) -> Lineage | None:
    """The parent of t among ready requests: of its session, else of its workspace (A10)."""
    now = t.seen.ts_start
    session = [e for e in log.sessions[t.seen.session] if e.ready_at(now)]
    found = _among(t, session, session, policy)
    if found is None:
        others = log.prefix_holders(t, now, ready=True)
        known = {e.order for e in others}
        others += [e for e in log.overlapping(t, now) if e.order not in known]
        found = _among(t, sorted(others, key=lambda e: e.order), others, policy)
    return found


def first_writer(t: Entry, log: RequestLog, policy: Policy) -> tuple[Entry, int] | None:
    """q of T2 and S_q: the request in t's domain that is still computing most of t's prompt."""
    now = t.seen.ts_start
    flying = [e for e in log.sessions[t.seen.session] if in_flight(e, now)]
    flying += log.prefix_holders(t, now, ready=False)
    best: tuple[Entry, int] | None = None
    for e in sorted(flying, key=lambda e: e.order):
        if e.domain != t.domain:
            continue
        shared = shared_tokens(t, e)
        if best is None or shared > best[1]:
            best = e, shared
    if best is None or best[1] < max(policy.minimum, NOISE_TOKENS):
        return None
    return best


def on_writer(t: Entry, q: Entry, shared: int) -> Lineage:
    """The lineage that T2's ledger is made on: nothing of q can be read yet."""
    return Lineage(q, shared, 0, 0, not same_lineage(t, q, shared), same_domain=True)


def _among(t: Entry, candidates: Sequence[Entry], ready: Sequence[Entry], policy: Policy) -> Lineage | None:
    while True:
        found = _lineage(t, candidates, ready, policy)
        if found is None or found.p.answered or t.seen.cache_read is None:
            return found
        if t.seen.cache_read >= found.readable - policy.floor:
            return found
        # An aborted attempt may have cached anything or nothing: it proves no loss.
        candidates = [e for e in candidates if e is not found.p]


def _lineage(t: Entry, candidates: Sequence[Entry], ready: Sequence[Entry], policy: Policy) -> Lineage | None:
    choice = _choose(t, candidates)
    if choice is None:
        return None
    least = max(policy.minimum, NOISE_TOKENS)
    here = _choose(t, [e for e in candidates if e.domain == t.domain])
    own = readable_tokens(t, here.p, here.shared, _same_domain(t, ready), policy) if here else 0
    returned = False
    if choice.p.domain != t.domain and here is not None:
        as_good = here.shared >= choice.shared - policy.floor
        extends = here.shared >= min(here.p.prompt, t.prompt)
        read_it = t.seen.cache_read is not None and t.seen.cache_read >= own - policy.floor
        if as_good or (extends and read_it):
            returned = not as_good
            choice = here
    head_only = not same_lineage(t, choice.p, choice.shared)
    if head_only and choice.p.domain != t.domain:
        if here is None or here.shared < least:
            return None
        choice = here
        head_only = not same_lineage(t, choice.p, choice.shared)
    if head_only and choice.shared < least:
        return None
    return Lineage(
        p=choice.p,
        shared=choice.shared,
        readable=readable_tokens(t, choice.p, choice.shared, ready, policy),
        readable_here=own,
        head_only=head_only,
        same_domain=choice.p.domain == t.domain,
        returned=returned,
        tied=choice.tied,
    )


def _same_domain(t: Entry, entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if e.domain == t.domain]


def _choose(t: Entry, candidates: Sequence[Entry]) -> _Choice | None:
    """A11: the longest shared prefix; if that is less than half of what p could serve, the candidate with
    the largest overlap of components."""
    if not candidates:
        return None
    shared = {e.order: shared_tokens(t, e) for e in candidates}
    best = _best(t, candidates, shared)
    if 2 * shared[best.order] < min(t.prompt, best.reusable):
        weights = {e.order: _overlap(t, e) for e in candidates}
        closest = _best(t, candidates, weights)
        if weights[closest.order] > 0:
            return _Choice(closest, shared[closest.order], _tied(weights, closest))
    return _Choice(best, shared[best.order], _tied(shared, best))


def _best(t: Entry, candidates: Sequence[Entry], weight: dict[int, int]) -> Entry:
    return max(candidates, key=lambda e: (weight[e.order], e.domain == t.domain, e.answered, e.order))


def _tied(weight: dict[int, int], chosen: Entry) -> bool:
    best = weight[chosen.order]
    return any(100 * w >= 99 * best > 0 for order, w in weight.items() if order != chosen.order)


def _overlap(t: Entry, e: Entry) -> int:
    """Tokens of t in components that e has too, wherever they stand."""
    theirs = Counter(c.canon_hash for c in e.components if c.canon_hash)
    if e.drawn and e.seen.output is not None and e.seen.output.canon_hash:
        theirs[e.seen.output.canon_hash] += 1
    tokens = 0
    for component in t.components:
        if theirs[component.canon_hash] > 0:
            theirs[component.canon_hash] -= 1
            tokens += component.tok
    return tokens


def same_lineage(t: Entry, p: Entry, shared: int) -> bool:
    """A12: whether t goes on from p, or only begins alike."""
    if t.seen.declared_parent == p.seen.id or shared >= p.prompt:
        return True
    mine = {c.canon_hash: c for c in t.components if c.kind == "message" and c.canon_hash}
    theirs = [c for c in p.components if c.kind == "message"]
    if p.seen.output is not None:
        theirs.append(p.seen.output)  # who quotes p's answer goes on from p
    common = [mine[c.canon_hash] for c in theirs if c.canon_hash in mine]
    if any(c.role == "assistant" for c in common):
        return True
    heads = {c.mask_hash for c in t.components if c.kind in ("tool", "system") and c.mask_hash}
    return bool(common) and any(c.kind in ("tool", "system") and c.mask_hash in heads for c in p.components)
