"""Rewrites the tables in docs/*.md that the code itself can tell: ``python docs/generate.py``.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. With ``--check`` nothing is
written; the exit code is 1 if a file is out of date. tests/headrace/test_docs.py checks the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_origin

from engine.metrics import METRICS as ENGINE_METRICS
from results.compat import FORMULAS
from results.counters import COUNTERS
from results.metrics import METRICS
from results.slices import DIMS
from scenarios.describe import default_of, help_of
from scenarios.forms import is_union, keys, unit_of
from scenarios.load import tables
from scenarios.schema import ClassSpec, Engine, Scenario, UrlTarget
from scenarios.units import UNITS

DOCS = Path(__file__).parent

_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ELSEWHERE = ("target", "classes", "load", "faults", "gates", "virtual")
"""Keys of a scenario that have a table or a section of their own."""


def regenerated(text: str) -> str:
    """``text`` with every generated block made anew. Raises KeyError for an unknown name."""
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]]()}{found[3]}", text)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("-" for _ in head), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`").replace("\n", " ")


def entries(name: str, without: Mapping[str, str] = MappingProxyType({})) -> str:
    """One table of ``bench list``: what may stand behind ``type:``, or a policy's names. Keys ``without``
    which none is are left out."""
    parts = []
    for entry in tables()[name]:
        parts.append(f"**`{entry['name']}`**: {_cell(entry['doc'])}\n\n")
        fields = {key: takes for key, takes in entry["fields"].items() if key not in without}
        if fields:
            parts.append(_fields(fields) + "\n")
    return "".join(parts)


def _fields(fields: Mapping[str, str]) -> str:
    return table(("key", "takes"), [(f"`{key}`", takes) for key, takes in fields.items()])


def _of_every_trace() -> dict[str, str]:
    """The keys that all formats of traces have."""
    first, *others = (entry["fields"] for entry in tables()["traces"])
    return {key: takes for key, takes in first.items() if all(key in fields for fields in others)}


def policies() -> str:
    rows = [
        (f"`{key}`", f"`{entry['name']}`", entry["doc"])
        for key, found in tables().items()
        if key.startswith("target.")
        for entry in found
    ]
    return table(("key", "value", "does"), rows)


def block(cls: type[Any], skip: tuple[str, ...] = ()) -> str:
    """Every key of a block of the scenario, its inner blocks included."""
    return table(("key", "takes", "default"), list(_rows(cls, "", skip)))


def _rows(cls: type[Any], prefix: str, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, f, hint in keys(cls):
        if key in skip:
            continue
        inner = _dataclass_in(hint)
        if inner is not None:
            yield from _rows(inner, f"{prefix}{key}.")
        else:
            yield f"`{prefix}{key}`", takes(hint), _default(f, hint)


def _dataclass_in(hint: Any) -> type[Any] | None:
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def takes(hint: Any) -> str:
    """What a key takes, in words."""
    unit = unit_of(hint)
    if unit is not None:
        return f"{unit.noun}, `{unit.example.replace(' or ', '` or `')}`"
    if is_union(hint):
        return " or ".join(takes(arg) for arg in get_args(hint) if arg is not NoneType)
    if (inner := _dataclass_in(hint)) is not None:
        return "`{" + ", ".join(f"{key}: .." for key, _, _ in keys(inner)) + "}`"
    if get_origin(hint) is tuple:
        return f"list of {takes(get_args(hint)[0])}"
    if get_origin(hint) in (dict, Mapping):
        return f"`{{name: ..}}`, each {takes(get_args(hint)[1])}"
    if get_args(hint):
        return " or ".join(f"`{arg}`" for arg in get_args(hint))
    return {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}[hint]


def _default(f: dataclasses.Field[Any], hint: Any) -> str:
    default = default_of(f)
    if default is dataclasses.MISSING:
        return "must be given"
    if default in (None, ()):
        return "none"
    unit = unit_of(hint)
    return f"`{unit.write(default) if unit else json.dumps(default).strip(chr(34))}`"


def units() -> str:
    rows = [
        (
            unit.noun.removeprefix("a "),
            " ".join(f"`{suffix}`" for suffix in unit.suffixes),
            f"`{unit.example.replace(' or ', '` or `')}`",
        )
        for unit in UNITS.values()
    ]
    return table(("quantity", "units", "write"), rows)


def metric_kinds() -> str:
    """Names that gates may use, by kind."""
    kinds: dict[str, list[str]] = {}
    for metric in METRICS.values():
        kinds.setdefault(metric.kind, []).append(f"`{metric.name}`")
    return table(("kind", "metrics"), [(kind, " ".join(names)) for kind, names in kinds.items()])


def counters() -> str:
    rows = [
        (f"`{group}.{name}`", kind.value)
        for group, members in COUNTERS.items()
        for name, kind in members.items()
    ]
    return table(("counter", "kind"), rows)


def engine_metrics() -> str:
    rows = [
        (f"`{m.name}`", m.kind, " ".join(f"`{label}`" for label in m.labels), m.help)
        for m in ENGINE_METRICS.values()
    ]
    return table(("name", "kind", "labels", "counts"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "units": units,
    "scenario-keys": lambda: block(Scenario, _ELSEWHERE),
    "class-keys": lambda: f"{_cell(help_of(ClassSpec))}\n\n{block(ClassSpec)}",
    "engine-keys": lambda: block(Engine),
    "url-keys": lambda: block(UrlTarget),
    "arrivals": lambda: entries("arrivals"),
    "amounts": lambda: entries("amounts"),
    "waits": lambda: entries("waits"),
    "workloads": lambda: entries("workloads"),
    "workload-blocks": lambda: entries("workload blocks"),
    "trace-keys": lambda: _fields(_of_every_trace()),
    "traces": lambda: entries("traces", _of_every_trace()),
    "faults": lambda: entries("faults"),
    "policies": policies,
    "metric-kinds": metric_kinds,
    "counters": counters,
    "compat-formulas": lambda: table(("formula", "is"), [(f"`{id}`", text) for id, text in FORMULAS.items()]),
    "slice-dimensions": lambda: ", ".join(f"`{dim}`" for dim in DIMS) + "\n",
    "engine-metrics": engine_metrics,
}


def main(check: bool) -> int:
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        made = regenerated(text)
        if made != text:
            stale.append(path.name)
            if not check:
                path.write_text(made, encoding="utf-8")
    if stale:
        sys.stdout.write(f"{'out of date' if check else 'rewritten'}: {', '.join(stale)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
