"""Builds the Grafana dashboards from the panels: ``python -m dashboards.build`` writes ``generated/``.

Needs the pinned grafana-foundation-sdk of the ``dev`` extra. Everybody else uses the committed files, which
a test keeps equal to what this module builds (``write`` hands them out).
"""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.contract import names
from dashboards.panels import ENGINE_ROWS, VARIABLES, Panel, Row

GENERATED = Path(__file__).parent / "generated"
ENGINE_FILE = "engine.json"
NO_TRAFFIC = "no traffic"

_ASKED_OF = {"model": "headrace_engine_ready", "worker": "headrace_engine_ready"}
_COLUMNS = 24
_HEIGHT = 8
_WIDTH = 8


def engine_dashboard() -> str:
    """The JSON of the dashboard that works with ``bench serve`` alone, newline at the end."""
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    board = (
        grafana.Dashboard("headrace engine")
        .uid("headrace-engine")
        .tags(["headrace"])
        .description("What the engine itself says: traffic, scheduler, KV and prefix cache, router.")
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .readonly()
    )
    for variable in _variables():
        board = board.with_variable(variable)
    number = 1
    for top, row in _tops(ENGINE_ROWS):
        board = board.with_row(_row(row, number, top))
        for index, panel in enumerate(row.panels):
            board = board.with_panel(_panel(panel, number + 1 + index, index, top + 1))
        number += 1 + len(row.panels)
    return json.dumps(json.loads(JSONEncoder(sort_keys=True).encode(board.build())), indent=2) + "\n"


def write(folder: Path) -> list[Path]:
    """Copy the committed dashboards to ``folder`` (made if absent); the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sorted(GENERATED.glob("*.json")):
        target = folder / source.name
        target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        written.append(target)
    return written


def _tops(rows: tuple[Row, ...]) -> list[tuple[int, Row]]:
    """Each row with the grid line that it begins on."""
    out, top = [], 0
    for row in rows:
        out.append((top, row))
        lines = -(-len(row.panels) * _WIDTH // _COLUMNS)
        top += 1 + lines * _HEIGHT
    return out


def _datasource() -> object:
    from grafana_foundation_sdk.models import common

    return common.DataSourceRef(type_val="prometheus", uid="${ds}")


def _variables() -> list[object]:
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.models import dashboard as model

    everything = model.VariableOption(text="All", value="$__all", selected=True)
    out: list[object] = [grafana.DatasourceVariable("ds").label("data source").type("prometheus")]
    for name in VARIABLES:
        asked = _ASKED_OF.get(name, "headrace_router_requests_total")
        query = f"label_values({asked}, {name})"
        out.append(
            grafana.QueryVariable(name)
            .label(name)
            .datasource(_datasource())
            .query({"query": query, "refId": name})
            .definition(query)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(everything)
        )
    return out


def _row(row: Row, number: int, top: int) -> object:
    from grafana_foundation_sdk.builders import dashboard as grafana
    from grafana_foundation_sdk.models import dashboard as model

    return grafana.Row(row.title).id(number).grid_pos(model.GridPos(h=1, w=_COLUMNS, x=0, y=top))


def _panel(panel: Panel, number: int, index: int, top: int) -> object:
    from grafana_foundation_sdk.builders import common as style
    from grafana_foundation_sdk.builders import statetimeline, timeseries
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as model

    per_line = _COLUMNS // _WIDTH
    line, column = divmod(index, per_line)
    if panel.kind == "timeline":
        built = statetimeline.Panel().show_value(common.VisibilityMode.NEVER)
    else:
        built = timeseries.Panel().fill_opacity(30 if panel.stacked else 8).line_width(1).min(0)
        if panel.stacked:
            built = built.stacking(style.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
        if panel.top is not None:
            built = built.max(panel.top)
    legend = (
        style.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs([])
    )
    built = (
        built.id(number)
        .legend(legend)
        .title(panel.title)
        .description(_description(panel))
        .datasource(_datasource())
        .unit(panel.unit)
        .no_value(NO_TRAFFIC)
        .grid_pos(model.GridPos(h=_HEIGHT, w=_WIDTH, x=column * _WIDTH, y=top + line * _HEIGHT))
    )
    for target in _targets(panel):
        built = built.with_target(target)
    return built


def _description(panel: Panel) -> str:
    used = sorted({name for query in panel.queries for name in names(query.expr)})
    return f"{panel.about}\n\nMetrics: {', '.join(used)}"


def _targets(panel: Panel) -> list[object]:
    from grafana_foundation_sdk.builders import prometheus

    return [
        prometheus.Dataquery()
        .datasource(_datasource())
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
        .ref_id(chr(ord("A") + index))
        for index, query in enumerate(panel.queries)
    ]


if __name__ == "__main__":
    (GENERATED / ENGINE_FILE).write_text(engine_dashboard(), encoding="utf-8")
