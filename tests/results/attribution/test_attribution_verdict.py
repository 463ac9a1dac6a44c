"""Verdicts survive files, and read well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from results.attribution.attribute import attribute
from results.attribution.explain import explain
from results.attribution.truth import TruthError, score, states
from results.attribution.verdict import read_jsonl, read_parquet, write_jsonl, write_parquet

Load = Callable[..., Any]


@pytest.mark.parametrize(("write", "read"), [(write_parquet, read_parquet), (write_jsonl, read_jsonl)])
def test_files_keep_every_field(load_case: Load, tmp_path: Path, write: Any, read: Any) -> None:
    """What is written is read back equal, the empty list too."""
    case = load_case("28_own_engine_reasons.jsonl")
    verdicts = attribute(case.observed, case.policy)
    write(tmp_path / "a", verdicts)
    assert read(tmp_path / "a") == verdicts
    write(tmp_path / "none", [])
    assert read(tmp_path / "none") == []


def test_explanation_names_the_difference(load_case: Load) -> None:
    """A reset is told with its component, its token, its parent and its ledger."""
    case = load_case("01_clock_in_system.jsonl")
    text = "\n".join(explain(attribute(case.observed, case.policy)[1]))
    for part in ("system_volatile_value", "system[1], token 46 of it", "token 3226", "r0", "Missed: 4380"):
        assert part in text


@pytest.mark.parametrize(
    "file", ["07_idle_past_ttl.jsonl", "14_unexplained.jsonl", "28_own_engine_reasons.jsonl"]
)
def test_explanations_claim_nothing_beyond_the_api(load_case: Load, file: str) -> None:
    """A25: never "evicted" or "routed elsewhere"."""
    case = load_case(file)
    text = "\n".join(line for a in attribute(case.observed, case.policy) for line in explain(a))
    assert "evicted" not in text
    assert "routed" not in text
    if file.startswith("07"):
        assert "likely retention expiry" in text
    if file.startswith("14"):
        assert "no change in the request; cause not visible above the API" in text


def test_states_cover_the_prompt() -> None:
    """Truth's misses become runs of tokens; what is between them was read."""
    misses = [
        {"reason": "never_computed", "first_block": 2, "blocks": 1, "tokens": 16},
        {"reason": "below_block", "first_block": 3, "blocks": 1, "tokens": 5},
    ]
    assert states(misses, 53, 16) == [
        (0, 32, "read"),
        (32, 48, "never_computed"),
        (48, 53, "below_block"),
    ]
    with pytest.raises(TruthError, match="reach token 53"):
        states(misses, 50, 16)


def test_what_cannot_be_scored_is_counted(load_case: Load) -> None:
    """Missing, incomplete and foreign truth is counted by reason."""
    case = load_case("28_own_engine_reasons.jsonl")
    truth = [dict(row) for row in case.truth][1:]
    truth[0]["incomplete"] = True
    truth[1]["misses"] = []
    result = score(attribute(case.observed, case.policy), truth, case.observed, case.policy)
    assert result["not_scored"] == {"incomplete_truth": 1, "no_truth": 1, "truth_of_another_prompt": 1}
    assert result["scored"] == 4
