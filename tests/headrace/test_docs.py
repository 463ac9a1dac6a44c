"""docs/*.md say what the code does: tables, names, columns, keys and examples are compared with it."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
import typer.main

from engine import messages
from engine.api.admin import AdminDoor
from engine.metrics import METRICS as ENGINE_METRICS
from headrace import console
from headrace.cli import app
from headrace.prepare import make_plan
from headrace.run import Options, run_scenario
from results.attribution.ledger import BUCKETS
from results.attribution.verdict import MISSES
from results.attribution.verdict import Outcome as Cached
from results.gates import parse_gate
from results.metrics import METRICS
from results.outcomes import GROUPS, group_of
from results.record import Outcome
from results.slices import DIMS
from results.stats.quantiles import QUANTILES
from results.validity import RULES
from results.view import TIERS
from scenarios.load import parse, shipped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("structure.md", "metrics.md", "scenario.md", "traces.md", "reference.md", "sweep.md", "extending.md")

PLACEHOLDERS = {
    "METRIC": tuple(METRICS),
    "QUANTILE": tuple(QUANTILES),
    "STAT": ("mean", "min", "max", *QUANTILES),
    "RULE": RULES,
    "RATE": ("asked", "offered", "completed", "good", "good_tokens", "out_tps", "peak_tps"),
    "OUTCOME": tuple(o.value for o in Outcome),
    "GROUP": GROUPS,
    "CACHED": tuple(o.value for o in Cached),
    "CAUSE": tuple(o.value for o in MISSES),
    "BUCKET": BUCKETS,
    "TIER": TIERS,
    "DIM": tuple(DIMS),
    "WORKER": ("all", "0", "1"),
}


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The text under a heading, its inner headings included."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^## |\Z)", page(name), re.M | re.S)
    assert found is not None, f"{name} has no heading {title!r}"
    body = found[2]
    return body if len(found[1]) == 2 else re.split(r"^### ", body, flags=re.M)[0]


def first_cells(text: str) -> list[str]:
    """What stands in backticks in the first column of the tables."""
    rows = (line.split(" | ", 1)[0] for line in text.splitlines() if line.startswith("| `"))
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def code_blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of the smoke scenario in virtual time."""
    folder = tmp_path_factory.mktemp("docs") / "run"
    run_scenario(shipped()["smoke"], Options(out=folder, virtual=True), console.view(quiet=True))
    return folder


# --- pages as such


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_generated_tables_are_what_the_code_says(name: str) -> None:
    """Run docs/generate.py after a change of the scenario language, a metric or a counter."""
    assert _generator().regenerated(page(name)) == page(name)


def test_the_generator_only_makes_tables_that_a_page_has() -> None:
    """No table is made for nobody."""
    made = set(_generator().BLOCKS)
    used = {name for page_ in PAGES for name in re.findall(r"<!-- generated: (\S+) -->", page(page_))}
    assert made == used


@pytest.mark.parametrize("name", PAGES)
def test_every_file_and_name_that_is_referred_to_exists(name: str) -> None:
    """`path/file.py:Name.inner` names a file of the repository and something defined in it."""
    wrong = []
    for path, _, inside in _references(page(name)):
        if not (ROOT / path).exists():
            wrong.append(path)
        elif inside and inside not in _defined(ROOT / path):
            wrong.append(f"{path}:{inside}")
    assert wrong == []


def _references(text: str) -> Iterator[tuple[str, str, str]]:
    folders = "headrace|scenarios|faults|loadgen|results|engine|dashboards|tests|docs"
    for path, inside in re.findall(
        rf"\b((?:{folders})/[\w/.-]*?)(?::([A-Za-z_][\w.]*))?(?=[`\s,;)]|$)", text
    ):
        if "NN_" not in path and not path.endswith("generated"):
            yield path.rstrip("."), ":", inside.rstrip(".")


@cache
def _defined(path: Path) -> frozenset[str]:
    """Names of a module, and of its classes as ``Class.name``."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    """Links between pages name a page that is there, and a heading of it."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page(name)):
        text = page(target or name)
        anchors = {_slug(title) for title in re.findall(r"^#+ (.+)$", text, re.M)}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", PAGES)
def test_every_command_that_is_named_exists(name: str) -> None:
    """`bench NAME` is a command."""
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"(?:^|`)bench ([a-z]+)", page(name), re.M)) <= known


# --- metrics.md


def test_every_metric_outcome_group_and_health_row_is_explained() -> None:
    """Each has a line of its own in metrics.md, and there is no line too many."""
    metrics = first_cells(
        section("metrics.md", "Request metrics") + section("metrics.md", "Rates and shares")
    )
    assert sorted(metrics) == sorted(METRICS)
    assert tuple(first_cells(section("metrics.md", "Client health"))) == RULES
    rows = re.findall(r"^\| `(\w+)` \|.*\| `(\w+)` \|$", section("metrics.md", "Outcomes"), re.M)
    assert dict(rows) == {o.value: group_of(o, None) for o in Outcome}
    assert all(f"`{group}`" in section("metrics.md", "Outcomes") for group in GROUPS)


def test_every_exported_metric_is_listed() -> None:
    """What /metrics shows stands in metrics.md."""
    assert first_cells(section("metrics.md", "What the engine exports")) == list(ENGINE_METRICS)


def test_the_gates_of_the_examples_can_be_judged() -> None:
    """Every example of a gate parses."""
    examples = next(b for b in code_blocks(section("metrics.md", "Gates")) if b.startswith("chat."))
    for line in examples.splitlines():
        parse_gate(line, ["chat"], ["crash"])


def test_every_key_of_a_summary_is_explained(run: Path) -> None:
    """A real summary has no key that metrics.md does not know, and every key that it promises."""
    summary = json.loads((run / "summary.json").read_text())
    paths = set(_paths(summary, ""))
    promised = _documented(summary)
    unknown = [path for path in sorted(paths) if not any(pattern.fullmatch(path) for pattern, _ in promised)]
    assert unknown == []
    missing = [p.pattern for p, when in promised if when == "always" and not any(map(p.fullmatch, paths))]
    assert missing == []


def _paths(value: Any, at: str) -> Iterator[str]:
    """Dotted paths of all leaves; `[]` for any item. An empty block is a leaf, an empty list is nothing."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _paths(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, f"{at}[]")
    else:
        yield at


def _documented(summary: dict[str, Any]) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of the tables, each with the word that says when its key is there."""
    words = PLACEHOLDERS | {"CLASS": tuple(summary["classes"])}
    found = []
    for line in section("metrics.md", "summary.json").splitlines():
        if line.startswith("| `"):
            keys, _, present = (cell.strip() for cell in line.strip("|").split(" | "))
            found += [(_pattern(key, words), present) for key in re.findall(r"`([^`]+)`", keys)]
    return found


def _pattern(key: str, words: dict[str, tuple[str, ...]]) -> re.Pattern[str]:
    if key.endswith(".*"):
        return re.compile(_pattern(key[:-2], words).pattern + r"(\..+)?")
    parts = re.split(r"([A-Z]{3,})", key)
    chosen = ["|".join(map(re.escape, words[part])) if part in words else re.escape(part) for part in parts]
    return re.compile(
        "".join(f"({text})" if part in words else text for part, text in zip(parts, chosen, strict=True))
    )


# --- structure.md


@pytest.mark.parametrize("name", ["plan", "records", "truth"])
def test_every_column_is_explained(run: Path, name: str) -> None:
    """The tables of structure.md have exactly the columns of the files."""
    columns = pq.read_schema(run / f"{name}.parquet").names
    assert sorted(first_cells(section("structure.md", f"{name}.parquet"))) == sorted(columns)


def test_every_file_of_a_run_directory_is_explained(run: Path) -> None:
    """A run leaves no file that structure.md does not know."""
    assert {path.name for path in run.iterdir()} <= set(
        first_cells(section("structure.md", "A run directory"))
    )


def test_every_route_of_the_admin_door_is_explained() -> None:
    """Methods and paths are those of the application."""
    door = AdminDoor(None, "token").application()  # type: ignore[arg-type]  # no verb is called
    routes = {f"{r.method} {r.resource.canonical}" for r in door.router.routes() if r.resource is not None}
    gets = {route for route in routes if not route.startswith("HEAD ")}
    assert set(first_cells(section("structure.md", "Admin door"))) == gets


def test_every_message_between_gateway_and_workers_is_explained() -> None:
    """The two unions of engine.messages are the two tables."""
    kinds = {kind.__name__ for kind in (*get_args(messages.ToWorker), *get_args(messages.FromWorker))}
    assert set(first_cells(section("structure.md", "Gateway and workers"))) == kinds


# --- scenario.md


@pytest.mark.parametrize("virtual", [False, True])
def test_the_complete_example_loads_and_makes_a_plan(virtual: bool) -> None:
    """Whoever copies the example has a scenario that runs."""
    text = code_blocks(section("scenario.md", "A complete example"), "yaml")[0]
    scenario = parse(text, "example.yaml", virtual=virtual)
    assert scenario.question.endswith("?")
    assert make_plan(replace(scenario, seed=scenario.seed or 0)).shots
