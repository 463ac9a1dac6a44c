"""The committed dashboard is what the code builds, and keeps its promises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dashboards.build import ENGINE_FILE, GENERATED, NO_TRAFFIC, engine_dashboard, write
from dashboards.contract import filled, lint, missing_names, names, panels, queries
from dashboards.panels import ENGINE_ROWS, level, quantile, rate
from engine.config import EngineConfig
from engine.exposition import exposition
from engine.metrics import METRICS
from engine.telemetry import Meter

# The SDK warns when its classic schema is imported; Grafana before 12 reads no other.
pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")

TEXT = (GENERATED / ENGINE_FILE).read_text(encoding="utf-8")
QUERIES = queries(TEXT)


def test_committed_file_is_the_build_output() -> None:
    """generated/engine.json is what ``python -m dashboards.build`` writes."""
    pytest.importorskip("grafana_foundation_sdk")
    assert engine_dashboard() == TEXT


def test_round_trip_through_the_sdk() -> None:
    """V1: read back by the SDK and encoded again, nothing is lost."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    again = JSONEncoder(sort_keys=True).encode(Dashboard.from_json(json.loads(TEXT)))
    assert json.loads(again) == json.loads(TEXT)


def test_panels_have_everything_that_a_reader_needs() -> None:
    """Title, description naming the metrics, unit, the data source variable, and words for idle."""
    drawn = panels(TEXT)
    assert len(drawn) == sum(len(row.panels) for row in ENGINE_ROWS)
    for panel in drawn:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${ds}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"] == NO_TRAFFIC
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${ds}"
            assert target["legendFormat"]
            for name in names(target["expr"]):
                assert name in panel["description"]


def test_layout() -> None:
    """Rows in order, panels within the grid and not on one another, ids once each."""
    board = json.loads(TEXT)
    assert [p["title"] for p in board["panels"] if p["type"] == "row"] == [row.title for row in ENGINE_ROWS]
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for place in (p["gridPos"] for p in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_variables() -> None:
    """ds, model, worker and class, each asked of a metric that has the label."""
    variables = json.loads(TEXT)["templating"]["list"]
    assert [v["name"] for v in variables] == ["ds", "model", "worker", "class"]
    for variable in variables[1:]:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        assert asked.group(1) in METRICS
        assert asked.group(2) == variable["name"]


@pytest.mark.parametrize("expr", QUERIES)
def test_queries_are_well_formed(expr: str) -> None:
    """Names and labels are in the table, counters stand under rate, gauges do not, brackets match."""
    assert lint(expr) == []
    assert "$" not in filled(expr)


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("sum(rate(headrace_engine_finished_total{}[1m])", "brackets"),
        ("headrace_engine_finished_total", "under rate"),
        ("rate(headrace_engine_kv_usage_ratio{}[1m])", "gauge"),
        ("headrace_engine_made_up", "not in the table"),
        ("sum by (nonsense) (headrace_engine_kv_usage_ratio)", "no label nonsense"),
        ("headrace_engine_ttft_seconds", "not in the table"),
        ("sum by (le) (headrace_engine_ttft_seconds_bucket{})", "under rate"),
    ],
)
def test_lint_sees(expr: str, fault: str) -> None:
    """Each kind of fault is named."""
    assert any(fault in found for found in lint(expr))


def test_panels_refuse_what_is_not_in_the_table() -> None:
    """An unknown name, kind or label fails where the panel is written."""
    with pytest.raises(KeyError):
        rate("engine_made_up_total")
    with pytest.raises(KeyError, match="is a gauge"):
        rate("engine_kv_usage_ratio")
    with pytest.raises(KeyError, match="no label"):
        quantile(0.5, "engine_ttft_seconds", "reason")
    with pytest.raises(KeyError, match="no label"):
        level("engine_kv_usage_ratio", "class")


def test_every_name_is_on_the_page_of_an_idle_engine() -> None:
    """O15, O4: with every metric counted or at 0, the page of the engine's own meters misses no name."""
    config = EngineConfig()
    workers, gateway = Meter(config, "engine"), Meter(config, "router", "fleet")
    page = exposition(config, {0: workers.snapshot()}, gateway.snapshot()).decode()
    assert missing_names(TEXT, page) == set()


def test_missing_names_are_reported() -> None:
    """A page without a metric, or with only its HELP and TYPE, misses it."""
    page = "# TYPE headrace_router_requests_total counter\nheadrace_engine_ready 1\n"
    assert "headrace_router_requests_total" in missing_names(TEXT, page)
    assert missing_names('{"panels": []}', page) == set()


def test_write_hands_out_the_committed_files(tmp_path: Path) -> None:
    """``bench dashboards --out`` writes what is committed, into a folder that it makes."""
    (written,) = write(tmp_path / "new" / "folder")
    assert written.read_text(encoding="utf-8") == TEXT


@pytest.mark.e2e
def test_promtool_parses_every_query(tmp_path: Path) -> None:
    """V3: Prometheus' own parser takes every query, variables filled in."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    rules = [{"record": f"panel:query_{index}", "expr": filled(expr)} for index, expr in enumerate(QUERIES)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr
