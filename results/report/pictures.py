"""Pictures without a time axis: distributions, and where prompt tokens went."""

from __future__ import annotations

import math

import numpy as np

from results.report.charts import Chart, Scale, ceiling, seconds
from results.report.timelines import Palette
from results.stats.distribution import Distribution
from results.stats.quantiles import Values, quantile
from results.view import View

ENOUGH = 1_000_000
"""Samples to choose an axis by."""


def distribution(view: View, metric: str, palette: Palette, words: str) -> str | None:
    """Share of samples at or below each duration, by class, with the classes' SLO bounds."""
    chart = Chart(
        f"Distribution of {metric}",
        f"Share of {words} at or below each duration, by class; dashed lines are SLO bounds.",
        width=530,
        height=298,
        top=34,
        wide=False,
    )
    samples = {n: _ordered(_samples(view, metric, n)) for n in palette.names}
    samples = {n: ordered for n, ordered in samples.items() if len(ordered)}
    if not samples:
        return None
    bounds = {n: g.slo[metric] for n, g in view.judging.classes.items() if metric in g.slo}
    x = _distribution_scale(chart, list(samples.values()), list(bounds.values()))
    y = Scale(0, 1, chart.y0, chart.y1)
    chart.y_axis(y, [(s, f"{s:.0%}") for s in (0, 0.25, 0.5, 0.75, 0.9, 1)], f"share of {words}")
    chart.x_axis(x, [(t, seconds(t)) for t in x.ticks(5)], f"{metric}, {'log' if x.log else 'linear'} scale")
    _bounds(chart, {n: b for n, b in bounds.items() if n in samples}, x, palette)
    for name, ordered in samples.items():
        _ecdf(chart, ordered, x, y, palette[name])
    return chart.svg()


def _samples(view: View, metric: str, name: str) -> Distribution:
    """Of a class; in a closed loop from the send, which is all that it tells."""
    rows = view.in_window & view.of_class(name)
    own = metric if (view.open_loop | ~rows).all() else metric.removesuffix("_sched")
    return view.distribution(own, rows)


def _ordered(found: Distribution) -> Values:
    ordered = np.sort(found.samples.values)
    found.let_go()
    return ordered


def _bounds(chart: Chart, bounds: dict[str, float], x: Scale, palette: Palette) -> None:
    """SLO bounds as dashed lines; one beyond the axis is only named."""
    taken = chart.x1 + 12
    for name, bound in sorted(bounds.items(), key=lambda item: -item[1]):
        words = f"{name} SLO {seconds(bound)}" + (" →" if bound > x.high else "")
        if x.low <= bound <= x.high:
            chart.line((x(bound), chart.y0), (x(bound), chart.y1), f"slo {palette[name]}")
        end = min(x(min(bound, x.high)) + len(words) * 3.3, taken - 12)
        chart.text(end, chart.y1 - 7, words, "end", f"tick {palette[name]}")
        taken = end - len(words) * 6.6


def _distribution_scale(chart: Chart, values: list[Values], bounds: list[float]) -> Scale:
    """Of sorted values; of very many, some in even steps and the largest."""
    every = math.ceil(sum(map(len, values)) / ENOUGH)
    together = np.concatenate([part for v in values for part in (v[::every], v[-1:])])
    positive = together[together > 0]
    high = float(max(together.max(), 1e-6))
    visible = [b for b in bounds if b < high * 4]
    high = max([high, *[b * 1.05 for b in visible]])
    if len(positive) and high / float(np.median(positive)) > 8:
        return Scale(float(np.quantile(positive, 0.001)) / 1.1, high * 1.05, chart.x0, chart.x1, log=True)
    return Scale(0, ceiling(high), chart.x0, chart.x1)


def _ecdf(chart: Chart, ordered: Values, x: Scale, y: Scale, style: str) -> None:
    shares = np.unique(np.concatenate([np.linspace(0, 1, 241), 1 - np.geomspace(1e-4, 0.05, 60)]))
    at = np.minimum((shares * len(ordered)).astype(int), len(ordered) - 1)
    chart.path([(x(v), y(s)) for v, s in zip(ordered[at], shares, strict=True)], f"curve {style}")
    for q in (0.5, 0.9, 0.99):
        value = quantile(ordered, q)
        if value is not None:
            chart.dot((x(value), y(q)), f"mark {style}", 3.4, f"p{q * 100:g} {seconds(value)}")


CAUSES = ("app_reset", "expiry", "boundary", "unexplained")


def missed_tokens(missed: dict[str, float]) -> str:
    """Missed prompt tokens by cause."""
    row = 34.0
    chart = Chart(
        "Missed prompt tokens by cause",
        "Prompt tokens that could have been read from cache and were not, by cause.",
        width=530,
        height=row * len(CAUSES) + 16,
        left=104,
        right=70,
        top=6,
        bottom=8,
        wide=False,
    )
    values = [float(missed.get(cause, 0) or 0) for cause in CAUSES]
    x = Scale(0, max([*values, 1.0]), chart.x0, chart.x1)
    for i, (cause, value) in enumerate(zip(CAUSES, values, strict=True)):
        y = chart.y1 + row * i
        chart.text(chart.x0 - 10, y + row / 2 + 2, cause, "end", "name")
        chart.box((chart.x0, y + 5), (max(x(value), chart.x0 + 1.5), y + row - 9), f"bar cause-{cause}", 3)
        chart.text(max(x(value), chart.x0) + 8, y + row / 2 + 2, f"{value:,.0f}", "start", "name")
    return chart.svg()


BUCKETS = ("read", "bonus", "new", "policy", "changed", "boundary", "expiry", "unexplained")


def ledger_bar(ledger: dict[str, float]) -> str | None:
    """Where all prompt tokens went, as one bar."""
    total = sum(float(ledger.get(name, 0) or 0) for name in BUCKETS)
    if total <= 0:
        return None
    chart = Chart("Prompt tokens by ledger bucket", "Where the prompt tokens went.", 1080, 44, 0, 0, 4, 4)
    x = Scale(0, total, 0, chart.width)
    at = 0.0
    for name in BUCKETS:
        value = float(ledger.get(name, 0) or 0)
        if value <= 0:
            continue
        chart.box((x(at) + 0.75, 4), (x(at + value) - 0.75, 40), f"bar bucket-{name}", 3)
        words = f"{name} {value / total:.0%}"
        if x(value) > len(words) * 7.4 + 8:
            chart.text((x(at) + x(at + value)) / 2, 27, words, "middle", "inbar")
        at += value
    return chart.svg()
