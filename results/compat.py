"""The window's numbers under the names that other tools use, by their formulas (MEASUREMENT 10).

For people who move from one of them: nothing here is judged or gated. Every name carries the id of the
formula that made it, since tools use one name for different things. Times count from the send; only
completed requests count. ``FORMULAS`` says what each id is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from results.goodput import Marks
from results.metrics import METRICS, NS
from results.rates import per_second
from results.stats.quantiles import Values
from results.token_events import icl
from results.view import View

FORMULAS = {
    "span": "first send to last completion, s",
    "count": "number of requests",
    "sum_in": "sum of n_in",
    "sum_out": "sum of n_out",
    "per_span": "count or sum / span",
    "good_per_span": "good requests, by the SLOs of their class / span",
    "good_share": "good / completed",
    "peak_tokens_1s": "most output tokens in a 1 s bin counted from the first send",
    "peak_in_flight_1s": "most requests alive in a 1 s bin counted from the first send",
    "mean_in_flight": "sum of all [send, last token) / span",
    "ttft": "first token - send",
    "ttfo": "first visible output - send",
    "e2e": "last token - send",
    "tpot": "(last token - first token)/(n_out - k_first), of a request",
    "tpot_vllm": "(last token - first token)/(n_out - 1), of a request",
    "tpot_from_send": "(last token - send)/n_out, of a request: TTFT inside",
    "icl": "gaps between token-bearing events, pooled",
    "per_user": "1/tpot, tokens/s of a request",
    "n_in": "prompt tokens, of a request",
    "n_out": "output tokens, of a request",
}

LATEST = 1 << 62
"""ns since t0; no event is later."""
PERCENTILES = (50, 90, 95, 99)
Samples = dict[str, Values]
Numbers = dict[str, float | None]

_NUMBERS: dict[str, dict[str, tuple[str, str, str]]] = {
    "vllm_bench_serve": {
        "duration": ("span", "span", "s"),
        "completed": ("count", "completed", ""),
        "failed": ("count", "failed", ""),
        "total_input_tokens": ("sum_in", "sum_in", ""),
        "total_output_tokens": ("sum_out", "sum_out", ""),
        "request_throughput": ("per_span", "requests_per_span", "/s"),
        "output_throughput": ("per_span", "out_per_span", "/s"),
        "total_token_throughput": ("per_span", "all_per_span", "/s"),
        "request_goodput": ("good_per_span", "good_per_span", "/s"),
        "max_output_tokens_per_s": ("peak_tokens_1s", "peak_tokens_1s", "/s"),
        "max_concurrent_requests": ("peak_in_flight_1s", "peak_in_flight_1s", ""),
    },
    "aiperf": {
        "request_throughput": ("per_span", "requests_per_span", "/s"),
        "output_token_throughput": ("per_span", "out_per_span", "/s"),
        "goodput": ("good_per_span", "good_per_span", "/s"),
        "good_request_fraction": ("good_share", "good_share", ""),
    },
    "guidellm": {
        "request_concurrency": ("mean_in_flight", "mean_in_flight", ""),
        "output_tokens_per_second": ("per_span", "out_per_span", "/s"),
        "requests_per_second": ("per_span", "requests_per_span", "/s"),
    },
}
"""Tool -> its name -> (formula, key in ``_numbers``, unit)."""

_SAMPLES: dict[str, dict[str, tuple[str, str]]] = {
    "vllm_bench_serve": {
        "ttft_ms": ("ttft", "ms"),
        "tpot_ms": ("tpot_vllm", "ms"),
        "itl_ms": ("icl", "ms"),
        "e2el_ms": ("e2e", "ms"),
    },
    "aiperf": {
        "request_latency": ("e2e", "ms"),
        "time_to_first_token": ("ttft", "ms"),
        "time_to_first_output_token": ("ttfo", "ms"),
        "inter_token_latency": ("tpot", "ms"),
        "inter_chunk_latency": ("icl", "ms"),
        "output_token_throughput_per_user": ("per_user", "/s"),
        "input_sequence_length": ("n_in", ""),
        "output_sequence_length": ("n_out", ""),
    },
    "guidellm": {
        "request_latency": ("e2e", "s"),
        "time_to_first_token_ms": ("ttft", "ms"),
        "time_to_first_output_token_ms": ("ttfo", "ms"),
        "time_per_output_token_ms": ("tpot_from_send", "ms"),
        "inter_token_latency_ms": ("tpot", "ms"),
    },
}
"""Tool -> its name -> (formula, unit)."""


def compat_block(view: View) -> dict[str, dict[str, Any]]:
    """``{tool: {name: {formula, unit, value | statistics}}}``; null with a reason."""
    lived = (view.data["start"].notna() & _ends(view.data).notna()).to_numpy(dtype=bool)
    rows = view.in_window & view.marks.completed & lived
    data, marks = view.part(rows), view.marks.at(rows)
    numbers, samples = _numbers(view, data, marks), _samples(data)
    return {tool: _tool(tool, numbers, samples) for tool in _NUMBERS}


def _tool(tool: str, numbers: Numbers, samples: Samples) -> dict[str, Any]:
    found = {
        name: _number(formula, numbers[key], unit) for name, (formula, key, unit) in _NUMBERS[tool].items()
    }
    percentile = _nearest if tool == "guidellm" else _linear
    for name, (formula, unit) in _SAMPLES[tool].items():
        statistics = _statistics(samples[formula], unit, percentile)
        if tool == "vllm_bench_serve":  # its names begin with the statistic
            found |= {f"{stat}_{name}": _number(formula, v, unit) for stat, v in statistics.items()}
        else:
            block = {"formula": formula, "unit": unit, "n": len(samples[formula]), **statistics}
            found[name] = block if len(samples[formula]) else block | {"reason": "no samples"}
    return found


def _numbers(view: View, data: pd.DataFrame, marks: Marks) -> Numbers:
    """The single numbers, by formula (``per_span`` by what is divided)."""
    n_in, n_out = float(data["n_in"].fillna(0).sum()), float(data["n_out"].fillna(0).sum())
    good = float(marks.good.sum())
    first, last = view.window["start"].min(), _ends(data).max()
    span = float((last - first) * NS) if len(data) and last > first else None
    alive = float((_ends(data) - data["start"]).sum() * NS)
    tried = ~view.marks.completed & ~view.marks.excluded & ~view.marks.cancelled
    found: Numbers = {
        "span": span,
        "completed": float(len(data)),
        "failed": float((view.in_window & tried).sum()),
        "sum_in": n_in,
        "sum_out": n_out,
        "good_share": good / len(data) if len(data) else None,
        "peak_tokens_1s": None if span is None else _peak_tokens(data, float(first)),
        "peak_in_flight_1s": None if span is None else _peak_alive(data, float(first)),
        "mean_in_flight": None if span is None else alive / span,
    }
    for name, total in (
        ("requests", float(len(data))),
        ("out", n_out),
        ("all", n_in + n_out),
        ("good", good),
    ):
        found[f"{name}_per_span"] = None if span is None else total / span
    return found


def _ends(data: pd.DataFrame) -> pd.Series[float]:
    return data["last_token"].fillna(data["terminal"])


def _peak_tokens(data: pd.DataFrame, first: float) -> float | None:
    found = per_second(data, ((int(first), LATEST),))
    return float(found.max()) if found.any() else None


def _peak_alive(data: pd.DataFrame, first: float) -> float:
    """Requests of which some part of the life lies in the bin."""
    begin = ((data["start"] - first) * NS).to_numpy(dtype=np.float64).astype(np.int64)
    end = ((_ends(data) - first) * NS).to_numpy(dtype=np.float64).astype(np.int64)
    changes = np.zeros(int(end.max()) + 2)
    np.add.at(changes, begin, 1.0)
    np.add.at(changes, end + 1, -1.0)
    return float(np.cumsum(changes).max())


def _samples(data: pd.DataFrame) -> Samples:
    """The distributions, by formula; times in s."""
    of = {name: METRICS[name].per_request for name in ("ttft", "ttfo", "e2e", "tpot")}
    found = {name: per_request(data) for name, per_request in of.items() if per_request is not None}
    n_out = data["n_out"].to_numpy(dtype=np.float64)
    span = ((data["last_token"] - data["first_token"]) * NS).to_numpy(dtype=np.float64)
    found["tpot_vllm"] = _over(span, n_out - 1)
    found["tpot_from_send"] = _over(found["e2e"], n_out)
    found["per_user"] = _over(np.ones(len(data)), found["tpot"])
    found |= {"n_in": data["n_in"].to_numpy(dtype=np.float64), "n_out": n_out}
    return {name: values[~np.isnan(values)] for name, values in found.items()} | {"icl": icl(data).values}


def _over(value: Values, by: Values) -> Values:
    result: Values = np.divide(value, by, out=np.full(len(value), np.nan), where=by > 0)
    return result


def _number(formula: str, value: float | None, unit: str) -> dict[str, Any]:
    found: dict[str, Any] = {"formula": formula, "unit": unit, "value": value}
    return found if value is not None else found | {"reason": "no request completed, or all in no time"}


def _statistics(
    values: Values, unit: str, percentile: Callable[[Values, float], float]
) -> dict[str, float | None]:
    """Given for any number of samples, as the tools do; the standard deviation is that of the samples."""
    names = ("mean", "median", "std", *(f"p{q}" for q in PERCENTILES))
    if not len(values):
        return dict.fromkeys(names)
    shown = values * (1000.0 if unit == "ms" else 1.0)
    moments = (float(shown.mean()), percentile(shown, 50), float(shown.std()))
    return dict(zip(names, (*moments, *(percentile(shown, q) for q in PERCENTILES)), strict=True))


def _linear(values: Values, q: float) -> float:
    return float(np.percentile(values, q))


def _nearest(values: Values, q: float) -> float:
    """Nearest rank: the smallest sample that at least q % of the samples do not exceed."""
    return float(np.percentile(values, q, method="inverted_cdf"))
