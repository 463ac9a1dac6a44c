"""Pictures over time: first tokens, rates, cache blocks, with the spans of the faults shaded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pandas as pd

from results.engine_truth import KV_STATES, kv_series
from results.judging import SECOND
from results.metrics import METRICS
from results.outcomes import Mask
from results.rates import rate_masks
from results.report.charts import Chart, Scale, ceiling, seconds
from results.stats.quantiles import Values
from results.view import View

MAX_POINTS = 2500
COLOURS = 6
_LABEL = 13
"""Height of a line of small text."""
_SHORTEST_S = 1e-3
"""An axis has a length, whatever little the run did."""


class Palette:
    """A colour class for every class of requests, in the order of their ranks."""

    def __init__(self, view: View) -> None:
        names = sorted(view.names, key=lambda n: (view.judging.rank(n), n))
        self.names = names
        self._at = {name: f"c{i % COLOURS}" for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> str:
        return self._at[name]


def _span(view: View) -> tuple[float, float]:
    """The part of the run that has anything to show, s."""
    a, b = view.judging.window
    last = np.nanmax(np.append(view.data["terminal"].to_numpy(dtype=np.float64), float(b)))
    first = np.nanmin(np.append(view.data["due"].to_numpy(dtype=np.float64), float(a)))
    low, high = min(float(first), a) / SECOND, min(float(last), b + (b - a) * 0.5) / SECOND
    return low, max(high, low + _SHORTEST_S)


def _time_axis(chart: Chart, view: View, label_y: float | None = None) -> Scale:
    """The axis, with what lies outside the window greyed (and named, at ``label_y``)."""
    low, high = _span(view)
    x = Scale(low, high, chart.x0, chart.x1)
    a, b = (t / SECOND for t in view.judging.window)
    for edge, end, words in ((low, a, "warm-up"), (b, high, "after the window")):
        if end - edge > 0.002 * (high - low):
            chart.box((x(edge), chart.y0), (x(end), chart.y1), "outside")
            if label_y is not None and x(end) - x(edge) > len(words) * 6.2:
                chart.text((x(edge) + x(end)) / 2, label_y, words, "middle", "tick faint")
    chart.x_axis(x, [(t, f"{t:g}") for t in x.ticks(10)], "time since start, s")
    return x


def _shade_faults(chart: Chart, view: View, faults: Iterable[dict[str, object]], x: Scale) -> None:
    """Injected to healed in full, on to recovered in a lighter shade, the name above."""
    free_from = -1e9
    for fault in sorted(faults, key=lambda f: view.faults.get(str(f["id"]), (0, 0))):
        span = view.faults.get(str(fault["id"]))
        if span is None or lasts_all_along(fault, view):
            continue
        healed = fault.get("healed")
        end = span[1] if not isinstance(healed, int | float) else min(float(healed), span[1])
        a, h, r = (min(max(t / SECOND, x.low), x.high) for t in (span[0], end, span[1]))
        chart.box((x(a), chart.y0), (x(h), chart.y1), "fault")
        chart.box((x(h), chart.y0), (x(r), chart.y1), "fault light")
        chart.line((x(a), chart.y0), (x(a), chart.y1 - 4), "faultline")
        words = f"{fault['id']} ({fault['type']})"
        at = max(x(a) + 2, free_from)
        chart.text(at, chart.y1 - 7, words, "start", "faultname")
        free_from = at + len(words) * 6.6 + 10


def lasts_all_along(fault: dict[str, object], view: View) -> bool:
    """Whether a fault touches single requests throughout, such as cancels: no span worth shading."""
    span = view.faults.get(str(fault["id"]))
    a, b = view.judging.window
    return span is not None and min(span[1], b) - max(span[0], a) > 0.6 * (b - a)


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """At most MAX_POINTS rows: the slowest and an even selection of the others."""
    if len(rows) <= MAX_POINTS:
        return rows
    slow = rows.nlargest(MAX_POINTS // 5, "ttft_s").index
    rest = rows.index.difference(slow)
    step = int(np.ceil(len(rest) / (MAX_POINTS - len(slow))))
    return rows.loc[slow.union(rest[::step])]


def ttft_over_time(view: View, faults: list[dict[str, object]], palette: Palette) -> str:
    """A point per request at its due time; what never answered stands in the band on top."""
    chart = Chart(
        "Time to first token over time",
        "One point per request at its due time; crosses in the top band had no first token.",
        height=350,
        top=44,
    )
    x = _time_axis(chart, view, chart.y0 - 6)
    data = view.data.assign(ttft_s=_headline_ttft(view))
    answered = _thinned(data[data["ttft_s"].notna() & view.marks.completed])
    band = 22.0
    y = _latency_scale(answered["ttft_s"].to_numpy(dtype=np.float64), chart.y0, chart.y1 + band)
    clock = "due time" if view.open_loop.all() else "due time (closed loops: from the send)"
    chart.y_axis(y, [(t, seconds(t)) for t in y.ticks(5)], f"TTFT from the {clock}")
    _shade_faults(chart, view, faults, x)
    chart.box((chart.x0, chart.y1), (chart.x1, chart.y1 + band - 6), "band")
    chart.text(chart.x0 - 7, chart.y1 + 12, "no token", "end", "tick")
    _slo_lines(chart, view, palette, y)
    for name, at, value, inside in zip(
        answered["class"], answered["due"], answered["ttft_s"], answered["phase"], strict=True
    ):
        style = palette[str(name)] + ("" if inside == "window" else " dim")
        chart.dot(
            (x(at / SECOND), y(value)), f"dot {style}", tip=f"{name} {seconds(value)} at {at / SECOND:.2f} s"
        )
    _failed(chart, data, x, chart.y1 + band / 2 - 3)
    return chart.svg()


def _headline_ttft(view: View) -> Values:
    """From the due time; in a closed loop from the send, which is all that it tells."""
    due, send = METRICS["ttft_sched"].per_request, METRICS["ttft"].per_request
    assert due is not None
    assert send is not None
    return np.where(view.open_loop, due(view.data), send(view.data))


def _latency_scale(values: Values, bottom: float, top: float) -> Scale:
    """From 0, or in decades where the slowest is far from the median."""
    if not len(values):
        return Scale(0, 1, bottom, top)
    high, middle = float(values.max()), float(np.median(values))
    low = float(values[values > 0].min()) if (values > 0).any() else 0.0
    if low > 0 and high / max(middle, 1e-9) > 8:
        return Scale(low / 1.2, high * 1.15, bottom, top, log=True)
    return Scale(0, ceiling(high * 1.04), bottom, top)


def _slo_lines(chart: Chart, view: View, palette: Palette, y: Scale) -> None:
    taken: list[float] = []
    for name in palette.names:
        goal = view.judging.classes.get(name)
        bound = goal.slo.get("ttft_sched", goal.slo.get("ttft")) if goal else None
        if bound is None:
            continue
        line = min(max(y(bound), chart.y1 + 10), chart.y0)
        # Above the line, but below one that runs under the strip of requests without a token.
        at = line - 5 if line >= chart.y1 + 36 else line + 15
        while any(abs(at - other) < _LABEL for other in taken):
            at += _LABEL
        taken.append(at)
        beyond = " ↑" if bound > y.high else ""
        if y.low <= bound <= y.high:
            chart.line((chart.x0, y(bound)), (chart.x1, y(bound)), f"slo {palette[name]}")
        words = f"{name} SLO {seconds(bound)}{beyond}"
        chart.text(chart.x1 - 4, at, words, "end", f"tick {palette[name]}")


def _failed(chart: Chart, data: pd.DataFrame, x: Scale, y: float) -> None:
    styles = {"failed": "bad", "unknown": "bad", "expired": "warn", "rejected": "warn", "cancelled": "quiet"}
    rows = data[data["group"].isin(list(styles)) & data["due"].notna()]
    for group, outcome, at in zip(rows["group"], rows["outcome"], rows["due"], strict=True):
        chart.cross((x(at / SECOND), y), f"cross {styles[group]}", tip=f"{outcome} at {at / SECOND:.2f} s")


def rates_over_time(view: View, faults: list[dict[str, object]]) -> str:
    """Offered, completed and good requests per second in equal bins."""
    chart = Chart(
        "Offered, completed and good requests per second",
        "Requests per second in equal bins: sent, completed, and completed within all objectives.",
        height=250,
        top=40,
    )
    x = _time_axis(chart, view, chart.y1 + 14)
    width = next((w for w in (0.5, 1, 2, 5, 10, 30, 60, 300) if (x.high - x.low) / w <= 80), 600)
    edges = np.arange(x.low, x.high + width, width)
    everything = ((int(x.low * SECOND) - 1, int(x.high * SECOND) + 1),)
    masks: dict[str, Mask] = rate_masks(view.data, view.marks, everything)
    times = {"offered": "due", "completed": "terminal", "good": "terminal"}
    series = {
        name: np.histogram(view.data[column][masks[name]] / SECOND, bins=edges)[0] / width
        for name, column in times.items()
    }
    top = max(float(s.max()) if len(s) else 0.0 for s in series.values())
    y = Scale(0, ceiling(max(top, 1e-9) * 1.05), chart.y0, chart.y1)
    chart.y_axis(y, [(t, f"{t:g}") for t in y.ticks(4)], "requests/s")
    _shade_faults(chart, view, faults, x)
    for name, style in (
        ("good", "area good"),
        ("offered", "curve offered"),
        ("completed", "curve completed"),
    ):
        points = _steps(edges, series[name], x, y)
        if name == "good":
            points = [(points[0][0], chart.y0), *points, (points[-1][0], chart.y0)]
        chart.path(points, style, closed=name == "good")
    return chart.svg()


def _steps(edges: Values, heights: Values, x: Scale, y: Scale) -> list[tuple[float, float]]:
    return [
        (x(min(edge, x.high)), y(h))
        for i, h in enumerate(heights)
        for edge in (float(edges[i]), float(edges[i + 1]))
    ]


def kv_over_time(view: View, scrapes: pd.DataFrame | None, faults: list[dict[str, object]]) -> str | None:
    """Used and cached blocks of each worker's pool, as shares of the pool."""
    series = kv_series(scrapes)
    workers = sorted(series["worker"].unique())
    if not workers:
        return None
    each = 92.0
    chart = Chart(
        "KV cache blocks by worker",
        "Share of each worker's block pool that is referenced, and cached on top of it, over time.",
        height=34 + each * len(workers) + 44,
        top=34,
    )
    x = _time_axis(chart, view)
    _shade_faults(chart, view, faults, x)
    pool = series[list(KV_STATES)].sum(axis=1)
    full = ((series["used"] + series["cached"]) / pool.where(pool > 0)).max()
    highest = min(1.0, ceiling(max(float(np.nan_to_num(full)), 0.02)))
    for i, worker in enumerate(workers):
        top = chart.y1 + each * i
        y = Scale(0, highest, top + each - 10, top + 14)
        for share in (0.0, highest / 2, highest):
            chart.line((chart.x0, y(share)), (chart.x1, y(share)), "grid")
            chart.text(chart.x0 - 7, y(share) + 4, f"{share * 100:.3g}%", "end", "tick")
        chart.text(chart.x0 + 6, top + 10, f"worker {worker}", "start", "tick strong")
        for part in _unbroken(series[series["worker"] == worker]):
            _kv_areas(chart, part, x, y)
    chart.text(2, 12, "share of the block pool", "start", "label")
    return chart.svg()


def _unbroken(series: pd.DataFrame) -> list[pd.DataFrame]:
    """Pieces between gaps in the scrapes, such as those of a dead worker."""
    times = series["t"].to_numpy(dtype=np.float64)
    steps = np.diff(times)
    usual = float(np.median(steps)) if len(steps) else 0.0
    cuts = np.flatnonzero(steps > max(2.5 * usual, 1.0)) + 1
    bounds = [0, *cuts.tolist(), len(series)]
    return [series.iloc[a:b] for a, b in pairwise(bounds)]


def _kv_areas(chart: Chart, part: pd.DataFrame, x: Scale, y: Scale) -> None:
    total = part[list(KV_STATES)].sum(axis=1).to_numpy(dtype=np.float64)
    total = np.where(total > 0, total, 1.0)
    used = part["used"].to_numpy(dtype=np.float64) / total
    both = used + part["cached"].to_numpy(dtype=np.float64) / total
    at = [x(min(max(t / SECOND, x.low), x.high)) for t in part["t"]]
    zero = np.zeros(len(at))
    for upper, lower, style in ((both, used, "area kv-cached"), (used, zero, "area kv-used")):
        over = [(a, y(v)) for a, v in zip(at, upper, strict=True)]
        under = [(a, y(v)) for a, v in zip(at, lower, strict=True)]
        chart.path([*over, *reversed(under)], style, closed=True)
