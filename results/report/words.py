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
    """H1..H12 as text."""
    rows = []
    for rule in MEANING:
        row = summary["client"]["rows"][rule]
        unit = UNITS.get(rule)
        show = (
            duration
            if unit == "s"
            else percent
            if unit == "%"
            else lambda v: NOTHING if v is None else f"{v:g}"
        )
        rows.append(
            {
                "id": rule,
                "meaning": MEANING[rule],
                "value": show(row["value"]),
                "limit": show(row["limit"]),
                "state": row["state"] or "",
                "tone": TONES.get(row["state"] or "", ""),
                "reason": row.get("reason", ""),
            }
        )
    return rows


def client_words(summary: Mapping[str, Any]) -> str:
    """One line on what the client's verdict rests on."""
    client = summary["client"]
    rows = client["rows"].values()
    measured = sum(row["state"] is not None for row in rows)
    bad = [rule for rule, row in client["rows"].items() if row["state"] not in (None, "valid")]
    bound = f"its timing error is at most {seconds(client['error_bound_us'] * 1e-6)}"
    if bad:
        named = ", ".join(f"{rule} {MEANING[rule]}" for rule in bad)
        return f"{named} beyond the limit; {bound}."
    return f"{measured} of {len(client['rows'])} health rules measured, all within limits; {bound}."


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
    if hit is not None:
        words.insert(0, f"{percent(hit)} of the prompt tokens were read from cache")
    return "; ".join(words) + "."


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
