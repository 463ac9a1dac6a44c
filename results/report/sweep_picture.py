"""The picture of a sweep: latency above, rates below, over the same axis; bracket, knee and safe point
across both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.gates import GateError, parse_gate
from results.report.charts import Chart, Scale, ceiling, digits, seconds
from results.report.sweep_series import Curve, XAxis, curves, latency_of, total, value_scale
from results.report.words import duration, percent, rate
from results.sweep.columns import ALL
from results.sweep.phrases import name_of
from results.sweep.points import Decision
from results.sweep.spec import PointRun, SweepSpec

_UPPER, _LOWER = (64.0, 258.0), (318.0, 488.0)
"""Top and bottom of the two plots, px."""
_LETTER = 6.7


@dataclass(frozen=True, slots=True)
class _Frame:
    chart: Chart
    axis: XAxis
    x: Scale


def picture(spec: SweepSpec, runs: Sequence[PointRun], document: Mapping[str, Any]) -> str | None:
    """SVG; None before there is a point."""
    if not runs:
        return None
    axis = XAxis.of(spec)
    chart = Chart(
        f"Latency and rates over {axis.spec.key}",
        "Above: the headline latency by class or cell, p50 and p90. Below: offered, completed and good "
        "requests per second. The band is the bracket of the last pass and the first fail.",
        height=538,
        left=66,
        bottom=50,
    )
    marks = [v for cell in document["cells"] for v in _marks(cell)]
    x = axis.scale(chart, [*(axis.place(run) for run in runs), *marks])
    frame = _Frame(chart, axis, x)
    if len(document["cells"]) == 1 and "bracket" in document["cells"][0]:
        _bracket(frame, document["cells"][0])
    _latencies(frame, spec, runs)
    _rates(frame, spec, runs)
    if len(document["cells"]) > 1:
        _safe_ticks(frame, curves(spec, runs, axis), document)
    chart.x_axis(x, axis.labels(x), axis.spec.key)
    return chart.svg()


def _marks(cell: Mapping[str, Any]) -> list[float]:
    """Values that must be on the axis, also where no run stands."""
    safe = cell.get("safe", {}).get("value")
    return [] if safe is None else [safe]


def _bracket(frame: _Frame, cell: Mapping[str, Any]) -> None:
    chart, x = frame.chart, frame.x
    low, high = cell["bracket"]["pass"], cell["bracket"]["fail"]
    labels: list[tuple[float, str, str]] = []
    if low is not None and high is not None:
        for top, bottom in (_UPPER, _LOWER):
            chart.box((x(low), bottom), (x(high), top), "bracket")
    elif high is not None:
        labels.append((x(high), f"fails {_text(frame, high)}", "fails"))
    if low is not None:
        above = "" if high is None else f", fails {_text(frame, high)}"
        labels.append((x(low), f"holds {_text(frame, low)}{above}", "bracketname"))
    for name, value, style in (
        ("knee", cell["knee"]["below"], "knee"),
        ("safe", cell["safe"]["value"], "safe"),
    ):
        if value is not None:
            for top, bottom in (_UPPER, _LOWER):
                chart.line((x(value), bottom), (x(value), top), style)
            labels.append((x(value), f"{name} {_text(frame, value)}", f"{style}name"))
    _names(chart, labels)


def _names(chart: Chart, labels: Sequence[tuple[float, str, str]]) -> None:
    """Above the upper plot, in as many rows as they need not to touch."""
    rows: list[float] = []
    for at, words, style in sorted(labels):
        wide = len(words) * _LETTER
        begin = min(max(at - wide / 2, chart.x0), chart.x1 - wide)
        row = next((i for i, end in enumerate(rows) if begin > end + 12), len(rows))
        if row == len(rows):
            rows.append(0.0)
        rows[row] = begin + wide
        chart.text(begin, _UPPER[0] - 10 - 15 * row, words, "start", style)


def _text(frame: _Frame, value: float) -> str:
    return frame.axis.spec.text(value)


def _latencies(frame: _Frame, spec: SweepSpec, runs: Sequence[PointRun]) -> None:
    metric = latency_of(runs)
    drawn = curves(spec, runs, frame.axis)
    values = [v for curve in drawn for q in ("p50", "p90") for _, v in curve.values(f"{metric}_{q}")]
    y = value_scale(values, _UPPER[1], _UPPER[0])
    _y_axis(frame.chart, y, [(v, seconds(v)) for v in y.ticks(5)])
    frame.chart.text(2, 12, f"{metric}: p90 in full, p50 dashed", "start", "label")
    for curve in drawn:
        _bounds(frame.chart, spec, curve, metric, y)
        _line(frame, curve, f"{metric}_p50", y, "curve median")
        _line(frame, curve, f"{metric}_p90", y, "curve")
        _points(frame, curve, f"{metric}_p90", y)


def _bounds(chart: Chart, spec: SweepSpec, curve: Curve, metric: str, y: Scale) -> None:
    """Objectives on what is drawn, as dashed lines where they are on the scale."""
    for text in spec.objectives:
        try:
            gate = parse_gate(text)
        except GateError:
            continue
        own = gate.scope in curve.classes or (gate.scope is None and curve.rows == ALL)
        if own and gate.metric == metric and gate.stat in ("p50", "p90") and y.low < gate.bound <= y.high:
            chart.line((chart.x0, y(gate.bound)), (chart.x1, y(gate.bound)), f"slo {curve.colour}")
            chart.text(chart.x0 + 6, y(gate.bound) - 4, text, "start", f"tick {curve.colour}")


def _rates(frame: _Frame, spec: SweepSpec, runs: Sequence[PointRun]) -> None:
    drawn = total(spec, runs, frame.axis)
    columns = ("good_rate",) if len(drawn) > 1 else ("asked_rate", "completed_rate", "good_rate")
    values = [v for curve in drawn for column in columns for _, v in curve.values(column)]
    y = Scale(0, ceiling(max(values, default=1.0) * 1.08), _LOWER[1], _LOWER[0])
    _y_axis(frame.chart, y, [(v, digits(v)) for v in y.ticks(4)])
    what = "good" if len(drawn) > 1 else "asked, completed and good"
    frame.chart.text(2, _LOWER[0] - 14, f"{what} requests per second, all classes", "start", "label")
    for curve in drawn:
        if len(drawn) == 1:
            _line(frame, curve, "asked_rate", y, "curve offered")
            _line(frame, curve, "completed_rate", y, "curve completed")
        _line(frame, curve, "good_rate", y, "curve" if len(drawn) > 1 else "curve goodput")
        _points(frame, curve, "good_rate", y)


def _y_axis(chart: Chart, y: Scale, labels: Sequence[tuple[float, str]]) -> None:
    for value, words in labels:
        chart.line((chart.x0, y(value)), (chart.x1, y(value)), "grid")
        chart.text(chart.x0 - 7, y(value) + 4, words, "end", "tick")
    chart.line((chart.x0, y.start), (chart.x1, y.start), "axis")


def _line(frame: _Frame, curve: Curve, column: str, y: Scale, style: str) -> None:
    points = [(frame.x(at), y(value)) for at, value in curve.values(column)]
    if frame.axis.numbers:
        frame.chart.path(points, f"{style} {curve.colour}")


def _points(frame: _Frame, curve: Curve, column: str, y: Scale) -> None:
    """Filled: it passed. Crossed: it failed. Hollow: undecided, or the client was at its limit."""
    for place, run in (*curve.points, *curve.again):
        value = run.rows[curve.rows].get(column) if curve.rows in run.rows else None
        if value is None:
            continue
        at, tip = (frame.x(place), y(float(value))), _tip(run, curve)
        if run.decision is Decision.PASS:
            frame.chart.dot(at, f"dot {curve.colour}", 3.6, tip)
        elif run.decision is Decision.FAIL:
            frame.chart.cross(at, "cross bad", 4.2, tip)
        else:
            frame.chart.dot(at, f"mark {curve.colour}", 3.6, tip)


def _tip(run: PointRun, curve: Curve) -> str:
    row = run.rows[curve.rows]
    again = ", second run" if run.repeat else ""
    metric = latency_of([run])
    ttft = f"{metric} p50 {duration(row[f'{metric}_p50'])}, p90 {duration(row[f'{metric}_p90'])}"
    good = f"good {rate(row['good_rate'])}/s, attained {percent(row['attainment'])}"
    return f"{name_of(run.at)}{again} · {curve.name or 'all'}: {run.decision.value}, {ttft}, {good}"


def _safe_ticks(frame: _Frame, drawn: Sequence[Curve], document: Mapping[str, Any]) -> None:
    """Where several cells are compared: a mark at the foot for the safe point of each."""
    colours = {run.cell: curve.colour for curve in drawn for _, run in curve.points}
    for i, cell in enumerate(document["cells"]):
        value = cell.get("safe", {}).get("value")
        if value is not None and i in colours:
            at = (frame.x(value), _LOWER[1])
            frame.chart.dot(
                at, f"dot {colours[i]}", 5.2, f"safe point {_text(frame, value)}: {cell['words']}"
            )
