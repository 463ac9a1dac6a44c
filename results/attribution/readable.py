"""R: how much of a shared prefix a policy lets be read (ATTRIBUTION A15)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from results.attribution.observed import Component
from results.attribution.policies import Policy
from results.attribution.requestlog import Entry, shared_tokens


def readable_tokens(t: Entry, p: Entry, shared: int, ready: Iterable[Entry], policy: Policy) -> int:
    """Tokens. ``ready``: the earlier requests whose writes may be read (styles breakpoint and unit)."""
    if policy.style == "breakpoint":
        return _breakpoint(t, shared, ready, policy)
    if policy.style == "unit":
        whole = [n for e in ready for n in {e.prompt, e.reusable} if n <= shared_tokens(t, e)]
        return _rounded(min(max(whole, default=0), shared, t.prompt - 1), policy)
    return _rounded(min(shared, t.prompt - 1, _run(p, policy)), policy)


def _run(p: Entry, policy: Policy) -> int:
    """Tokens of p that went through the model."""
    return p.reusable - 1 if p.drawn and not policy.drawn_token_run else p.reusable


def _rounded(tokens: int, policy: Policy) -> int:
    tokens -= tokens % policy.step
    return tokens if tokens >= max(policy.minimum, 1) else 0


def _breakpoint(t: Entry, shared: int, ready: Iterable[Entry], policy: Policy) -> int:
    """The largest component end in the shared prefix that t looks back at and somebody had marked."""
    mine = t.components
    markers = [index for index, c in enumerate(mine) if c.cache_ttl is not None]
    written = [(e, _marked_ends(e), shared_tokens(t, e)) for e in ready]
    for index in range(len(mine) - 1, -1, -1):
        end = mine[index].start + mine[index].tok
        looked = [mine[m] for m in markers if 0 <= m - index < policy.lookback]
        if end > shared or end < policy.minimum or not looked:
            continue
        lives = {marker.cache_ttl for marker in looked}
        level = mine[index].kind == "message"
        for e, ends, common in written:
            if end > common or ends.get(end) not in lives:
                continue
            if not level or level_params(e, policy) == level_params(t, policy):
                return end
    return 0


def _marked_ends(e: Entry) -> dict[int, str]:
    return {c.start + c.tok: c.cache_ttl for c in e.components if c.cache_ttl is not None}


def level_params(e: Entry, policy: Policy) -> Mapping[str, str | None]:
    """The parameters that the message level depends on (A9)."""
    return {name: e.seen.params.get(name) for name in policy.level_params}


def component_at(components: list[Component], token: int) -> int | None:
    """Index of the component that token belongs to; what follows a component is counted with it."""
    before = [index for index, c in enumerate(components) if c.start <= token]
    return before[-1] if before else (0 if components else None)
