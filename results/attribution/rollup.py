"""The run's attribution in one object: ``attribution`` of summary.json (JOINTS 6)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from results.attribution.ledger import BUCKETS
from results.attribution.verdict import MISSES, Attribution, Outcome

TOP = 10

_BUCKETS_OF = {
    Outcome.APP_RESET: ("changed", "policy"),
    Outcome.EXPIRY: ("expiry",),
    Outcome.BOUNDARY: ("boundary",),
    Outcome.UNEXPLAINED: ("unexplained",),
}


def rollup(attributions: Sequence[Attribution]) -> dict[str, Any]:
    """Counts and tokens, the same for the same verdicts in any order.

    ``missed_tokens`` counts only requests whose outcome is a miss, by bucket: changed and policy are
    app_reset (OBSERVABILITY O13). Together they are the ``missed`` of these requests. ``avoidable_tokens``
    is what app_reset cost where nobody meant it (A23).
    """
    misses = [a for a in attributions if a.is_miss]
    ledgers = [a.ledger for a in attributions if a.ledger is not None]
    outcomes = Counter(a.outcome for a in attributions)
    resets = [a for a in misses if a.outcome is Outcome.APP_RESET]
    return {
        "requests": len(attributions),
        "outcomes": {str(outcome): outcomes[outcome] for outcome in Outcome},
        "ledger": {name: sum(getattr(one, name) for one in ledgers) for name in BUCKETS},
        "missed_tokens": missed_tokens(misses),
        "by_subtype": _by_subtype(misses),
        "by_component": _by_component(misses),
        "intentional_tokens": sum(a.missed or 0 for a in misses if a.intentional is True),
        "avoidable_tokens": sum(a.missed or 0 for a in resets if a.intentional is not True),
        "overdetermined": sum(a.overdetermined for a in misses),
        "top": _top(misses),
    }


def missed_tokens(misses: Sequence[Attribution]) -> dict[str, int]:
    """Tokens by cause over requests whose outcome is a miss."""
    return {
        str(cause): sum(getattr(a.ledger, name) for a in misses for name in _BUCKETS_OF[cause])
        for cause in MISSES
    }


def component(a: Attribution) -> str:
    """Where the first difference is; all messages are one, since their number grows with every turn."""
    if a.first_divergence is None:
        return "none"
    return re.sub(r"^messages\[\d+\]", "messages", a.first_divergence.path)


def _by_subtype(misses: Sequence[Attribution]) -> dict[str, dict[str, int]]:
    groups: defaultdict[str, list[Attribution]] = defaultdict(list)
    for a in misses:
        groups[f"{a.outcome}/{a.subtype}"].append(a)
    return {
        name: {"requests": len(group), "missed": sum(a.missed or 0 for a in group)}
        for name, group in sorted(groups.items())
    }


def _by_component(misses: Sequence[Attribution]) -> dict[str, int]:
    """Missed tokens of app_resets by the component that changed first."""
    tokens: Counter[str] = Counter()
    for a in misses:
        if a.outcome is Outcome.APP_RESET:
            tokens[component(a)] += a.missed or 0
    return dict(sorted(tokens.items()))


def _top(misses: Sequence[Attribution]) -> list[dict[str, Any]]:
    """The costliest causes, each with its costliest request."""
    groups: defaultdict[tuple[str, str, str], list[Attribution]] = defaultdict(list)
    for a in misses:
        groups[a.outcome, a.subtype, component(a)].append(a)
    rows: list[dict[str, Any]] = []
    for (outcome, subtype, where), group in groups.items():
        worst = min(group, key=lambda a: (-(a.missed or 0), a.id))
        rows.append(
            {
                "outcome": str(outcome),
                "subtype": subtype,
                "component": where,
                "requests": len(group),
                "missed": sum(a.missed or 0 for a in group),
                "intentional": worst.intentional,
                "example": worst.id,
                "parent": worst.parent,
                "confidence": worst.confidence,
                "first_divergence": asdict(worst.first_divergence) if worst.first_divergence else None,
            }
        )
    rows.sort(key=lambda row: (-row["missed"], row["outcome"], row["subtype"], row["component"]))
    return rows[:TOP]
