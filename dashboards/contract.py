"""What a dashboard promises: its names exist, its queries are well formed (OBSERVABILITY V3, O15)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from engine.metrics import METRICS

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\bheadrace_[a-z0-9_]+")
_RATED = re.compile(r"\b(rate|increase)\((headrace_[a-z0-9_]+)\{[^}]*\}\[[^\]]+\]\)")
_BY = re.compile(r"\bby \(([^)]*)\)")
_SUFFIXES = ("_bucket", "_sum", "_count")
_PAIRS = {")": "(", "]": "[", "}": "{"}


def panels(dashboard_json: str) -> list[dict[str, Any]]:
    """All panels of a dashboard but its row headings."""

    def walk(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for item in items:
            if item["type"] == "row":
                yield from walk(item.get("panels") or [])
            else:
                yield item

    return list(walk(json.loads(dashboard_json)["panels"]))


def queries(dashboard_json: str) -> list[str]:
    """The PromQL of every target, variables in place."""
    return [target["expr"] for panel in panels(dashboard_json) for target in panel["targets"]]


def filled(expr: str) -> str:
    """The query with Grafana's own variables replaced, as Prometheus would get it."""
    for variable, value in (("$__rate_interval", "1m"), ("$__range", "1h"), ("$__interval", "15s")):
        expr = expr.replace(variable, value)
    return re.sub(r"\$\w+", ".*", expr)


def names(expr: str) -> set[str]:
    """Metric names as they stand in a query, suffixes included."""
    return set(_NAME.findall(_STRING.sub('""', expr)))


def missing_names(dashboard_json: str, exposition_text: str) -> set[str]:
    """Names that the dashboard asks for and a scraped page has no sample of.

    ``exposition_text`` is the text format; a name with only HELP and TYPE lines has no series, so a panel
    on it would stay empty: it counts as missing.
    """
    exposed = {
        re.split(r"[{\s]", line, maxsplit=1)[0]
        for line in exposition_text.splitlines()
        if line and not line.startswith("#")
    }
    return {name for expr in queries(dashboard_json) for name in names(expr)} - exposed


def lint(expr: str) -> list[str]:
    """What is wrong with a query: brackets, unknown names and labels, counters without rate or the like."""
    bare = _STRING.sub('""', expr)
    found = [] if _balanced(bare) else ["brackets do not match"]
    rated = [match.group(2) for match in _RATED.finditer(bare)]
    for name in sorted(names(expr)):
        kind = _kind(name)
        uses = len(re.findall(rf"\b{name}\b", bare))
        if kind is None:
            found.append(f"{name} is not in the table of metrics")
        elif kind == "counter" and rated.count(name) != uses:
            found.append(f"{name} counts up: it belongs under rate or increase")
        elif kind == "gauge" and name in rated:
            found.append(f"{name} is a gauge: its rate means nothing")
    known = {"le", "model", "worker", *(label for name in names(expr) for label in _labels(name))}
    for group in _BY.findall(bare):
        found += [f"no label {x}" for x in (part.strip() for part in group.split(",")) if x not in known]
    return found


def _balanced(text: str) -> bool:
    open_: list[str] = []
    for character in text:
        if character in _PAIRS.values():
            open_.append(character)
        elif character in _PAIRS and (not open_ or open_.pop() != _PAIRS[character]):
            return False
    return not open_


def _base(name: str) -> str:
    return next((name.removesuffix(s) for s in _SUFFIXES if name.removesuffix(s) in METRICS), name)


def _kind(name: str) -> str | None:
    """``counter`` for everything that only grows, histogram series too."""
    metric = METRICS.get(_base(name))
    if metric is None:
        return None
    if metric.kind == "histogram":
        return "counter" if name != metric.name else None
    return metric.kind if name == metric.name else None


def _labels(name: str) -> tuple[str, ...]:
    metric = METRICS.get(_base(name))
    return tuple(metric.labels) if metric else ()
