"""Every case log gives exactly its known answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from results.attribution.attribute import attribute
from results.attribution.facts import gather
from results.attribution.truth import expected, score

Load = Callable[..., Any]
CASES = Path(__file__).parents[2] / "cases" / "attribution"
FILES = sorted(path.name for path in CASES.glob("*.jsonl"))


def _answer(a: Any, like: dict[str, Any]) -> dict[str, Any]:
    """Our verdict in the words of index.json, with the keys that ``like`` has."""
    mine = {
        "request": a.id,
        "outcome": str(a.outcome),
        "subtype": a.subtype,
        "parent": a.parent,
        "prompt": a.prompt,
        "cached": a.cached,
        "idle_s": a.idle_s,
        "base": a.base,
        "shared_prefix": a.shared_prefix,
        "readable": a.readable,
        "ledger": a.ledger.as_dict() if a.ledger else None,
        "missed": a.missed,
        "minor": a.minor,
        "intentional": a.intentional,
    }
    found = asdict(a.first_divergence) if a.first_divergence else None
    keys = like.get("first_divergence")
    mine["first_divergence"] = {key: found[key] for key in keys} if found and keys else found
    return {key: mine[key] for key in {*like, "first_divergence"} & mine.keys()}


@pytest.mark.parametrize("file", FILES)
def test_case_gives_exactly_its_answers(file: str, load_case: Load) -> None:
    """Outcome, subtype, parent, idle, base, S, R, ledger, missed and divergence are those of the index."""
    case = load_case(file)
    for a, want in zip(attribute(case.observed, case.policy), case.expected, strict=True):
        want = {"first_divergence": None, **want}
        assert _answer(a, want) == {key: want[key] for key in _answer(a, want)}
        assert a.confidence == pytest.approx(want["confidence"], abs=0.1 + 1e-9)
        if a.ledger is not None:
            assert a.ledger.total == want["prompt"]
            assert a.ledger.read + a.ledger.bonus == want["cached"]


@pytest.mark.parametrize("file", FILES)
def test_case_without_text_keeps_its_answers(file: str, load_case: Load) -> None:
    """Without text, outcome, parent, missed and divergence stay; a dropped field may look like an edit."""
    case = load_case(file, text=False)
    for a, want in zip(attribute(case.observed, case.policy), case.expected, strict=True):
        assert (a.outcome, a.parent) == (want["outcome"], want["parent"])
        assert a.missed == want.get("missed")
        allowed = {want["subtype"]} | (
            {"history_edited"} if want["subtype"] == "history_field_dropped" else set()
        )
        assert a.subtype in allowed


def test_truth_of_the_own_engine_calls_for_the_ledger_that_was_made(load_case: Load) -> None:
    """Case 28: the expected ledger and outcome of A31 equal ours for every request."""
    case = load_case("28_own_engine_reasons.jsonl")
    misses = {row["id"]: row["misses"] for row in case.truth}
    for facts in gather(case.observed, case.policy):
        want = expected(facts, misses[facts.t.seen.id])
        assert want.ledger == facts.ledger
    result = score(attribute(case.observed, case.policy), case.truth, case.observed, case.policy)
    assert (result["scored"], result["outcome_agreement"], result["token_agreement"]) == (7, 1.0, 1.0)
