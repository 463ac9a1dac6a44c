"""What the rules decide on: one request, its parent, and the ledger between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from results.attribution import lineage
from results.attribution.ledger import Cut, Ledger, belief
from results.attribution.lineage import Lineage
from results.attribution.observed import Observed
from results.attribution.policies import Policy
from results.attribution.readable import component_at
from results.attribution.requestlog import Entry, RequestLog, entry
from results.attribution.verdict import FirstDivergence

OUTPUT = "output"
"""``parent_path`` of a divergence within the parent's answer."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is known of one request before a rule is asked."""

    t: Entry
    policy: Policy
    earlier: Sequence[Entry]
    """Of its session, in order of sending."""
    alone: bool
    """Nothing was sent before it."""
    line: Lineage | None
    concurrent: bool
    """T2 holds: ``line`` is the one to the request that was still computing."""
    cut: Cut | None
    """None: nothing was measured."""
    ledger: Ledger | None
    idle_s: float | None
    e: float
    """Belief in expiry, 0 to 1."""
    divergence: FirstDivergence | None

    @property
    def p(self) -> Entry:
        """The parent, where one is known to exist."""
        assert self.line is not None
        return self.line.p

    @property
    def sums(self) -> Ledger:
        """The ledger, where the request is known to have been measured."""
        assert self.ledger is not None
        return self.ledger

    @property
    def floor(self) -> int:
        return self.policy.floor

    @property
    def base(self) -> int:
        return self.line.base(self.t.prompt) if self.line else 0

    @property
    def missed(self) -> int | None:
        """``base - C``; without a parent nothing can be missed."""
        if self.cut is None:
            return None
        return self.base - self.cut.cached if self.line else 0

    @property
    def short(self) -> int:
        """``max(0, R - C)``: readable and not read."""
        assert self.cut is not None
        return max(0, self.cut.readable - self.cut.cached)

    def on(self, ledger: Ledger) -> Facts:
        """The same request with another ledger, say the expected one of A31."""
        return replace(self, ledger=ledger)


def gather(observed: Sequence[Observed], policy: Policy) -> Iterator[Facts]:
    """The facts of each request, in order of sending (ts_start, then place in the log; A37)."""
    log = RequestLog()
    in_order = sorted(range(len(observed)), key=lambda i: (observed[i].ts_start, i))
    for order, i in enumerate(in_order):
        t = entry(observed[i], order, policy)
        facts = _facts(t, log, policy)
        t.parent = facts.line.p if facts.line else None
        log.add(t)
        yield facts


def _facts(t: Entry, log: RequestLog, policy: Policy) -> Facts:
    found = lineage.find(t, log, policy)
    cached = t.seen.cache_read
    if cached is not None and cached > t.prompt:
        cached = None  # counters that contradict each other measure nothing
    writer = _writer(t, log, policy, found, cached)
    line = writer or found
    idle_s, e = _idle(t, log, policy, line)
    cut = None if cached is None else _cut(t, line, cached, expired=e >= 0.5)
    return Facts(
        t=t,
        policy=policy,
        earlier=tuple(log.sessions[t.seen.session]),
        alone=t.order == 0,
        line=line,
        concurrent=writer is not None,
        cut=cut,
        ledger=cut.ledger() if cut else None,
        idle_s=idle_s,
        e=e,
        divergence=_divergence(t, line, policy),
    )


def _cut(t: Entry, line: Lineage | None, cached: int, *, expired: bool) -> Cut:
    if line is None:
        return Cut(t.prompt, cached, 0, 0, 0, 0, same_domain=True, expired=False)
    base = line.base(t.prompt)
    here = line.readable_here
    return Cut(t.prompt, cached, base, line.shared, line.readable, here, line.same_domain, expired)


def _writer(
    t: Entry, log: RequestLog, policy: Policy, found: Lineage | None, cached: int | None
) -> Lineage | None:
    """T2: no hit on p, and someone else in flight is computing clearly more of t than p shares."""
    if cached is None or (found is not None and found.base(t.prompt) - cached <= policy.floor):
        return None
    flying = lineage.first_writer(t, log, policy)
    if flying is None:
        return None
    q, shared = flying
    mine, readable = (found.shared, found.readable) if found else (0, 0)
    if shared <= mine + policy.floor or not readable - policy.floor <= cached < shared - policy.floor:
        return None
    return lineage.on_writer(t, q, shared)


def _idle(t: Entry, log: RequestLog, policy: Policy, line: Lineage | None) -> tuple[float | None, float]:
    """Idle time (s) of what t could have read, and the belief that it lapsed (A16)."""
    if line is None:
        return None, 0.0
    domain = t.domain if line.readable_here else line.p.domain
    touched, known = log.last_touch(t, line.readable or line.shared, domain, policy, line.p)
    idle_s = round(t.seen.ts_start - touched, 6)
    marked = [c.cache_ttl for c in t.components if c.cache_ttl is not None]
    tier = t.seen.retention or (marked[-1] if marked else None)
    return idle_s, belief(idle_s, policy.life_of(tier), end_known=known)


def _divergence(t: Entry, line: Lineage | None, policy: Policy) -> FirstDivergence | None:
    """A21: where t leaves what p held. Only where something that p could have served differs."""
    if line is None or line.shared >= line.base(t.prompt):
        return None
    token, p = line.shared, line.p
    mine, theirs = component_at(t.components, token), component_at(p.components, token)
    if mine is None:
        return None
    equal = _equal_components(t, p, token)
    if equal == mine + 1 < len(t.components):
        mine = equal  # the template behind an equal component differs: what follows is another one
    if theirs is not None and equal == theirs + 1 < len(p.components):
        theirs = equal
    part = t.components[mine]
    answer = p.drawn > 0 and token >= p.prompt
    return FirstDivergence(
        path=part.path,
        parent_path=OUTPUT if answer else None if theirs is None else p.components[theirs].path,
        token_in_component=max(0, token - part.start),
        token_index=token,
        components_equal_before=equal,
        block_index=token // policy.step if policy.style == "auto" and policy.step > 1 else None,
    )


def _equal_components(t: Entry, p: Entry, token: int) -> int:
    """Leading components of t that end at or before ``token`` and are p's too."""
    equal = 0
    for a, b in zip(t.components, p.components, strict=False):
        if a.start + a.tok > token or (a.kind, a.role, a.tok) != (b.kind, b.role, b.tok):
            break
        equal += 1
    return equal
