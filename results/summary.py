"""The judge: from a run to its summary and verdict (JOINTS 6). Pure, and the same bytes for the same run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from results import exits
from results.cachehits import cache_block
from results.counters import counters
from results.deciding import Evidence, decide
from results.diagnosis import as_dict, findings
from results.engine_truth import engine_block
from results.gates import parse_gates
from results.goodput import attainment
from results.judging import ClassGoal, Judging
from results.metrics import METRICS, tokens_after_first
from results.outcomes import Mask, counts, group_counts, is_group
from results.rates import rates
from results.record import Outcome
from results.run import RunData
from results.slices import labels
from results.stats.bootstrap import SEED
from results.stats.distribution import all_attempts
from results.stats.saturation import Saturation, integral, saturation
from results.validity import Health, collect, health
from results.view import View

SCHEMA_VERSION = 1

HEADLINE = ("ttft", "ttft_sched", "ttfo", "e2e", "e2e_sched", "tpot", "itl", "icl", "stall", "stream_close")
CLIENT_SIDE = ("send_lag", "pool_wait", "connect", "queue_wait")
SLICED = ("ttft_sched", "e2e_sched")
SLICE_DIMS = ("in", "out", "hit", "tier", "turn", "tenant", "worker", "finish")


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
    gates = _gates(data, view, client, engine, cache)
    ending = exits.ending(data, view, client, gates)
    summary = {
        **_about(judging),
        "client": _client(client),
        "window": _window(view),
        "classes": _classes(view),
        "all": _block(view, None, ClassGoal()),
        "slices": _slices(view),
        "cache": cache,
        "attribution": data.attribution,
        "faults": [_fault(f, view) for f in data.faults],
        "invariants": _invariants(data),
        "saturation": asdict(in_flight),
        "little": {"request_ns": integral(view.data, *judging.window)},
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
    if data.attribution is None:
        summary["attribution_reason"] = "prompt tokens were not attributed"
    plain: dict[str, Any] = _plain(summary)
    return plain


def _about(judging: Judging) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "scenario": judging.scenario,
        "question": judging.question,
        "plan_digest": judging.plan_digest,
        "seed": judging.seed,
        "virtual": judging.virtual,
        "demand": judging.demand,
    }


def _saturation(view: View) -> Saturation:
    groups, planned = group_counts(view.window), len(view.window)
    shed = (groups["rejected"] + groups["expired"]) / planned if planned else 0.0
    return saturation(view.data, view.judging.window, shed)


def _gates(
    data: RunData, view: View, client: Health, engine: dict[str, Any] | None, cache: dict[str, Any]
) -> list[dict[str, Any]]:
    evidence = Evidence(
        view,
        client,
        counters(data, engine),
        data.faults,
        cache["contract"]["state"],
        data.judging.strict,
        "the run was interrupted" if data.interrupted else data.incomplete,
    )
    return [decide(gate, evidence) for gate in parse_gates(data.judging)]


def summary_bytes(summary: dict[str, Any]) -> bytes:
    """summary.json: sorted keys, shortest exact floats, no NaN."""
    return (json.dumps(summary, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _judged_by(data: RunData, judging: Judging) -> RunData:
    values = {name: getattr(data, name) for name in RunData.__slots__}
    return RunData(**(values | {"judging": judging}))


def _plain(value: Any) -> Any:
    """numpy scalars to Python's own; infinities and NaN must not come this far."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _client(client: Health) -> dict[str, Any]:
    return {
        "verdict": client.verdict,
        "rows": client.rows,
        "limit_a": client.limit_a,
        "error_bound_us": round(client.error_bound * 1e6, 3),
    }


def _window(view: View) -> dict[str, Any]:
    a, b = view.judging.window
    return {"a": a, "b": b, "steady": [list(span) for span in view.steady_spans()]}


def _classes(view: View) -> dict[str, Any]:
    goals = view.judging.classes
    return {name: _block(view, name, goals.get(name, ClassGoal())) for name in view.by_class()}


def _block(view: View, name: str | None, goal: ClassGoal) -> dict[str, Any]:
    """One class (None: all) over the window."""
    of_class = view.of_class(name)
    rows = of_class & view.in_window
    data = view.data[rows]
    found = attainment(view.marks.at(rows))
    block: dict[str, Any] = {
        "rank": goal.rank,
        "slo": goal.slo,
        "loop": "open loop" if goal.open_loop else "closed loop",
        "planned": found.planned,
        "good": found.good,
        "incorrect": found.incorrect,
        "slo_vacuous": found.vacuous,
        "outcomes": counts(data),
        "groups": group_counts(data),
        "rates": rates(view.data[of_class], view.marks.at(of_class), view.window_spans),
        "attainment": found.value,
        "attainment_strict": found.strict,
        "attainment_for_gates": found.for_gates,
        "completed_share": float(view.marks.completed[rows].mean()) if found.planned else None,
        "metrics": {m: view.distribution(m, rows).table() for m in (*HEADLINE, *CLIENT_SIDE)},
        "tokens": _tokens(view, rows),
        "all_attempts": _all_attempts(view, rows),
    }
    if found.value is None:
        block["attainment_reason"] = "no request to count"
    if not found.planned:
        block["completed_share_reason"] = "no request was planned"
    if block["rates"]["asked"] is None:
        block["rates"]["reason"] = "the window has no length"
    return block


def _tokens(view: View, rows: Mask) -> dict[str, Any]:
    data, marks = view.data[rows], view.marks.at(rows)
    lost = is_group(data, "failed") | is_group(data, "expired") | is_group(data, "unknown")
    out = data["n_out"].fillna(0).to_numpy(dtype=np.float64)
    weights = _tpot_weighted(view, rows)
    result: dict[str, Any] = {
        "in": int(data["n_in"].fillna(0).sum()),
        "out": int(out[marks.completed].sum()),
        "failed": int(out[lost].sum()),
        "cancelled": int(out[marks.cancelled].sum()),
        "tpot_token_weighted": weights,
    }
    if weights is None:
        result["tpot_token_weighted_reason"] = "no completed request has token times"
    return result


def _tpot_weighted(view: View, rows: Mask) -> float | None:
    """Sum of the spans over sum of the tokens after the first events; a span of 0 counts like any other."""
    data = view.data[rows & view.marks.completed]
    per_request = METRICS["tpot"].per_request
    assert per_request is not None
    known = ~np.isnan(per_request(data))
    span = ((data["last_token"] - data["first_token"]) * 1e-9).to_numpy(dtype=np.float64)
    return float(span[known].sum() / tokens_after_first(data)[known].sum()) if known.any() else None


def _all_attempts(view: View, rows: Mask) -> dict[str, Any]:
    """Quantiles over all that were neither cancelled by plan nor excluded; failures are +infinity."""
    marks = view.marks.at(rows)
    kept = ~marks.cancelled & ~marks.excluded
    data, completed = view.data[rows][kept], marks.completed[kept]
    result: dict[str, Any] = {}
    bound = longest_timeout(view)
    for name in ("ttft_sched", "e2e", "e2e_sched"):
        of = METRICS[name].per_request
        assert of is not None
        result[name] = all_attempts(of(data), ~completed, bound)
    return result


def longest_timeout(view: View) -> float | None:
    """The longest client timeout that was reached, else the longest that was set; s."""
    ran_out = view.window[(view.window["outcome"] == Outcome.CLIENT_TIMEOUT.value).to_numpy(dtype=bool)]
    reached = ((ran_out["closed"] - ran_out["start"]) * 1e-9).dropna()
    return float(reached.max()) if len(reached) else max(view.judging.timeouts.values(), default=None)


def _slices(view: View) -> list[dict[str, Any]]:
    """Every dimension along which a class of the window differs."""
    result = []
    for name in view.by_class():
        rows = view.of_class(name) & view.in_window
        for dim in SLICE_DIMS:
            found = labels(view.data, dim)
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
    block = {
        "by": by,
        "n": int(rows.sum()),
        "attainment": found.value,
        "metrics": {metric: view.distribution(metric, rows).table() for metric in SLICED},
    }
    return block if found.value is not None else block | {"attainment_reason": "no request to count"}


def _fault(fault: dict[str, Any], view: View) -> dict[str, Any]:
    """A fault window, its span and what it met."""
    name = str(fault["id"])
    span = view.faults.get(name)
    block = dict(fault) | {"span": None if span is None else list(span)}
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
