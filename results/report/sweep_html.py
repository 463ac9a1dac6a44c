"""sweep.html: one file without outside resources; one picture and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from results.report import sweep_picture, sweep_series, sweep_words
from results.report.charts import seconds
from results.report.words import TONES, percent
from results.sweep.columns import ALL
from results.sweep.phrases import name_of
from results.sweep.spec import PointRun, SweepSpec, decisive


def render(spec: SweepSpec, runs: Sequence[PointRun], document: Mapping[str, Any]) -> str:
    """The whole page of a sweep, also of one that is not at its end."""
    folder = files("results.report")
    css = folder.joinpath("page.css").read_text() + folder.joinpath("sweep.css").read_text()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("sweep.html.j2").read_text())
    drawn = sweep_picture.picture(spec, runs, document)
    return template.render(
        css=Markup(css),
        spec=spec,
        d=document,
        facts=_facts(spec, runs),
        tones={name: f"is-{tone}" for name, tone in TONES.items()},
        picture=None if drawn is None else Markup(drawn),
        legend=_legend(spec, runs),
        cells=_cells(document) if len(spec.cells) > 1 and spec.searched is not None else [],
        heads=list(sweep_words.HEADS.values()),
        groups=[
            (name, len(list(members)))
            for name, members in groupby(head[0] for head in sweep_words.HEADS.values())
        ],
        points=[_point(run) for run in decisive(runs)],
        shorter=len(runs) - len(decisive(runs)),
    )


def _facts(spec: SweepSpec, runs: Sequence[PointRun]) -> list[tuple[str, str]]:
    windows = " → ".join(seconds(window) for window in spec.windows)
    return [
        *((axis.key, _levels(spec, i)) for i, axis in enumerate(spec.axes)),
        ("time", "virtual" if spec.virtual else "live"),
        ("window", windows),
        ("headroom", percent(spec.headroom)),
        ("runs", str(len(runs))),
        ("seeds", ", ".join(map(str, spec.seeds))),
    ]


def _levels(spec: SweepSpec, i: int) -> str:
    axis = spec.axes[i]
    if axis.low is None or axis.high is None:
        return ", ".join(axis.values)
    return f"{axis.text(axis.low)} to {axis.text(axis.high)}, searched to {percent(spec.width)}"


def _legend(spec: SweepSpec, runs: Sequence[PointRun]) -> list[tuple[str, str]]:
    if not runs:
        return []
    drawn = sweep_series.curves(spec, runs, sweep_series.XAxis.of(spec))
    return [(curve.name or "all classes", curve.colour) for curve in drawn]


def _cells(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "at": name_of(cell["at"]),
            "words": cell["words"],
            "best": i in document["best"],
        }
        for i, cell in enumerate(document["cells"])
    ]


def _point(run: PointRun) -> dict[str, Any]:
    names = [name for name in run.rows if name != ALL]
    shown = [*names, ALL] if len(names) > 1 else names
    return {
        "at": sweep_words.at(run),
        "run": run,
        "decision": sweep_words.decision(run),
        "tone": sweep_words.TONES[run.decision],
        "rows": [
            (
                name,
                [
                    (sweep_words.cell(run.rows[name], column), sweep_words.reason(run.rows[name], column))
                    for column in sweep_words.HEADS
                ],
            )
            for name in shown
        ],
    }
