"""What the picture and the tables of a sweep show of its runs: curves, their points, and the axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from results.report.charts import Chart, Scale, ceiling, digits
from results.sweep.columns import ALL
from results.sweep.phrases import name_of
from results.sweep.spec import AxisSpec, PointRun, SweepSpec, decisive

COLOURS = 6


@dataclass(frozen=True, slots=True)
class XAxis:
    """The axis that runs from left to right: the searched one, else the first with several numbers, else
    the first, its values side by side."""

    spec: AxisSpec
    numbers: bool

    @staticmethod
    def of(spec: SweepSpec) -> XAxis:
        if spec.searched is not None:
            return XAxis(spec.searched, True)
        several = [axis for axis in spec.axes if len(axis.values) > 1] or list(spec.axes)
        numeric = [axis for axis in several if all(number(v) is not None for v in axis.values)]
        return XAxis((numeric or several)[0], bool(numeric))

    def place(self, run: PointRun) -> float:
        """Where a run stands on the axis."""
        if run.value is not None:
            return run.value
        text = run.at[self.spec.key]
        found = number(text) if self.numbers else None
        return float(self.spec.values.index(text)) if found is None else found

    def scale(self, chart: Chart, places: Sequence[float]) -> Scale:
        """From the least to the largest place, with room at the sides."""
        if not self.numbers:
            return Scale(-0.5, len(self.spec.values) - 0.5, chart.x0, chart.x1)
        low, high = min(places), max(places)
        if low > 0 and high / low >= 6:
            return Scale(low / 1.15, high * 1.15, chart.x0, chart.x1, log=True)
        room = (high - low or abs(high) or 1.0) * 0.06
        return Scale(max(0.0, low - room) if low >= 0 else low - room, high + room, chart.x0, chart.x1)

    def labels(self, scale: Scale) -> list[tuple[float, str]]:
        if not self.numbers:
            return [(float(i), text) for i, text in enumerate(self.spec.values)]
        ticks = [value for value in scale.ticks(8) if value == int(value) or not self.spec.whole]
        return [(value, f"{digits(value)}{self.spec.unit}") for value in ticks]


def number(text: str) -> float | None:
    """The number that a value begins with: 4 of ``4/s``; None of ``cost`` and ``{a: 1}``."""
    head = text.rstrip("/%abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    try:
        found = float(head)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one colour, from left to right; ``rows`` names the class whose numbers they have."""

    name: str
    colour: str
    rows: str
    points: tuple[tuple[float, PointRun], ...]
    again: tuple[tuple[float, PointRun], ...] = ()
    """Second runs: marked, and not on the curve."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that its numbers are of, if they are of one only: then that one."""
        names = {name for _, run in self.points for name in run.rows if name != ALL}
        return (self.rows,) if self.rows != ALL else tuple(names) if len(names) == 1 else ()

    def values(self, column: str) -> list[tuple[float, float]]:
        """(place, value) where the value is known."""
        found = [(x, run.rows[self.rows].get(column)) for x, run in self.points if self.rows in run.rows]
        return [(x, float(value)) for x, value in found if value is not None]


def curves(spec: SweepSpec, runs: Sequence[PointRun], axis: XAxis) -> list[Curve]:
    """One for each class, or where several cells are compared, one for each of these over all classes."""
    groups: dict[str, list[PointRun]] = {}
    for run in decisive(runs):
        groups.setdefault(_rest(run, axis), []).append(run)
    if len(groups) == 1 and (members := next(iter(groups.values()))):
        classes = [name for name in members[0].rows if name != ALL]
        return [_curve(name, i, name, members, axis) for i, name in enumerate(classes)]
    return [_curve(name, i, ALL, members, axis) for i, (name, members) in enumerate(groups.items())]


def total(spec: SweepSpec, runs: Sequence[PointRun], axis: XAxis) -> list[Curve]:
    """The same over all classes together."""
    found = curves(spec, runs, axis)
    if found and found[0].rows != ALL:
        return [replace(found[0], name="all classes", colour="c0", rows=ALL)]
    return found


def _rest(run: PointRun, axis: XAxis) -> str:
    """The values of the other axes, which a curve has in common."""
    return name_of({key: value for key, value in run.at.items() if key != axis.spec.key})


def _curve(name: str, i: int, rows: str, members: Iterable[PointRun], axis: XAxis) -> Curve:
    placed = sorted(((axis.place(run), run) for run in members), key=lambda point: point[0])
    first, again = (tuple(p for p in placed if (p[1].repeat > 0) is second) for second in (False, True))
    return Curve(name, f"c{i % COLOURS}", rows, first, again)


def latency_of(runs: Sequence[PointRun]) -> str:
    """The headline latency: to the first token, or where nothing is streamed, to the end; from the due
    time, or where all loops are closed, from the send."""
    order = ("ttft_sched", "ttft", "e2e_sched", "e2e")
    known = (name for name in order if any(run.rows[ALL][f"{name}_p50"] is not None for run in runs))
    return next(known, order[0])


def value_scale(values: Sequence[float], bottom: float, top: float) -> Scale:
    """From 0, or logarithmic where the values are far apart."""
    high = max(values, default=1.0)
    positive = [value for value in values if value > 0]
    if positive and high / min(positive) > 20:
        return Scale(min(positive) / 1.3, high * 1.3, bottom, top, log=True)
    return Scale(0, ceiling(high * 1.08), bottom, top)
