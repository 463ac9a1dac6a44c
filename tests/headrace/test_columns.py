"""Numbers that only our own engine can tell: theoretical hits, the gap between tenants, the price."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import console
from headrace.rejudge import rejudge
from headrace.run import Options, run_scenario
from results.run import Run, RunData
from results.view import TIERS, View
from scenarios import parts
from scenarios.load import ScenarioError, parse

BUSY = {
    "headrace": 1,
    "seed": 8,
    "target": {
        "engine": {
            "model": "simulated",
            "memory": {"kv_blocks": 160},
            "scheduler": {"max_step_tokens": 128, "max_running": 4, "prefill_chunk": 64},
            "cost": {"a": "10ms", "b": "0.3ms", "c": "2ms"},
        },
        "price": "3.60/h",
    },
    "classes": {"c": {"slo": {"ttft": "60s"}}},
    "phases": {"window": "20s", "drain": "60s"},
    "load": [
        {
            "class": "c",
            "tenant": "heavy",
            "arrival": {"type": "burst", "size": 30},
            "workload": {"type": "shared_prefix", "groups": 6, "prefix": 400, "input": 40, "output": 10},
        },
        {
            "class": "c",
            "tenant": "light",
            "arrival": {"type": "burst", "size": 15, "at": "200ms"},
            "workload": {"type": "fixed", "input": 300, "output": 10},
        },
    ],
}


def played(folder: Path, order: str) -> tuple[RunData, dict[str, Any]]:
    file = folder / f"{order}.yaml"
    file.write_text(yaml.safe_dump(BUSY))
    options = Options(out=folder / order, virtual=True, overrides=(f"target.engine.queue.order={order}",))
    summary = run_scenario(file, options, console.view(quiet=True)).summary
    return Run.load(folder / order), summary


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunData, dict[str, Any]]:
    return played(tmp_path_factory.mktemp("fair"), "fair")


def test_a_fair_order_has_the_smaller_gap(fair: tuple[RunData, dict[str, Any]], tmp_path: Path) -> None:
    """In order of arrival the tenant that came first has all, the other nothing meanwhile."""
    _, first_come = played(tmp_path, "fcfs")
    gap = fair[1]["all"]["service_gap"]
    assert gap is not None
    assert 2 * gap < first_come["all"]["service_gap"]


def test_no_hit_exceeds_what_an_endless_cache_has(fair: tuple[RunData, dict[str, Any]]) -> None:
    """The pool holds a part of the prefixes only: some of what could be read was evicted."""
    data, summary = fair
    rows = View.of(data).data
    hits = rows[[f"hit_{tier}" for tier in TIERS]].sum(axis=1)
    assert (rows["ideal"] >= hits)[rows["ideal"].notna()].all()
    assert rows["ideal"].sum() > hits.sum() > 0
    told = summary["cache"]["hits"]
    assert told["hit_theoretical"] > told["hit_token_weighted"] > 0


def test_the_price_of_one_worker_is_shared_by_the_good(fair: tuple[RunData, dict[str, Any]]) -> None:
    """0.001 a second for 20 s; what is not known in virtual time says so."""
    block = fair[1]["economy"]
    assert block["replica_seconds"] == pytest.approx(20.0)
    assert block["cost_per_good"] == pytest.approx(0.02 / fair[1]["all"]["rates"]["good"] / 20)
    assert block["energy_j_reason"] == "virtual time has no devices"


def test_judged_again_it_is_the_same(fair: tuple[RunData, dict[str, Any]]) -> None:
    """From the run directory; also of a run that was made before theoretical hits were kept."""
    folder = fair[0].path
    assert folder is not None
    before = json.loads((folder / "summary.json").read_text())
    assert rejudge(folder).summary == before
    kept = (folder / "ideal.parquet").read_bytes()
    (folder / "ideal.parquet").unlink()
    try:
        assert rejudge(folder).summary == before
    finally:
        (folder / "ideal.parquet").write_bytes(kept)


def test_a_price_is_asked_for_before_any_load() -> None:
    """A gate on the cost needs one; a foreign target may say how many replicas it has, but not none."""
    text = yaml.safe_dump(BUSY | {"gates": ["cost_per_good < 0.01", "energy_per_good < 50"]})
    assert parse(text, "x.yaml").target.price == pytest.approx(0.001)
    with pytest.raises(ScenarioError, match=r"cost_per_good < 0.01': it needs target.price, such as"):
        parse(text.replace("  price: 3.60/h\n", ""), "x.yaml")
    with pytest.raises(ScenarioError, match="missing unit"):
        parse(text, "x.yaml", ("target.price=2",))
    for replicas in (1, 4):
        url = f"target={{url: 'http://127.0.0.1:1', model: m, price: 1/h, replicas: {replicas}}}"
        assert parts.replicas(parse(text, "x.yaml", (url,))) == replicas
    with pytest.raises(ScenarioError, match="replicas must be at least 1"):
        parse(text, "x.yaml", ("target={url: 'http://127.0.0.1:1', model: m, replicas: 0}",))
