"""What a sweep set out to do, and what it ran so far: the two things that sweep.json is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from results.stats.saturation import MIN_WINDOW_NS
from results.sweep.points import Decision
from results.sweep.search import Ask, Space, Verdict


@dataclass(frozen=True, slots=True)
class AxisSpec:
    """One control that is varied. Searched: between ``low`` and ``high``; else each of ``values``."""

    key: str
    unit: str = ""
    """Stands behind a number: ``/s``, ``ms``."""
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = False
    scaled: str = ""
    """How a value is laid on the scenario, if not simply as one key."""

    @property
    def searched(self) -> bool:
        return self.low is not None

    def text(self, value: float) -> str:
        """``4/s``"""
        return f"{value:.12g}{self.unit}"


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """Everything that is fixed before the first point. Times in s; ``cells`` are the crossed values of
    all axes that are not searched."""

    scenario: str
    question: str
    virtual: bool
    own_engine: bool
    seeds: tuple[int, int]
    """Of the first run of a point, and of the second that confirms it."""
    windows: tuple[float, ...]
    """A point that is open after one window runs again with the next."""
    headroom: float
    width: float
    objectives: tuple[str, ...]
    default_objective: bool
    unjudged: tuple[str, ...]
    """Gates of the scenario that no point can decide (they need a baseline)."""
    axes: tuple[AxisSpec, ...]
    cells: tuple[dict[str, str], ...]
    digest: str = ""
    """Of the resolved scenario without the axes, so that a resumed sweep is the same sweep."""
    asked: dict[str, Any] = field(default_factory=dict)
    """The options of the command line."""

    @property
    def searched(self) -> AxisSpec | None:
        return next((axis for axis in self.axes if axis.searched), None)

    @property
    def space(self) -> Space | None:
        axis = self.searched
        if axis is None or axis.low is None or axis.high is None:
            return None
        return Space(axis.low, axis.high, axis.whole, self.width)

    @property
    def tests_saturation(self) -> bool:
        return self.windows[0] * 1e9 >= MIN_WINDOW_NS

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> SweepSpec:
        """Inverse of ``as_dict``, also after JSON has made lists of tuples."""
        axes = tuple(AxisSpec(**tuples(axis)) for axis in data["axes"])
        first, second = data["seeds"]
        return SweepSpec(**(tuples(data) | {"axes": axes, "seeds": (int(first), int(second))}))


@dataclass(frozen=True, slots=True)
class PointRun:
    """One run of one point. ``value`` is that of the searched axis; None where nothing is searched."""

    n: int
    cell: int
    value: float | None
    at: dict[str, str]
    repeat: int
    seed: int
    window: float
    run: str
    """Its run directory within that of the sweep."""
    decision: Decision
    why: tuple[str, ...]
    set_aside: tuple[str, ...]
    client: Literal["valid", "degraded", "invalid"]
    over_saturated: bool | None
    saturation_reason: str | None
    gates: tuple[dict[str, Any], ...]
    rows: dict[str, dict[str, Any]]
    """Columns of results.sweep.columns by class, and ``all``."""

    @property
    def ask(self) -> Ask:
        assert self.value is not None, "of a searched axis"
        return Ask(self.value, self.repeat)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"decision": self.decision.value}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PointRun:
        return PointRun(**(tuples(data) | {"decision": Decision(data["decision"])}))


def tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a frozen value as JSON gave them back."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def of_cell(runs: Sequence[PointRun], cell: int) -> list[PointRun]:
    return [run for run in runs if run.cell == cell]


def history(runs: Sequence[PointRun]) -> dict[Ask, Verdict]:
    """Verdicts of the points of a searched cell; one that is to run longer has none yet."""
    return {run.ask: verdict for run in runs if (verdict := run.decision.verdict) is not None}


def decisive(runs: Sequence[PointRun]) -> list[PointRun]:
    """The last run of every point, in the order of cell and value."""
    last = {(run.cell, run.value, run.repeat): run for run in runs}
    return sorted(last.values(), key=lambda run: (run.cell, run.value or 0.0, run.repeat))
