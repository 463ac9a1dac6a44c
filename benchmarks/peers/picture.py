"""The picture of all rows: how far each tool is off, and what it delivers, over the asked rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers.rows import Row
from results.report.charts import Chart, Scale, seconds

_WIDTH, _HEIGHT, _GAP, _FOOT = 760, 210, 14, 46
_LEAST_MS, _MOST_MS = 0.01, 10_000.0
_STYLE = """
svg { font: 12px system-ui, sans-serif; }
text { fill: #4b5563; } .label, .tick { fill: #6b7280; font-size: 11px; } .title { font-weight: 600; }
.grid { stroke: #e5e7eb; } .axis { stroke: #9aa3b2; } .outside { fill: none; }
.curve { fill: none; stroke-width: 2; } .p99 { stroke-dasharray: 5 4; stroke-width: 1.6; }
.t0 { stroke: #0f766e; } .t1 { stroke: #c2410c; } .t2 { stroke: #6d28d9; } .t3 { stroke: #1d4ed8; }
.d0 { fill: #0f766e; } .d1 { fill: #c2410c; } .d2 { fill: #6d28d9; } .d3 { fill: #1d4ed8; }
@media (prefers-color-scheme: dark) {
  text { fill: #d1d5db; } .label, .tick { fill: #9ca3af; }
  .grid { stroke: #272f3b; } .axis { stroke: #5d6878; }
  .t0 { stroke: #2dd4bf; } .t1 { stroke: #fb923c; } .t2 { stroke: #a78bfa; } .t3 { stroke: #60a5fa; }
  .d0 { fill: #2dd4bf; } .d1 { fill: #fb923c; } .d2 { fill: #a78bfa; } .d3 { fill: #60a5fa; }
}
"""


@dataclass(frozen=True, slots=True)
class _Curve:
    value: Callable[[Row], float | None]
    style: str = ""


def picture(rows: Sequence[Row]) -> str | None:
    """SVG that stands alone; None before there is a row."""
    tools = list(dict.fromkeys(row.tool for row in rows))
    if not rows:
        return None
    errors = ((0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0), _LEAST_MS, _MOST_MS)
    panels = (
        _panel(
            rows,
            tools,
            "TTFT: reported minus true, size (– p50, - - p99)",
            *errors,
            ms=True,
            curves=(
                _Curve(lambda row: _size(row.off.ttft_p50)),
                _Curve(lambda row: _size(row.off.ttft_p99), "p99"),
            ),
        ),
        _panel(
            rows,
            tools,
            "TPOT: reported minus true, size (– p50, - - p99)",
            *errors,
            ms=True,
            curves=(
                _Curve(lambda row: _size(row.off.tpot_p50)),
                _Curve(lambda row: _size(row.off.tpot_p99), "p99"),
            ),
        ),
        _panel(
            rows,
            tools,
            "Delivered of the asked rate",
            (0.0, 0.25, 0.5, 0.75, 1.0),
            0.0,
            1.1,
            ms=False,
            curves=(_Curve(lambda row: row.share),),
        ),
    )
    placed = "".join(_placed(panel, k * (_HEIGHT + _GAP)) for k, panel in enumerate(panels))
    height = len(panels) * (_HEIGHT + _GAP) + _FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
        f"<title>Load generators against a reference server</title><style>{_STYLE}</style>"
        f"{placed}{_placed(_legend(tools), height - _FOOT, _FOOT)}</svg>\n"
    )


def _size(value: float | None) -> float | None:
    return None if value is None else min(max(abs(value), _LEAST_MS), _MOST_MS)


def _panel(
    rows: Sequence[Row],
    tools: Sequence[str],
    title: str,
    ticks: Sequence[float],
    low: float,
    high: float,
    *,
    ms: bool,
    curves: Sequence[_Curve],
) -> Chart:
    chart = Chart(title, title, width=_WIDTH, height=_HEIGHT, left=64, wide=False)
    rates = sorted({row.asked for row in rows})
    x = Scale(0, rates[-1] * 1.04, chart.x0, chart.x1)
    y = Scale(low, high, chart.y0, chart.y1, log=ms)
    chart.y_axis(y, [(tick, seconds(tick / 1e3) if ms else f"{tick:.0%}") for tick in ticks], title)
    chart.x_axis(x, [(rate, f"{rate:,.0f}") for rate in rates], "asked streams/s")
    for k, tool in enumerate(tools):
        mine = sorted((row for row in rows if row.tool == tool), key=lambda row: row.asked)
        for curve in curves:
            points = [(x(row.asked), y(value)) for row in mine if (value := curve.value(row)) is not None]
            chart.path(points, f"curve t{k} {curve.style}".strip())
            for point in points:
                chart.dot(point, f"d{k}", 2.6)
    return chart


def _legend(tools: Sequence[str]) -> Chart:
    chart = Chart("Legend", ", ".join(tools), width=_WIDTH, height=_FOOT, wide=False)
    for k, tool in enumerate(tools):
        left = 64 + k * 170.0
        chart.line((left, 20), (left + 26, 20), f"curve t{k}")
        chart.text(left + 34, 24, tool)
    return chart


def _placed(chart: Chart, top: float, height: float = _HEIGHT) -> str:
    """A chart as part of a larger picture."""
    return chart.svg().replace("<svg ", f'<svg y="{top:g}" width="{_WIDTH}" height="{height:g}" ', 1)
