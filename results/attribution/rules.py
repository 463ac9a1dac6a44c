"""The decision tree (ATTRIBUTION 7): the first line of ``RULES`` that holds names the outcome.

A later issue adds a line or a subtype here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from results.attribution import resets
from results.attribution.facts import OUTPUT, Facts
from results.attribution.requestlog import DOMAIN_FIELDS
from results.attribution.verdict import Outcome

RESET_EVENTS = {
    "compaction": "compaction",
    "clear": "clear",
    "branch": "branch_switch",
    "truncate": "truncate",
}
SIDE_EVENTS = ("summariser_call", "title_call")


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    outcome: Outcome
    holds: Callable[[Facts], bool]
    subtype: Callable[[Facts], str]


def _events(f: Facts) -> list[str]:
    return [event.partition(":")[0] for event in f.t.seen.app_events]


def _head_only(f: Facts) -> bool:
    return f.line is not None and f.line.head_only


def _not_measured(f: Facts) -> bool:
    return f.ledger is None


def _why_not_measured(f: Facts) -> str:
    return "usage_without_cache_fields" if f.t.answered else "aborted_without_usage"


def _concurrent(f: Facts) -> bool:
    return f.concurrent


def _why_concurrent(f: Facts) -> str:
    first = f.p.seen.ts_first_token
    lag = f.policy.write_lag_s
    late = lag > 0 and first is not None and f.t.seen.ts_start - first <= lag
    return "write_lag" if late else "concurrent_first_write"


def _no_parent(f: Facts) -> bool:
    return f.line is None


def _why_cold(f: Facts) -> str:
    side = any(event in SIDE_EVENTS for event in _events(f))
    return "side_request_other_lineage" if side else "first_request_of_lineage"


def _below_minimum(f: Facts) -> bool:
    return f.base < f.policy.minimum


def _hit(f: Facts) -> bool:
    return f.missed is not None and f.missed <= f.floor


def _kind_of_hit(f: Facts) -> str:
    assert f.line is not None
    if f.line.returned:
        return "returned_to_earlier_domain"
    if f.line.head_only:
        return "shared_prefix"
    same = f.line.shared >= f.t.prompt and f.p.prompt == f.t.prompt
    return "retry_of_same_prompt" if same or f.t.seen.retry_of == f.p.seen.id else "append_only"


def _reset_event(f: Facts) -> bool:
    return any(event in RESET_EVENTS for event in _events(f))


def _which_reset(f: Facts) -> str:
    return next(RESET_EVENTS[event] for event in _events(f) if event in RESET_EVENTS)


def _noise(f: Facts) -> bool:
    return f.short <= f.floor and f.sums.policy <= f.floor


def _only_the_end_differs(f: Facts) -> bool:
    """What there was to read was read; only the last component differs, or nothing that p had."""
    if not _noise(f):
        return False
    where = f.divergence
    if _head_only(f) or where is None:
        return True
    last = f.p.components[-1].path if f.p.components else None
    return where.path == f.t.components[-1].path and where.parent_path in (last, OUTPUT)


def _kind_of_end(f: Facts) -> str:
    return "append_only" if f.divergence is None and not _head_only(f) else "shared_prefix"


def _new_behind_the_head(f: Facts) -> bool:
    return _head_only(f) and f.short <= f.floor


def _boundary(f: Facts) -> bool:
    rest = f.sums.expiry + f.sums.unexplained
    return f.sums.boundary > f.floor and f.sums.boundary >= rest


def _which_boundary(f: Facts) -> str:
    pairs = zip(DOMAIN_FIELDS, f.t.domain, f.p.domain, strict=True)
    return next(f"{name}_changed" for name, mine, theirs in pairs if mine != theirs)


def _expired(f: Facts) -> bool:
    return f.sums.expiry > f.floor


def _how_expired(f: Facts) -> str:
    return "idle_over_ttl" if f.e >= 0.9 else "idle_possible"


def _unexplained(f: Facts) -> bool:
    if _head_only(f):
        return f.sums.lost > f.floor  # never an app_reset, whatever the buckets are (A12)
    return f.sums.unexplained > f.floor and f.sums.unexplained >= f.sums.changed + f.sums.policy


def _how_unexplained(f: Facts) -> str:
    assert f.cut is not None
    if f.p.drawn > f.floor and f.cut.shared > f.p.prompt and f.cut.cached >= f.p.prompt - f.floor:
        return "previous_output_not_reused"
    return "full" if f.cut.cached <= f.floor else "partial"


def _always(f: Facts) -> bool:
    return True


RULES: tuple[Rule, ...] = (
    Rule("T1", Outcome.NOT_MEASURED, _not_measured, _why_not_measured),
    Rule("T2", Outcome.CONCURRENT, _concurrent, _why_concurrent),
    Rule("T3", Outcome.COLD, _no_parent, _why_cold),
    Rule("T4", Outcome.BELOW_MINIMUM, _below_minimum, lambda f: "below_minimum"),
    Rule("T5", Outcome.HIT, _hit, _kind_of_hit),
    Rule("T6", Outcome.APP_RESET, _reset_event, _which_reset),
    Rule("T7", Outcome.HIT, _only_the_end_differs, _kind_of_end),
    Rule("T8", Outcome.COLD, _new_behind_the_head, _why_cold),
    Rule("T9", Outcome.BOUNDARY, _boundary, _which_boundary),
    Rule("T10", Outcome.EXPIRY, _expired, _how_expired),
    Rule("T11", Outcome.UNEXPLAINED, _unexplained, _how_unexplained),
    Rule("T12", Outcome.APP_RESET, _always, resets.subtype),
)


def decide(facts: Facts) -> Rule:
    """The rule that names the outcome: exactly one holds first, since the last always holds."""
    return next(rule for rule in RULES if rule.holds(facts))


def co_cause(facts: Facts, rule: Rule) -> str | None:
    """A17: a second cause that would have sufficed."""
    if facts.line is None or facts.ledger is None:
        return None
    if rule.id in ("T9", "T10") and facts.ledger.changed > facts.floor:
        return f"{Outcome.APP_RESET}:{resets.subtype(facts)}"
    if rule.id == "T12" and not facts.line.same_domain:
        return str(Outcome.BOUNDARY)
    if rule.id == "T12" and facts.e >= 0.5:
        return str(Outcome.EXPIRY)
    return None
