"""The judge: from a run to its summary and verdict (JOINTS 6). Pure, and the same bytes for the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from results import exits
from results.cachehits import cache_block
from results.classblock import class_block
from results.clientblock import client_block
from results.compat import compat_block
from results.counters import counters
from results.deciding import Evidence, decide
from results.diagnosis import as_dict, findings
from results.economy import PER_GOOD, Economy, economy
from results.engine_truth import engine_block
from results.gates import parse_gates
from results.goodput import attainment
from results.judging import ClassGoal, Judging
from results.offered import issued
from results.outcomes import Mask, group_counts
from results.run import RunData
from results.signals import collect
from results.slices import labels
from results.stats.bootstrap import SEED
from results.stats.saturation import Saturation, integral, saturation
from results.validity import Health, health
from results.view import View

SCHEMA_VERSION = 1

SLICED = {True: ("ttft_sched", "e2e_sched", "slowdown"), False: ("ttft", "e2e", "slowdown")}
"""Whether the loop is open -> what its slices show."""
SLICE_DIMS = ("in", "out", "hit", "tier", "turn", "tenant", "worker", "adapter", "finish")


def judge(data: RunData, judging: Judging | None = None) -> dict[str, Any]:
    """The whole of summary.json. ``judging`` replaces the one that the run was made with."""
    if judging is not None and judging is not data.judging:
        data = _judged_by(data, judging)
    judging = data.judging
    view = View.of(data)
    client = health(collect(data, view), judging.limits)
    engine = engine_block(view, data.scrapes, data.truth)
    cache = cache_block(view, data.attribution)
    in_flight = _saturation(view)
    costs = economy(data, view)
    gates = _gates(data, view, client, engine, cache, costs)
    ending = exits.ending(data, view, client, gates)
    summary = {
        **_about(judging),
        "client": client_block(client, data),
        "window": _window(view),
        "classes": _classes(view),
        "all": class_block(view, None, _of_all(judging)),
        "slices": _slices(view),
        "cache": cache,
        "compat": compat_block(view),
        "economy": costs.block(),
        **_attribution(data),
        "faults": [_fault(f, view, data.plan) for f in data.faults],
        "invariants": _invariants(data),
        "saturation": asdict(in_flight),
        "little": {"request_ns": integral(view.lives, *judging.window)},
        "gates": gates,
        "findings": [as_dict(f) for f in findings(data, view, client, in_flight)],
        "bootstrap_seed": SEED,
        "interrupted": data.interrupted,
        "incomplete": data.incomplete,
        "verdict": ending.verdict,
        "reason": ending.reason,
        "exit": ending.exit,
    }
    if engine is not None:
        summary["engine"] = engine
    if traces := data.manifest.get("traces"):
        summary["replays"] = [_replay(trace) for trace in traces]
    return _ordered(summary)


def _replay(trace: Mapping[str, Any]) -> dict[str, Any]:
    """How a trace was replayed; where its file lies is the machine's, and stays in the manifest."""
    about = {key: trace[key] for key in ("class", "type", "says")}
    return about | {"file": PurePath(trace["file"]).name}


def _about(judging: Judging) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "scenario": judging.scenario,
        "question": judging.question,
        "plan_digest": judging.plan_digest,
        "seed": judging.seed,
        "virtual": judging.virtual,
        "demand": judging.demand,
        "timeouts": judging.timeouts,
    }


def _attribution(data: RunData) -> dict[str, Any]:
    if data.attribution is not None:
        return {"attribution": data.attribution}
    return {"attribution": None, "attribution_reason": "prompt tokens were not attributed"}


def _saturation(view: View) -> Saturation:
    groups, planned = group_counts(view.window), len(view.window)
    shed = (groups["rejected"] + groups["expired"]) / planned if planned else 0.0
    return saturation(view.lives, view.judging.window, shed)


def _gates(
    data: RunData,
    view: View,
    client: Health,
    engine: dict[str, Any] | None,
    cache: dict[str, Any],
    costs: Economy,
) -> list[dict[str, Any]]:
    evidence = Evidence(
        view,
        client,
        counters(data, engine),
        data.faults,
        cache["contract"]["state"],
        data.judging.strict,
        {name: costs.of(name) for name in PER_GOOD},
        "the run was interrupted" if data.interrupted else data.incomplete,
    )
    return [decide(gate, evidence) for gate in parse_gates(data.judging)]


def summary_bytes(summary: dict[str, Any]) -> bytes:
    """summary.json: in the order of ``judge``, shortest exact floats, no NaN."""
    return (json.dumps(summary, indent=1, allow_nan=False) + "\n").encode()


FIRST = ("client", "verdict", "reason", "exit")
"""A reader learns first whether the numbers below may be believed."""


def _ordered(summary: dict[str, Any]) -> dict[str, Any]:
    """``FIRST``, then all other keys in the order of the alphabet, so that equal runs give equal bytes."""
    rest = sorted(summary.keys() - set(FIRST))
    plain: dict[str, Any] = {name: _plain(summary[name]) for name in (*FIRST, *rest)}
    return plain


def _judged_by(data: RunData, judging: Judging) -> RunData:
    values = {name: getattr(data, name) for name in RunData.__slots__}
    return RunData(**(values | {"judging": judging}))


def _plain(value: Any) -> Any:
    """numpy scalars to Python's own, keys sorted (a verdict first); no infinity or NaN comes this far."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (key != "verdict", str(key)))
        return {str(key): _plain(value[key]) for key in keys}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _window(view: View) -> dict[str, Any]:
    a, b = view.judging.window
    return {"a": a, "b": b, "steady": [list(span) for span in view.steady_spans()]}


def _classes(view: View) -> dict[str, Any]:
    goals = view.judging.classes
    return {name: class_block(view, name, goals.get(name, ClassGoal())) for name in view.names}


def _of_all(judging: Judging) -> ClassGoal:
    goals = judging.classes.values()
    return ClassGoal(open_loop=not goals or any(goal.open_loop for goal in goals))


def _slices(view: View) -> list[dict[str, Any]]:
    """Every dimension along which a class of the window differs."""
    result = []
    all_labels = {dim: labels(view.data, dim) for dim in SLICE_DIMS}
    for name in view.names:
        rows = view.of_class(name) & view.in_window
        for dim, found in all_labels.items():
            values = sorted(set(found[rows]))
            if len(values) > 1:
                result += [_slice(view, name, dim, value, rows & (found == value)) for value in values]
    for fault in view.faults:
        rows = view.in_window & view.meets(fault)
        result.append(_slice(view, None, "during", fault, rows))
    if view.faults:
        result.append(_slice(view, None, "during", "steady", view.in_window & view.steady()))
    return result


def _slice(view: View, name: str | None, dim: str, value: str, rows: Mask) -> dict[str, Any]:
    by = {dim: value} if name is None else {"class": name, dim: value}
    found = attainment(view.marks.at(rows))
    is_open = name is None or view.judging.classes.get(name, ClassGoal()).open_loop
    block = {
        "by": by,
        "n": int(rows.sum()),
        "attainment": found.value,
        "metrics": {metric: view.distribution(metric, rows).table() for metric in SLICED[is_open]},
    }
    return block if found.value is not None else block | {"attainment_reason": "no request to count"}


def _fault(fault: dict[str, Any], view: View, plan: pd.DataFrame | None) -> dict[str, Any]:
    """A fault window, its span and what it met; of a burst, how long issuing it took."""
    name = str(fault["id"])
    span = view.faults.get(name)
    block = dict(fault) | {"span": None if span is None else list(span)}
    if fault.get("type") == "burst":
        block |= issued(view, plan, name)
    if span is None:
        return block | {"span_reason": "not injected"}
    rows = view.in_window & view.meets(name)
    met = group_counts(view.data[rows])
    return block | {"requests": int(rows.sum()), "groups": met}


def _invariants(data: RunData) -> dict[str, Any]:
    if data.invariants is None:
        return {"checked": None, "failed": [], "not_judged": [], "reason": "no invariants were checked"}
    rows = [
        {"id": r.get("id"), "evidence": r.get("evidence")} | {"verdict": r.get("verdict")}
        for r in data.invariants
    ]
    by = {
        v: [{k: r[k] for k in ("id", "evidence")} for r in rows if r["verdict"] == v]
        for v in ("pass", "fail")
    }
    rest = [{k: r[k] for k in ("id", "evidence")} for r in rows if r["verdict"] not in by]
    return {"checked": len(by["pass"]) + len(by["fail"]), "failed": by["fail"], "not_judged": rest}
