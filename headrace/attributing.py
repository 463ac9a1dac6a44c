"""From what the load saw to why tokens were not cached: files in the run directory, and the roll-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.observed_io import read_observed, write_observed
from results.attribution.attribute import attribute
from results.attribution.ideal import ideal_reads
from results.attribution.observed import Observed
from results.attribution.policies import Policy, headrace
from results.attribution.rollup import rollup
from results.attribution.truth import score
from results.attribution.verdict import write_parquet
from scenarios.load import load
from scenarios.schema import EngineTarget, Scenario

OBSERVED, ATTRIBUTED = "observed.arrow", "attribution.parquet"


def attribute_run(
    folder: Path,
    observed: Sequence[Observed] | None,
    truth: Sequence[Mapping[str, Any]] | None,
    scenario: Scenario,
) -> dict[str, Any] | None:
    """Attribute every observed request, keep both, and score against the engine's truth.

    None for a target whose tokens are not known.
    """
    if observed is None:
        return None
    if not (folder / OBSERVED).exists():
        write_observed(observed, folder / OBSERVED)
    policy = policy_of(scenario)
    verdicts = attribute(observed, policy)
    write_parquet(folder / ATTRIBUTED, verdicts)
    found = rollup(verdicts)
    if truth is not None:
        found["score"] = score(verdicts, truth, observed, policy)
    return found


def ideal_run(
    observed: Sequence[Observed] | None, truth: Sequence[Mapping[str, Any]] | None, scenario: Scenario
) -> dict[str, int] | None:
    """What endless caches would have served, by request id. None where it is not known which worker holds
    which tokens."""
    if observed is None or truth is None:
        return None
    return ideal_reads(observed, truth, policy_of(scenario))


def observed_again(folder: Path) -> Sequence[Observed] | None:
    """What a run directory keeps of it."""
    return read_observed(folder / OBSERVED) if (folder / OBSERVED).exists() else None


def attribute_again(folder: Path, truth: Sequence[Mapping[str, Any]] | None) -> dict[str, Any] | None:
    """The same for a run directory."""
    observed = observed_again(folder)
    if observed is None:
        return None
    return attribute_run(folder, observed, truth, load(folder / "scenario.yaml"))


def ideal_again(folder: Path, truth: Sequence[Mapping[str, Any]] | None) -> dict[str, int] | None:
    """The same for a run directory."""
    observed = observed_again(folder)
    return None if observed is None else ideal_run(observed, truth, load(folder / "scenario.yaml"))


def policy_of(scenario: Scenario) -> Policy:
    assert isinstance(scenario.target, EngineTarget), "only our own engine's tokens are known"
    engine = scenario.target.engine
    return headrace(engine.memory.block_size, engine.cache.ttl)
