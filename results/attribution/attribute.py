"""From a log of requests to one verdict per request."""

from __future__ import annotations

from collections.abc import Sequence

from results.attribution import resets
from results.attribution.facts import Facts, gather
from results.attribution.observed import Observed
from results.attribution.policies import Policy
from results.attribution.rules import Rule, co_cause, decide
from results.attribution.verdict import Attribution, Outcome

MINOR_TOKENS = 1024

_START = {"ids": 0.99, "hashes": 0.7, "usage": 0.4}


def attribute(observed: Sequence[Observed], policy: Policy) -> list[Attribution]:
    """One attribution per request, in order of sending. Pure: the same log gives the same verdicts."""
    return [judge(facts) for facts in gather(observed, policy)]


def judge(facts: Facts) -> Attribution:
    """The verdict on one request."""
    rule = decide(facts)
    name = rule.subtype(facts)
    also = co_cause(facts, rule)
    t, line, seen = facts.t, facts.line, facts.t.seen
    measured = facts.ledger is not None
    return Attribution(
        id=seen.id,
        session=seen.session,
        outcome=rule.outcome,
        subtype=name,
        rule=rule.id,
        confidence=round(_confidence(facts, rule, also), 4),
        level=_level(facts),
        policy=facts.policy.name,
        policy_version=facts.policy.version,
        prompt=t.prompt,
        cached=facts.cut.cached if facts.cut else None,
        parent=line.p.seen.id if line else None,
        idle_s=facts.idle_s,
        base=facts.base if line else None,
        shared_prefix=line.shared if line else None,
        readable=line.readable if line else None,
        ledger=facts.ledger,
        missed=facts.missed,
        minor=facts.missed <= MINOR_TOKENS if measured and facts.missed is not None else None,
        intentional=_intentional(facts, rule.outcome, name),
        co_cause=also,
        overdetermined=also is not None,
        possible=str(Outcome.EXPIRY) if rule.outcome is Outcome.UNEXPLAINED and facts.e > 0 else None,
        evidence=_evidence(facts),
        first_divergence=facts.divergence,
        class_=seen.class_,
        model=seen.model,
        workspace=seen.workspace,
        versions=dict(sorted(seen.versions.items())),
    )


def _intentional(facts: Facts, outcome: Outcome, name: str) -> bool | None:
    if outcome is Outcome.APP_RESET:
        return resets.intentional(facts, name)
    switched = any(event.startswith("model_switch") for event in facts.t.seen.app_events)
    return True if outcome is Outcome.BOUNDARY and switched else None


def _level(facts: Facts) -> str:
    """What the comparison rests on (A5)."""
    if facts.t.sums is not None and (facts.line is None or facts.line.p.sums is not None):
        return "ids"
    return "hashes" if facts.t.components else "usage"


def _confidence(facts: Facts, rule: Rule, also: str | None) -> float:
    """A22: from the level, then capped by what the outcome can rest on."""
    if rule.outcome is Outcome.NOT_MEASURED:
        return 1.0
    value = _START[_level(facts)]
    if rule.outcome is Outcome.COLD and not facts.alone:
        value = min(value, 0.9)
    if rule.outcome is Outcome.BOUNDARY and rule.subtype(facts) == "cache_key_changed":
        value = min(value, 0.85)
    if rule.outcome is Outcome.EXPIRY:
        value = min(value, facts.e)
    if rule.outcome is Outcome.UNEXPLAINED:
        value = min(value, 0.6 if rule.subtype(facts) == "previous_output_not_reused" else 0.85)
    if rule.outcome is Outcome.CONCURRENT:
        value = min(value, 0.85)
    if also is not None:
        value = min(value, 0.7)
    if facts.line is not None and facts.line.tied:
        value *= 0.9
    if facts.policy.confidence == "unknown":
        value *= 0.8
    return value


def _evidence(facts: Facts) -> tuple[str, ...]:
    found = []
    read, line = facts.t.seen.cache_read, facts.line
    if line is not None:
        found.append("local_diff")
        mine, theirs = facts.t.seen.versions, line.p.seen.versions
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                found.append(f"versions_changed:{name}")
    if read is not None and read > facts.t.prompt:
        found.append("read_exceeds_prompt")
    return tuple(found)
