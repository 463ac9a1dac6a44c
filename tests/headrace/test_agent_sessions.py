"""The shipped agent sessions in virtual time, through the whole of headrace."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from headrace import prepare
from headrace.console import Silent
from headrace.run import Options, run_scenario
from headrace.verdict import Outcome

NAME = Path("agent-sessions")
SHORTER = ("phases={warmup: 5s, window: 60s, drain: 60s}",)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    out = tmp_path_factory.mktemp("agents") / "run"
    return run_scenario(NAME, Options(out=out, virtual=True, overrides=SHORTER), Silent())


def test_it_passes_with_every_kind_of_turn(outcome: Outcome) -> None:
    """Exit 0; tools were called, sub-agents sent, and a history was compacted."""
    assert (outcome.last_line["exit"], outcome.last_line["client"]) == (0, "valid")
    plan = prepare.make_plan(prepare.load_scenario(NAME, SHORTER, virtual=True))
    assert {part.role for shot in plan.shots for part in shot.prompt} == {
        "system",
        "user",
        "assistant",
        "tool",
    }
    parents = {shot.id: shot.session for shot in plan.shots}
    assert any(s.turn == 0 and s.parent is not None and parents[s.parent] != s.session for s in plan.shots)
    assert any("/c" in part.text_key.partition("/")[2] for shot in plan.shots for part in shot.prompt)
    ends = pd.read_parquet(outcome.folder / "records.parquet", columns=["outcome"])["outcome"]
    assert set(ends) <= {"completed", "not_sent"}


def test_sessions_take_longer_than_alone_and_never_less(outcome: Outcome) -> None:
    """On a cost model the ideal is exact: nobody beats it, and at this load nobody takes twice as long."""
    block = outcome.summary["classes"]["agent"]
    stretch = block["metrics"]["session_stretch"]
    assert stretch["n"] == block["sessions"]["whole"] == block["sessions"]["planned"] > 10
    assert 0.999 < stretch["min"] <= stretch["p50"] < 1.5
    assert block["metrics"]["slowdown"]["min"] > 0.999
    later = block["sessions"]["later_turns"]
    assert 0.9 < later["share"] <= 1.05


def test_prompts_have_the_lengths_asked_for_and_the_cache_was_cold(outcome: Outcome) -> None:
    """Served = asked + the template, in every first turn; no hit that the plan does not explain."""
    prompt = outcome.summary["classes"]["agent"]["lengths"]["prompt"]
    assert (prompt["spread"], prompt["exact"], prompt["doubt"]) == (0, 1.0, None)
    assert outcome.summary["classes"]["agent"]["lengths"]["output_exact"] == 1.0
    assert outcome.summary["cache"]["contract"]["state"] == "held"
    assert outcome.summary["cache"]["hits"]["hit_token_weighted"] > 0.5
