"""Numbers as people read them, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from results.gates import GateError, parse_gate
from results.metrics import Kind
from results.report.charts import count, digits, seconds
from results.validity import MEANING, UNITS

NOTHING = "–"

TONES = {
    "PASS": "good",
    "FAIL": "bad",
    "INCONCLUSIVE": "warn",
    "valid": "good",
    "degraded": "warn",
    "invalid": "bad",
    "pass": "good",
    "fail": "bad",
    "inconclusive": "warn",
    "error": "bad",
}


def by_rank(summary: Mapping[str, Any], total: bool = False) -> dict[str, dict[str, Any]]:
    """The classes in the order of their ranks; ``total`` adds all of them together, where several are."""
    blocks: dict[str, dict[str, Any]] = dict(
        sorted(summary["classes"].items(), key=lambda item: (item[1]["rank"], item[0]))
    )
    if total and len(blocks) > 1:
        blocks["all"] = summary["all"]
    return blocks


def percent(value: float | None) -> str:
    """100 % is said of nothing less."""
    if value is None:
        return NOTHING
    if 0.9995 <= value < 1:
        return f"{math.floor(value * 1e4) / 100:.2f} %"
    return f"{digits(value * 100)} %"


def duration(value: float | None) -> str:
    return NOTHING if value is None else seconds(value)


def rate(value: float | None) -> str:
    return NOTHING if value is None else digits(value)


def quantity(value: float | None, kind: Kind) -> str:
    """A value with the unit of its kind."""
    if value is None:
        return NOTHING
    if kind in (Kind.LATENCY, Kind.LAG):
        return seconds(value)
    if kind is Kind.RATIO:
        return percent(value)
    if kind is Kind.RATE:
        return f"{digits(value)}/s"
    if kind is Kind.AMOUNT:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if kind is Kind.FACTOR:
        return f"{digits(value)} x"
    return f"{value:,.0f}" if float(value).is_integer() else digits(value)


def margin(value: float | None, kind: Kind) -> str:
    """Room to the bound; between two shares it is percentage points."""
    return f"{value * 100:.3g} pts" if value is not None and kind is Kind.RATIO else quantity(value, kind)


def interval(bounds: list[float | None] | None, kind: Kind) -> str:
    """``180 ms .. 240 ms``; an open side as an ellipsis."""
    if bounds is None or bounds == [None, None]:
        return ""
    low, high = (("…" if b is None else quantity(b, kind)) for b in bounds)
    return f"{low} .. {high}"


def kind_of_gate(text: str, classes: list[str]) -> Kind:
    try:
        return parse_gate(text, classes).kind
    except GateError:
        return Kind.COUNT


def gate_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The gates as text, ready for any table."""
    rows = []
    for gate in summary["gates"]:
        kind = kind_of_gate(gate["text"], list(summary["classes"]))
        shown = interval(gate["interval"], kind)
        within = (
            "the bound lies within the interval" if shown else "there are too few requests for an interval"
        )
        marginal = f"passes, but {within}" if gate.get("marginal") else ""
        rows.append(
            {
                "verdict": gate["verdict"],
                "tone": TONES[gate["verdict"]],
                "text": gate["text"],
                "value": quantity(gate["value"], kind),
                "interval": shown,
                "margin": margin(gate["margin"], kind),
                "n": "" if gate["n"] is None else f"{gate['n']:,}",
                "reason": _reason(gate["reason"]) or marginal,
            }
        )
    return rows


def _reason(said: str | None) -> str:
    """The formula of a quantile that has no value, as a sentence."""
    if said in ("n(1-q)<1", "nq<1", "no samples"):
        return f"too few requests for this quantile ({said})"
    return said or ""


def health_rows(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """H1..H12 as text, with both limits: valid up to the first, invalid beyond the second."""
    rows = []
    for rule in MEANING:
        row = summary["client"]["rows"][rule]
        show = _SHOWN.get(UNITS.get(rule, ""), _number)
        process = "" if "process" not in row else f"load process {row['process']}"
        rows.append(
            {
                "id": rule,
                "meaning": MEANING[rule],
                "value": show(row["value"]),
                "limit": show(row["limit"]),
                "degraded": show(row["degraded_limit"]) if "degraded_limit" in row else "any",
                "state": row["state"] or "",
                "tone": TONES.get(row["state"] or "", ""),
                "reason": row.get("reason", process),
            }
        )
    return rows


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:g}"


_SHOWN = {"s": duration, "%": percent}


def client_words(summary: Mapping[str, Any]) -> str:
    """One line on what the client's verdict rests on."""
    client = summary["client"]
    rows = client["rows"].values()
    measured = sum(row["state"] is not None for row in rows)
    bad = [rule for rule, row in client["rows"].items() if row["state"] not in (None, "valid")]
    where = "; it shared the target's CPUs" if client.get("co_located") else ""
    if bad:
        named = ", ".join(f"{rule} {MEANING[rule]}" for rule in bad)
        return f"{named} beyond the limit; {_bound(client)}{where}."
    measured_of = f"{measured} of {len(client['rows'])} health rules measured, all within limits"
    return f"{measured_of}; {_bound(client)}{where}."


def _bound(client: Mapping[str, Any]) -> str:
    if client["error_bound_us"] is None:
        return f"its timing error has no bound ({client['error_bound_us_reason']})"
    return f"its timing error is at most {seconds(client['error_bound_us'] * 1e-6)}"


_STAMPS = {
    "kernel": "Arrivals were stamped by the kernel",
    "user": "Arrivals were stamped by the client itself",
    "mixed": "Arrivals were stamped by the kernel where it did, else by the client itself",
}


def stamp_words(summary: Mapping[str, Any]) -> str:
    """Whose clock the latencies rest on, and how many times are upper bounds; "" if nothing arrived."""
    client = summary["client"]
    if client["stamp"] is None:
        return ""
    said = ["Arrivals have exact, virtual times" if summary["virtual"] else _STAMPS[client["stamp"]]]
    if client["stamp"] == "mixed":
        said[0] += f" ({percent(client['kernel_share'])} wholly by the kernel)"
    if client["skew_us"]:
        said.append(f"its clock converted to within {seconds(client['skew_us'] * 1e-6)}")
    if client["coalesced_share"]:
        said.append(f"{percent(client['coalesced_share'])} of the token events shared a read")
    if client["conn_new_share"]:
        said.append(f"{percent(client['conn_new_share'])} of the requests opened a connection")
    return "; ".join(said) + "."


def timeout_words(summary: Mapping[str, Any]) -> str:
    """The client's own limits (MEASUREMENT C28); "" if the run set none."""
    limits = summary["timeouts"]
    order = sorted(limits, key=lambda name: (limits[name], name))
    named = [f"{name.replace('_', ' ')} {seconds(limits[name])}" for name in order]
    return f"The client gave up after: {', '.join(named)}." if named else ""


def sending_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """How each class's load came: law of the sends, waits before them, connections (MEASUREMENT C8, C18)."""
    rows = []
    for name, block in by_rank(summary).items():
        sent, metrics = block["offered"], block["metrics"]
        rows.append(
            [
                class_name(name, block),
                f"{metrics['send_lag']['n']:,}",
                rate(sent["gap_cv"]),
                rate(sent["dispersion_1s"]),
                duration(sent["burst_skew_s"]),
                *(duration(metrics[lag]["max"]) for lag in ("client_lag", "cap_wait")),
                *(duration(_high(metrics[wait])) for wait in ("pool_wait", "connect")),
                str(block["retried"]),
            ]
        )
    return rows


def _high(table: Mapping[str, Any]) -> float | None:
    """p99, or the maximum of few."""
    found: float | None = table["max"] if table["p99"] is None else table["p99"]
    return found


HEADLINES = {
    "schedule": ("ttft_sched", "itl", "tpot", "e2e_sched"),
    "send": ("ttft", "itl", "tpot", "e2e"),
}
"""By the clock that a class is judged on: a closed loop has only the send's."""


def headline(block: Mapping[str, Any], metric: str) -> str:
    """``ttft_sched`` or ``ttft``, as the class's loop asks."""
    return f"{metric}_sched" if block["headline"] == "schedule" else metric


def class_name(name: str, block: Mapping[str, Any]) -> str:
    return name if block["headline"] == "schedule" else f"{name} (closed loop)"


def first_divergence(row: dict[str, Any]) -> str:
    """Where the first differing token is, in words."""
    found = row.get("first_divergence")
    if not found:
        return ""
    where = f"{found['token_in_component']} of {found['path']}"
    return f"first differing token: {where}, {found['token_index']} of the prompt"


def began(row: dict[str, Any]) -> str:
    """What a costly miss came from, as far as requests can tell (ATTRIBUTION A25)."""
    if where := first_divergence(row):
        return where
    return "no change in the request" if row["outcome"] == "unexplained" else ""


def cache_words(summary: Mapping[str, Any]) -> str:
    """Hits and contract in one line."""
    cache = summary["cache"]
    hit = cache["hits"]["hit_token_weighted"]
    contract = cache["contract"]
    words = [f"cache contract: {contract['declared']}, {contract['state']}"]
    if contract["state"] != "held":
        words[0] += f" ({contract['reason']})"
    if hit is not None:
        best = cache["hits"]["hit_theoretical"]
        most = "" if best is None else f" (endless caches: {percent(best)})"
        words.insert(0, f"{percent(hit)} of the prompt tokens were read from cache{most}")
    return "; ".join(words) + "."


def replay_words(summary: Mapping[str, Any]) -> list[str]:
    """One paragraph on how each trace was replayed."""
    return [
        f"{trace['class']} replays {trace['type']} {trace['file']}. {' '.join(trace['says'])}"
        for trace in summary.get("replays", ())
    ]


def invariant_words(summary: Mapping[str, Any]) -> str:
    found = summary["invariants"]
    if found["checked"] is None:
        return "No invariants were checked."
    failed = ", ".join(f"{row['id']} ({row['evidence']})" for row in found["failed"])
    judged = f"{found['checked']} invariants checked, "
    rest = f"; {len(found['not_judged'])} could not be judged" if found["not_judged"] else ""
    return judged + (f"broken: {failed}" if failed else "all hold") + rest + "."


def tokens(value: float | None) -> str:
    return NOTHING if value is None else count(value)
