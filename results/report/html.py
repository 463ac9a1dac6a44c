"""report.html: one file without outside resources, for a browser, a ticket or an archive."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from results.report import pictures, timelines, words
from results.report.charts import seconds
from results.report.prices import economy_words
from results.run import RunData
from results.view import View

QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
GROUPS = ("ok", "rejected", "expired", "failed", "cancelled", "excluded")


def render(data: RunData, summary: Mapping[str, Any]) -> str:
    """The whole page of a judged run."""
    folder = files("results.report")
    css = folder.joinpath("page.css").read_text()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html.j2").read_text())
    view = View.of(data)
    return template.render(
        css=Markup(css), s=summary, **_pictures(data, view, summary), **_texts(data, view, summary)
    )


def _pictures(data: RunData, view: View, summary: Mapping[str, Any]) -> dict[str, Any]:
    palette = timelines.Palette(view)
    rollup = summary["attribution"]
    drawn = {
        "ttft": timelines.ttft_over_time(view, data.faults, palette),
        "rates": timelines.rates_over_time(view, data.faults),
        "ecdf_ttft": pictures.distribution(view, "ttft_sched", palette, "requests"),
        "ecdf_itl": pictures.distribution(view, "itl", palette, "tokens"),
        "kv": timelines.kv_over_time(view, data.scrapes, data.faults),
        "missed": pictures.missed_tokens(rollup["missed_tokens"]) if rollup else None,
        "ledger": pictures.ledger_bar(rollup["ledger"]) if rollup and rollup.get("ledger") else None,
    }
    marked = {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}
    return {
        **marked,
        "palette": [(name, palette[name]) for name in palette.names],
        "buckets": pictures.BUCKETS,
    }


def _texts(data: RunData, view: View, summary: Mapping[str, Any]) -> dict[str, Any]:
    tones = {"good": "is-good", "bad": "is-bad", "warn": "is-warn"}
    return {
        "facts": _facts(data, summary),
        "client_tone": tones[words.TONES[summary["client"]["verdict"]]],
        "verdict_tone": tones[words.TONES[summary["verdict"]]],
        "client_words": words.client_words(summary),
        "stamp_words": words.stamp_words(summary),
        "processes": _processes(summary),
        "sending": words.sending_rows(summary),
        "timeout_words": words.timeout_words(summary),
        "health": words.health_rows(summary),
        "gates": words.gate_rows(summary),
        "classes": _classes(summary),
        "latencies": _latencies(summary),
        "all_attempts": _all_attempts(summary),
        "faults": _faults(summary),
        "throughout": [f["id"] for f in data.faults if timelines.lasts_all_along(f, view)],
        "invariants": words.invariant_words(summary),
        "top": _top(summary),
        "cache_words": words.cache_words(summary),
        "economy": economy_words(summary),
        "replays": words.replay_words(summary),
        "engine": _engine(summary),
    }


def _processes(summary: Mapping[str, Any]) -> list[list[str]]:
    """What each load process measured of itself; nothing where there was only one."""
    found = summary["client"].get("processes", [])
    if len(found) < 2:
        return []
    return [
        [
            str(one["process"]),
            words.duration(_ns(one["loop_lag_p99_ns"])),
            words.duration(_ns(one["gc_pause_max_ns"])),
            words.percent(one["cpu_ratio"]),
            words.duration(one["clerk_cpu_s"]),
            words.NOTHING if one["lost"] is None else str(one["lost"]),
        ]
        for one in found
    ]


def _ns(value: float | None) -> float | None:
    return None if value is None else value * 1e-9


def _facts(data: RunData, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    window = (summary["window"]["b"] - summary["window"]["a"]) * 1e-9
    facts = [
        ("time", "virtual" if summary["virtual"] else "live"),
        ("window", seconds(window)),
        ("requests", f"{summary['all']['planned']:,}"),
        ("seed", str(summary["seed"])),
        ("plan", summary["plan_digest"][:12] or "unknown"),
    ]
    for key in ("model", "started", "revision"):
        if data.manifest.get(key):
            facts.append((key, str(data.manifest[key])))
    return facts


def _classes(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = words.by_rank(summary, total=True)
    rows = []
    for name, block in blocks.items():
        numbers = [block["planned"], *(block["groups"][group] for group in GROUPS), block["good"]]
        strict = block["attainment_for_gates"]
        counted = "" if strict == block["attainment"] else f"{words.percent(strict)} for gates"
        rates = [words.rate(block["rates"][key]) for key in ("asked", "offered", "completed", "good")]
        cells = [(f"{n:,}", "") for n in numbers]
        cells += [(words.percent(block["attainment"]), counted), *((rate, "") for rate in rates)]
        rows.append({"name": words.class_name(name, block), "cells": cells})
    return rows


def _latencies(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, block in words.by_rank(summary).items():
        for metric in words.HEADLINES[block["headline"]]:
            table = block["metrics"][metric]
            if not table["n"]:
                continue
            cells = [{"value": words.duration(table[q]), "interval": _interval(table, q)} for q in QUANTILES]
            slo = words.duration(block["slo"].get(metric))
            rows.append(
                {
                    "name": words.class_name(name, block),
                    "metric": metric,
                    "n": f"{table['n']:,}",
                    "cells": cells,
                    "slo": slo,
                }
            )
    return rows


def _interval(table: dict[str, Any], statistic: str) -> str:
    bounds = table.get("ci95", {}).get(statistic)
    if bounds is None or bounds == [None, None]:
        return ""
    return " .. ".join("…" if b is None else words.duration(b) for b in bounds)


def _all_attempts(summary: Mapping[str, Any]) -> str:
    """e2e p90 and p99 of each class; an infinite one as ``> B``."""
    parts = []
    for name, block in words.by_rank(summary).items():
        metric = words.headline(block, "e2e")
        table = block["all_attempts"][metric]
        shown = [f"{q} {_or_beyond(table, q)}" for q in ("p50", "p90") if table["n"]]
        if shown:
            parts.append(f"{name} {metric} {', '.join(shown)} (n {table['n']:,})")
    return "; ".join(parts) + "."


def _or_beyond(table: dict[str, Any], q: str) -> str:
    if table[q] is not None:
        return words.duration(table[q])
    bound = table.get(f"{q}_lower_bound")
    return f"> {words.duration(bound)}" if bound is not None else words.NOTHING


def _faults(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    during = {s["by"]["during"]: s for s in summary["slices"] if "during" in s["by"]}
    rows = []
    for fault in summary["faults"]:
        injected = fault.get("injected")
        met = during.get(fault["id"])
        cells = [
            words.NOTHING if injected is None else f"{injected * 1e-9:.2f} s",
            *(_after(fault, key) for key in ("proven", "healed")),
            str(fault.get("requests", words.NOTHING)),
            str(fault["groups"]["failed"]) if "groups" in fault else words.NOTHING,
            words.percent(met["attainment"]) if met else words.NOTHING,
            words.duration(met["metrics"]["ttft_sched"]["p50"]) if met else words.NOTHING,
        ]
        rows.append(
            {"id": fault["id"], "type": fault["type"], "target": fault.get("target", ""), "cells": cells}
        )
    steady = during.get("steady")
    if steady and rows:
        cells = ["", "", "", str(steady["n"]), "", words.percent(steady["attainment"])]
        cells.append(words.duration(steady["metrics"]["ttft_sched"]["p50"]))
        rows.append({"id": "steady", "type": "all the rest", "target": "", "cells": cells})
    return rows


def _after(fault: dict[str, Any], key: str) -> str:
    if fault.get(key) is None or fault.get("injected") is None:
        return "not seen" if fault.get("injected") is not None else words.NOTHING
    return seconds((fault[key] - fault["injected"]) * 1e-9)


def _top(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    rollup = summary["attribution"] or {}
    return [
        {
            "outcome": row["outcome"],
            "subtype": row["subtype"],
            "component": "" if row["component"] == "none" else row["component"],
            "first": words.began(row),
            "requests": row["requests"],
            "tokens": f"{row['missed']:,}",
        }
        for row in rollup.get("top", [])
    ]


def _engine(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    block = summary.get("engine")
    if block is None:
        return []
    cells = [
        ("prompt tokens", words.tokens(block["prompt_tokens"])),
        ("computed", words.tokens(block["computed_tokens"])),
        ("from cache", words.tokens(sum(block["hit_tokens"].values()))),
        ("generated", words.tokens(block["generated_tokens"])),
        ("recomputed", words.tokens(block["recomputed_tokens"])),
        ("preemptions", words.tokens(block["preemptions"])),
    ]
    for name, wait in block["queue_wait"].items():
        cells.append(
            (f"{name} queue wait p50 / p90", f"{words.duration(wait['p50'])} / {words.duration(wait['p90'])}")
        )
    usage = block["kv"].get("all")
    if usage:
        cells.append(
            ("KV in use, mean / max", f"{words.percent(usage['mean'])} / {words.percent(usage['max'])}")
        )
    return cells
