"""The lines to copy of docs/scenario.md, all in one run in virtual time: each does what it is there for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from headrace import console
from headrace.run import Options, run_scenario
from results.run import Run
from results.stats.quantiles import Values

DOCS = Path(__file__).parents[2] / "docs"
ENGINE = {
    "model": "simulated",
    "memory": {"kv_blocks": 8192},
    "scheduler": {"max_step_tokens": 4096, "max_running": 256, "prefill_chunk": 1024},
    "cost": {
        "a": "5ms",
        "b": "0.01ms",
        "c": "0.05ms",
        "d": "1e-8s",
        "e": "1e-9s",
        "g0": "1ms",
        "g1": "1e-6s",
    },
    "adapters": {"lora-7": "made-up"},
}
HANG_UPS = {"id": "hang", "type": "cancel", "class": "tails", "share": "20%", "when": {"decode": 1}}


def recipes() -> list[dict[str, Any]]:
    text = (DOCS / "scenario.md").read_text(encoding="utf-8")
    found = re.search(r"^### Lines to copy\n.*?^```yaml\n(.*?)^```$", text, re.M | re.S)
    assert found is not None
    loads: list[dict[str, Any]] = yaml.safe_load(found[1])["load"]
    return loads


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Of a run of 20 s without warm-up; times in s."""
    folder = tmp_path_factory.mktemp("recipes")
    scenario = {"headrace": 1, "seed": 6, "target": {"engine": ENGINE}}
    scenario |= {
        "classes": {load["class"]: {} for load in recipes()},
        "load": recipes(),
        "faults": [HANG_UPS],
    }
    scenario |= {"phases": {"window": "20s", "drain": "30s"}}
    file = folder / "recipes.yaml"
    file.write_text(yaml.safe_dump(scenario, sort_keys=False))
    run_scenario(file, Options(out=folder / "run", virtual=True), console.view(quiet=True))
    found = Run.load(folder / "run").records
    times = {name: found[name] / 1e9 for name in ("due", "first_token", "terminal")}
    return found.assign(**times).sort_values("id")


def of(records: pd.DataFrame, name: str) -> pd.DataFrame:
    return records[records["class"] == name]


def test_every_line_is_answered(records: pd.DataFrame) -> None:
    """All but hang-ups and what the end of the load cut off."""
    assert set(records["class"]) == {load["class"] for load in recipes()}
    assert set(records["outcome"]) <= {"completed", "cancelled_by_plan", "not_sent"}
    completed = records[records["outcome"] == "completed"]
    assert (completed["n_out"] == completed["n_out_asked"]).all()
    added = (completed["n_in"] - completed["n_in_asked"])[completed["turn"] == 0]
    assert added.groupby(completed["class"]).nunique().max() == 1, "a template adds as much to each"


def test_arrivals_have_their_law(records: pd.DataFrame) -> None:
    """Clumps are clumped, pauses are pauses, a climb climbs, a burst comes at once, users wait."""

    def due(name: str) -> Values:
        return np.sort(of(records, name)["due"].dropna().to_numpy(dtype=np.float64))

    clumps, even = np.diff(due("clumps")), np.diff(due("users"))
    assert clumps.std() / clumps.mean() > 1.4 * even.std() / even.mean()
    assert (due("waves") % 5 < 2).all()
    assert np.count_nonzero(due("climb") > 10) > 1.5 * np.count_nonzero(due("climb") < 10)
    assert np.mean(due("days") % 10 < 5) > 0.6
    assert len(due("counted")) == 30
    assert due("counted")[-1] == pytest.approx(10)
    assert due("burst").tolist() == [4.0] * 20
    waiting = of(records, "waiting").dropna(subset=["due", "terminal"]).sort_values("due")
    for _, user in waiting.groupby("session"):
        times = user[["due", "terminal"]].to_numpy(dtype=np.float64)
        assert (times[1:, 0] >= times[:-1, 1] + 0.5 - 1e-6).all()


def test_lengths_and_prefixes_are_as_asked(records: pd.DataFrame) -> None:
    """A long tail, every cell, instructions that are shared, prompts that come again."""
    tails = of(records, "tails")["n_in_asked"]
    assert tails.max() > 4 * tails.median()
    cells = of(records, "cells").groupby(["n_in_asked", "n_out_asked"]).size()
    assert len(cells) == 4
    assert cells.max() - cells.min() <= 1
    assert (of(records, "apps")["cache_read"] >= 192).mean() > 0.5
    assert 0.1 < (of(records, "again")["cache_read"] > 0).mean() < 0.6
    assert (of(records, "users")["cache_read"] == 0).all()


def test_sessions_grow_as_they_say(records: pd.DataFrame) -> None:
    """Histories are cached; tools, sub-agents and branches add requests; compaction shortens prompts."""
    for name in ("talk", "script"):
        rows = of(records, name)
        later = rows[(rows["turn"] > 0) & (rows["outcome"] == "completed")]
        assert (later["cache_read"] >= 112).all()
    requests = of(records, "tools").groupby("session").size()
    assert set(requests) == {6}
    helpers = of(records, "helpers")
    assert set(helpers.groupby("session").size()) == {2}, "ask, report; a sub-agent's two in one of its own"
    assert helpers["session"].nunique() == 2 * helpers["parent"].isna().sum()
    forks = of(records, "forks")
    assert set(forks[forks["turn"] == 1].groupby("parent").size()) == {3}
    for _, session in of(records, "compact").groupby("session"):
        asked = session.sort_values("turn")["n_in_asked"].astype("float64")
        assert asked.max() <= 300
        assert (asked.diff() < 0).any()
    away = of(records, "away")
    ended = away.set_index("id")["terminal"]
    pauses = (away["due"] - away["parent"].map(ended)).dropna().round(3)
    assert set(pauses.tolist()) == {0.0, 3.0}


def test_shares_of_who_asks_are_met(records: pd.DataFrame) -> None:
    """Tenants, adapters, and users who hang up."""
    shares = of(records, "accounts")["tenant"].value_counts(normalize=True)
    assert shares["a"] == pytest.approx(0.75, abs=0.12)
    assert of(records, "zipf")["tenant"].value_counts().index[0] == "t1"
    assert of(records, "zipf")["tenant"].nunique() == 5
    assert of(records, "tuned")["adapter"].notna().mean() == pytest.approx(0.4, abs=0.15)
    hung = of(records, "tails")["outcome"] == "cancelled_by_plan"
    assert hung.mean() == pytest.approx(0.2, abs=0.05)
