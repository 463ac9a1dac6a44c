"""Which requests are good, and the shares and rates made of that (MEASUREMENT C26)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.judging import ClassGoal, Judging
from results.metrics import METRICS, tokens_after_first
from results.outcomes import Mask, after_failed_turn, is_group, is_outcome
from results.record import Outcome
from results.stats.quantiles import Values

HIDDEN_SHARE = 0.01
"""Beyond this share of censored turns and turns after a failed one, gates use the strict attainment;
beyond this share of vacuous SLOs, goodput and attainment decide nothing."""


AT_ONCE = 50_000
"""Requests that are looked at together: their token times take many times their room."""


@dataclass(frozen=True, slots=True)
class Marks:
    """One boolean per row of the frame they were made from."""

    completed: Mask
    correct: Mask
    good: Mask
    vacuous: Mask
    """An SLO metric was undefined (and so counted as met) although more than k_first tokens came."""
    vacuous_any: Mask
    cancelled: Mask
    excluded: Mask
    hidden: Mask
    """Censored by the end of the run, or not sent after a failed turn."""

    def at(self, rows: Mask) -> Marks:
        """The marks of a part of the rows."""
        return Marks(*(getattr(self, name)[rows] for name in Marks.__slots__))


def mark(data: pd.DataFrame, judging: Judging) -> Marks:
    """Marks of a prepared frame. A class without a goal has no SLO and no checks."""
    completed = is_outcome(data, Outcome.COMPLETED)
    correct, good, undefined = (np.zeros(len(data), dtype=bool) for _ in range(3))
    for first in range(0, len(data), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        answered = completed[part]
        passes, met, vacuous = _judged(data.iloc[part], judging)
        correct[part] = answered & passes
        good[part] = answered & passes & met
        undefined[part] = answered & vacuous
    excluded = is_group(data, "excluded")
    hidden = is_outcome(data, Outcome.CENSORED_BY_RUN_END) | after_failed_turn(data)
    short = ~(tokens_after_first(data) > 0)
    cancelled = is_outcome(data, Outcome.CANCELLED_BY_PLAN)
    return Marks(completed, correct, good, undefined & ~short, undefined, cancelled, excluded, hidden)


def _judged(data: pd.DataFrame, judging: Judging) -> tuple[Mask, Mask, Mask]:
    """(passes the checks, meets every defined bound, some bound was undefined) per row."""
    passes, met, vacuous = (np.zeros(len(data), dtype=bool) for _ in range(3))
    for name in data["class"].unique():
        rows = (data["class"] == name).to_numpy(dtype=bool)
        goal, own = judging.classes.get(str(name), ClassGoal()), data[rows]
        passes[rows] = _passes_checks(own, goal)
        met[rows], vacuous[rows] = _meets_slo(own, goal)
    return passes, met, vacuous


def _passes_checks(data: pd.DataFrame, goal: ClassGoal) -> Mask:
    passes = np.array([len(failed) == 0 for failed in data["checks_failed"]], dtype=bool)
    if goal.finish is not None:
        passes &= data["finish"].isin(goal.finish).to_numpy(dtype=bool)
    if goal.exact_output:
        passes &= (data["n_out"] == data["n_out_asked"]).to_numpy(dtype=bool)
    return passes


def _meets_slo(data: pd.DataFrame, goal: ClassGoal) -> tuple[Mask, Mask]:
    """(meets every defined bound, some bound was undefined) per row."""
    met, vacuous = np.ones(len(data), dtype=bool), np.zeros(len(data), dtype=bool)
    for metric, bound in goal.slo.items():
        of = METRICS[metric].per_request
        assert of is not None, f"slo on {metric}, which is no metric of a request"
        values: Values = of(data)
        undefined = np.isnan(values)
        met &= undefined | (values <= bound)
        vacuous |= undefined
    return met, vacuous


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares over the requests of a window; None = nothing to divide by."""

    planned: int
    good: int
    base: int
    """planned - cancelled by plan - excluded"""
    base_strict: int
    value: float | None
    strict: float | None
    for_gates: float | None
    uses_strict: bool
    incorrect: int
    vacuous: int
    undecidable: bool
    """Too many SLOs were vacuous: gates on goodput and attainment are inconclusive."""


def attainment(marks: Marks) -> Attainment:
    """C26 over the rows of ``marks`` (those of the window)."""
    planned, good = len(marks.good), int(marks.good.sum())
    strict_base = planned - int(marks.cancelled.sum())
    base = strict_base - int(marks.excluded.sum())
    uses_strict = planned > 0 and int(marks.hidden.sum()) / planned > HIDDEN_SHARE
    value = good / base if base else None
    strict = good / strict_base if strict_base else None
    completed, vacuous = int(marks.completed.sum()), int(marks.vacuous.sum())
    return Attainment(
        planned,
        good,
        base,
        strict_base,
        value,
        strict,
        strict if uses_strict else value,
        uses_strict,
        int((marks.completed & ~marks.correct).sum()),
        int(marks.vacuous_any.sum()),
        completed > 0 and vacuous / completed > HIDDEN_SHARE,
    )
