"""What stands in a scenario and can never act: blocks of a workload, and gates that decide nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadgen.workload.lengths import most
from loadgen.workload.sessions import Sessions
from results.gates import Gate
from results.metrics import Kind
from scenarios.schema import Scenario

_VALUES = dict.fromkeys((Kind.LATENCY, Kind.RATE, Kind.FACTOR, Kind.COUNT, Kind.AMOUNT), (0.0, math.inf))
_VALUES[Kind.RATIO] = (0.0, 1.0)
"""Least and most that a metric can be, by kind."""


def inert_blocks(scenario: Scenario) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Blocks for a turn that no session of their load has."""
    for i, load in enumerate(scenario.load):
        work, at = load.works, ("load", i, "workload")
        if not isinstance(work, Sessions):
            continue
        turns = most(work.turns)
        last = f"no session has it: the first turn is 0, the last {turns - 1}"
        if work.branches is not None and work.branches.at >= turns:
            yield (*at, "branches", "at"), f"no branch begins at turn {work.branches.at}, {last}"
        if work.slip is not None and work.slip.turn is not None and not 0 <= work.slip.turn < turns:
            yield (*at, "slip", "turn"), f"no clock slips in at turn {work.slip.turn}, {last}"


def inert_gate(gate: Gate) -> str | None:
    """Why a gate is decided before anything is measured; None if it is not. A bound at the very end of
    what can be, such as ``>= 0``, asks that there be a number at all."""
    if gate.regression or gate.kind not in _VALUES:
        return None
    low, high = _VALUES[gate.kind]
    span = f"it lies between {low:g} and {high:g}" if math.isfinite(high) else f"it is {low:g} or more"
    if not low <= gate.bound <= high:
        return f"it {'always' if gate.meets(low) else 'never'} holds: {span}"
    if (gate.op, gate.bound) in (("<", low), (">", high)):
        return f"it never holds: {span}"
    return None
