"""How well attribution did, by what the engine truly did (ATTRIBUTION A31). Never an input of a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.attribution.attribute import judge
from results.attribution.facts import Facts, gather
from results.attribution.ledger import BUCKETS, Ledger
from results.attribution.observed import Observed
from results.attribution.policies import Policy
from results.attribution.rules import decide
from results.attribution.verdict import MISSES, Attribution, Outcome

_NEVER = frozenset({"below_block", "last_block_rule", "never_computed", "being_computed"})
_LOST_ABOVE = frozenset({"evicted_capacity", "preempted", "on_other_worker", "worker_restarted"})

Run = tuple[int, int, str]
"""``(from, to, state)`` in tokens; state ``read`` or a reason of ENGINE E18."""


class TruthError(ValueError):
    """A truth row that does not describe its prompt."""


def states(misses: Iterable[Mapping[str, Any]], prompt: int, block_size: int) -> list[Run]:
    """What truly happened to each prompt token, as runs in order that cover [0, prompt)."""
    runs: list[Run] = []
    at = 0
    for miss in sorted(misses, key=lambda miss: int(miss["first_block"])):
        start = int(miss["first_block"]) * block_size
        if start < at:
            raise TruthError(f"misses overlap at token {start}")
        if start > at:
            runs.append((at, start, "read"))
        at = start + int(miss["tokens"])
        runs.append((start, at, str(miss["reason"])))
    if at > prompt:
        raise TruthError(f"misses reach token {at} of a prompt of {prompt}")
    if at < prompt:
        runs.append((at, prompt, "read"))
    return runs


@dataclass(frozen=True, slots=True)
class Expected:
    """The ledger and outcome that the truth calls for, and token counts by (expected, attributed)."""

    ledger: Ledger
    outcome: Outcome
    tokens: Mapping[tuple[str, str], int]


def expected(facts: Facts, misses: Iterable[Mapping[str, Any]]) -> Expected:
    """A31 for one measured request, with the ledger's own p, S, R and base."""
    assert facts.cut is not None
    counts: Counter[str] = Counter()
    tokens: Counter[tuple[str, str]] = Counter()
    for start, end, state in states(misses, facts.t.prompt, facts.policy.step):
        for left, right, mine in facts.cut.runs():
            low, high = max(start, left), min(end, right)
            for a, b in _pieces(low, high, facts):
                bucket = _bucket(state, a, facts, mine)
                counts[bucket] += b - a
                tokens[bucket, mine] += b - a
    ledger = Ledger(**{name: counts[name] for name in BUCKETS})
    return Expected(ledger, decide(facts.on(ledger)).outcome, tokens)


def _pieces(low: int, high: int, facts: Facts) -> Iterable[tuple[int, int]]:
    """[low, high) cut where the table of A31 changes: at R, S and base."""
    assert facts.cut is not None
    edges = sorted({facts.cut.readable, facts.cut.shared, facts.cut.base})
    for edge in [*(e for e in edges if low < e < high), high]:
        if low < edge:
            yield low, edge
            low = edge


def _bucket(state: str, token: int, facts: Facts, mine: str) -> str:
    """The table of A31 for the token at ``token`` (and its neighbours up to the next edge)."""
    cut = facts.cut
    assert cut is not None
    if state == "read":
        return "read" if token < cut.readable else "bonus"
    if token < cut.readable and state not in _NEVER:
        if state == "evicted_ttl":
            return "expiry"
        if state in _LOST_ABOVE:
            # It would have lapsed anyway: expiry is right too.
            return "expiry" if mine == "expiry" and facts.e >= 0.9 else "unexplained"
        if state == "different_namespace" and not cut.same_domain:
            return "boundary"
    if facts.line is None or token >= cut.base:
        return "new"
    return "policy" if token < cut.shared else "changed"


def score(
    attributions: Sequence[Attribution],
    truth_rows: Iterable[Mapping[str, Any]],
    observed: Sequence[Observed],
    policy: Policy,
) -> dict[str, Any]:
    """Tokens by bucket against expected bucket, outcomes against expected outcomes.

    Truth rows are joined by ``id`` (the request id that the client sent). Requests without truth, with
    truth marked ``incomplete``, or not measured are counted, not scored.
    """
    truth = {str(row["id"]): row for row in truth_rows}
    said = {a.id: a for a in attributions}
    tokens: Counter[tuple[str, str]] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    left_out: Counter[str] = Counter()
    wrong: list[str] = []
    for facts in gather(observed, policy):
        row = truth.get(facts.t.seen.id)
        why = _unscorable(facts, row)
        if why is not None:
            left_out[why] += 1
            continue
        assert row is not None
        want = expected(facts, row["misses"])
        got = (said.get(facts.t.seen.id) or judge(facts)).outcome
        tokens.update(want.tokens)
        outcomes[want.outcome, got] += 1
        if want.outcome != got:
            wrong.append(facts.t.seen.id)
    return {
        "scored": outcomes.total(),
        "not_scored": dict(sorted(left_out.items())),
        "tokens": _matrix(tokens),
        "token_agreement": _agreement(tokens),
        "outcomes": _matrix(outcomes),
        "outcome_agreement": _agreement(outcomes),
        "by_outcome": {str(o): _precision_recall(outcomes, o) for o in MISSES},
        "disagree": wrong[:20],
    }


def _unscorable(facts: Facts, row: Mapping[str, Any] | None) -> str | None:
    if facts.ledger is None:
        return "not_measured"
    if row is None:
        return "no_truth"
    if row.get("incomplete"):
        return "incomplete_truth"
    if _tokens_missed(row) + facts.ledger.read + facts.ledger.bonus != facts.t.prompt:
        return "truth_of_another_prompt"
    return None


def _tokens_missed(row: Mapping[str, Any]) -> int:
    return sum(int(miss["tokens"]) for miss in row["misses"])


def _matrix(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """``{expected: {attributed: n}}``, keys sorted."""
    rows: dict[str, dict[str, int]] = {}
    for (want, got), n in sorted(counts.items()):
        rows.setdefault(str(want), {})[str(got)] = n
    return rows


def _agreement(counts: Mapping[tuple[str, str], int]) -> float | None:
    total = sum(counts.values())
    return sum(n for (want, got), n in counts.items() if want == got) / total if total else None


def _precision_recall(counts: Mapping[tuple[str, str], int], outcome: str) -> dict[str, float | int | None]:
    right = counts.get((outcome, outcome), 0)
    said = sum(n for (_, got), n in counts.items() if got == outcome)
    true = sum(n for (want, _), n in counts.items() if want == outcome)
    return {
        "expected": true,
        "precision": right / said if said else None,
        "recall": right / true if true else None,
    }
