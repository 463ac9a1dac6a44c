"""How long each request of a run would have taken on the idle target (MEASUREMENT, *alone*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from results.alone import IdleCost, by_company, by_cost
from results.record import Record
from scenarios.schema import EngineTarget, Scenario

SIMULATED = "simulated"


def alone_times(scenario: Scenario, records: Sequence[Record], virtual: bool) -> dict[int, float] | None:
    """s by request id, for ``Run.finish``; None if nobody can tell. The workers of a virtual run, and of the
    simulated model, take the time of the cost model; of any other target the quietest requests tell."""
    target = scenario.target
    if isinstance(target, EngineTarget) and (virtual or target.engine.model == SIMULATED):
        return by_cost(records, idle_cost(target))
    return by_company(records) or None


def idle_cost(target: EngineTarget) -> IdleCost:
    """The step times of a worker that has one request."""
    cost, limits = target.engine.cost, target.engine.scheduler
    known = {f.name: getattr(cost, f.name) for f in fields(IdleCost) if hasattr(cost, f.name)}
    return IdleCost(**known, chunk=min(limits.prefill_chunk, limits.max_step_tokens))
