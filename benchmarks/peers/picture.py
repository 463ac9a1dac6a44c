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


Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class _Panel:
    """One plot over the asked rate; a curve's style is added to that of its tool."""

    title: str
    curves: tuple[tuple[Value, str], ...]
    ticks: tuple[tuple[float, str], ...]
    range: tuple[float, float]
    log: bool = False


def _errors(name: str, p50: Value, p99: Value) -> _Panel:
    return _Panel(
        f"{name}: reported minus true, without its sign (– p50, - - p99)",
        ((lambda row: _size(p50(row)), ""), (lambda row: _size(p99(row)), "p99")),
        tuple((10.0**k, seconds(10.0 ** (k - 3))) for k in range(-2, 5)),
        (_LEAST_MS, _MOST_MS),
        log=True,
    )


def _size(value: float | None) -> float | None:
    """Within what the axis can show."""
    return None if value is None else min(max(abs(value), _LEAST_MS), _MOST_MS)


_PANELS = (
    _errors("TTFT", lambda row: row.off.ttft_p50, lambda row: row.off.ttft_p99),
    _errors("TPOT", lambda row: row.off.tpot_p50, lambda row: row.off.tpot_p99),
    _Panel(
        "Delivered of the asked rate",
        ((lambda row: row.share, ""),),
        tuple((k / 4, f"{k / 4:.0%}") for k in range(5)),
        (0.0, 1.1),
    ),
)


def picture(rows: Sequence[Row]) -> str | None:
    """SVG that stands alone; None before there is a row."""
    if not rows:
        return None
    tools = list(dict.fromkeys(row.tool for row in rows))
    panels = "".join(
        _placed(_drawn(panel, rows, tools), k * (_HEIGHT + _GAP)) for k, panel in enumerate(_PANELS)
    )
    height = len(_PANELS) * (_HEIGHT + _GAP) + _FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">'
        f"<title>Load generators against a reference server</title><style>{_STYLE}</style>"
        f"{panels}{_placed(_legend(tools), height - _FOOT, _FOOT)}</svg>\n"
    )


def _drawn(panel: _Panel, rows: Sequence[Row], tools: Sequence[str]) -> Chart:
    chart = Chart(panel.title, panel.title, width=_WIDTH, height=_HEIGHT, left=64, wide=False)
    rates = sorted({row.asked for row in rows})
    x = Scale(0, rates[-1] * 1.04, chart.x0, chart.x1)
    y = Scale(*panel.range, chart.y0, chart.y1, log=panel.log)
    chart.y_axis(y, panel.ticks, panel.title)
    chart.x_axis(x, [(rate, f"{rate:,.0f}") for rate in rates], "asked streams/s")
    for k, tool in enumerate(tools):
        mine = sorted((row for row in rows if row.tool == tool), key=lambda row: row.asked)
        for value, style in panel.curves:
            points = [(x(row.asked), y(found)) for row in mine if (found := value(row)) is not None]
            chart.path(points, f"curve t{k} {style}".strip())
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
