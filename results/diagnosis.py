"""Findings: what a reader should know about a run, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.failures import KINDS, causes
from results.goodput import attainment
from results.idle import idle_users
from results.lengths import served_lengths
from results.outcomes import group_counts
from results.record import Outcome
from results.run import RunData
from results.stats.distribution import FEW_FOR_P99
from results.stats.saturation import Saturation
from results.validity import MEANING, Health
from results.view import View


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark; ``remedy`` says what to do."""

    code: str
    text: str
    remedy: str


REMEDIES = {
    "H1": "lower the rate, or add load processes or CPUs for the client",
    "H2": "give the load process a CPU of its own; look for work on its event loop",
    "H3": "raise the connection pool's limit",
    "H4": "freeze or switch off garbage collection in the window",
    "H5": "add load processes, or move the client to its own machine",
    "H6": "use a machine that is not shared, or a larger one",
    "H7": "a late feeder kept requests back; lower the rate or add load processes",
    "H8": "raise the limits of file descriptors and ports",
    "H9": "see the log of the load process; these requests have no outcome",
    "H10": "something beside this client talked to the gateway, or records are missing",
    "H11": "the driver's count of requests in flight and its records disagree: report this",
    "H12": "look at the network and the client's reads between gateway and client",
}

_DIED = "see the load logs of the run, and whether something ended it: a lack of memory, a signal"


def findings(data: RunData, view: View, health: Health, saturation: Saturation) -> list[Finding]:
    """All findings of a run, the weightiest first."""
    return [
        *_run(data),
        *_failures(view),
        *_client(health, data),
        *_unseen(data),
        *_faults(data),
        *_load(view, saturation, health),
        *_classes(view),
        *_lengths(view),
        *_records(view),
        *_invariants(data),
    ]


def _run(data: RunData) -> Iterator[Finding]:
    if data.target_error:
        yield Finding("target_error", data.target_error, "see the log of the target")
    if data.incomplete:
        yield Finding("incomplete", data.incomplete, "numbers are of the part that was kept; run it again")
    if data.interrupted and not data.incomplete:
        yield Finding(
            "interrupted", "the run was interrupted", "the verdict stands for nothing; run it again"
        )


def _failures(view: View) -> Iterator[Finding]:
    found = list(causes(view.window))
    if not found:
        return
    failed, told = sum(cause.count for cause in found), found[:KINDS]
    others = failed - sum(cause.count for cause in told)
    parts = [str(cause) for cause in told] + ([f"{others} for other causes"] if others else [])
    text = f"{failed} of {len(view.window)} requests failed: {', '.join(parts)}"
    yield Finding("failures", text, told[0].remedy)


def _client(health: Health, data: RunData) -> Iterator[Finding]:
    signals = health.signals
    for rule, row in health.rows.items():
        if row["state"] in ("degraded", "invalid"):
            remedy = _DIED if rule in ("H7", "H8", "H9") and signals.died else REMEDIES[rule]
            yield Finding(f"client_{rule}", f"{rule} {MEANING[rule]}: {_broken(row)}", remedy)
    if signals.clock_faults:
        text = f"{signals.clock_faults} records have impossible times: {signals.clock_fault}"
        yield Finding("clock_fault", text, "no time of this run counts; check the clocks of the load machine")
    if signals.hidden_retries:
        text = f"the server counted {signals.hidden_retries:.0f} requests more than the client made attempts"
        yield Finding("hidden_retries", text, "find the proxy or library that tries again")
    if late := data.signals.get("bodies_late"):
        text = f"{late} requests waited for their body, which the client had not made in time"
        yield Finding("bodies_late", text, "add load processes or CPUs for the client, or lower the rate")
    yield from _machines(data)
    if data.manifest.get("co_located") and not data.judging.virtual:
        text, unread = "client and target share the CPUs of this machine", signals.unread_s
        if unread is not None and unread > data.judging.limits.latency_floor:
            text += f"; requests lay unread at the gateway for {unread * 1e3:,.0f} ms at p99"
        yield Finding("co_located", text, "run the target elsewhere to measure its capacity")


def _machines(data: RunData) -> Iterator[Finding]:
    """Load machines whose clock or priority may have moved a latency (MEASUREMENT C1)."""
    floor = data.judging.limits.latency_floor
    for host, clock in (data.manifest.get("clock") or {}).items():
        bound = clock["bound_ns"]
        if bound is None or bound * 1e-9 > floor:
            wrong = "by an unknown time" if bound is None else f"by up to {bound * 1e-6:.1f} ms"
            text = f"the clock of {host} may be wrong {wrong}, where {floor * 1e3:g} ms would be noticed"
            yield Finding("clock_bound", text, "let the clocks of the machines follow one server (NTP, PTP)")
    behind = sorted({one["host"] for one in data.manifest.get("placement") or () if one["niceness"] > 0})
    if behind:
        text = f"load processes on {', '.join(behind)} ran at a lowered priority"
        yield Finding("placement", text, "start Ray with RAY_worker_niceness=0, see docs/cluster.md")


def _broken(row: dict[str, Any]) -> str:
    """What is wrong with a row of H1..H12."""
    if row["value"] is None or "reason" in row:
        return f"{row['reason']}, {row['state']}"
    where = f", load process {row['process']}" if "process" in row else ""
    return f"{row['value']:.4g} (limit {row['limit']:.4g}{where}), {row['state']}"


def _unseen(data: RunData) -> Iterator[Finding]:
    """What the run could not look at, with the reason (both stand in the manifest)."""
    if why := data.manifest.get("observe_error"):
        text = f"prompt tokens were not attributed: {why}"
        yield Finding("not_attributed", text, "see the log of the engine; run it again")
    failures = data.manifest.get("scrape_failures") or {}
    if failures and data.judging.own_engine:
        text = f"{sum(failures.values())} scrapes of /metrics failed: {'; '.join(sorted(failures)[:3])}"
        yield Finding("scrapes_failed", text, "pictures over time and counters have gaps there")


def _faults(data: RunData) -> Iterator[Finding]:
    for fault in data.faults:
        name = fault.get("id")
        if fault.get("injected") is None:
            why = fault.get("error") or "its moment did not come"
            yield Finding(
                "fault_not_injected", f"fault {name}: not injected ({why})", "check its time and condition"
            )
        elif fault.get("proven") is None:
            why = fault.get("error") or "no proof came"
            yield Finding(
                "fault_not_proven",
                f"fault {name}: not seen to take effect ({why})",
                "gates on it decide nothing",
            )
        elif fault.get("error"):
            yield Finding(
                "fault_error", f"fault {name}: {fault['error']}", "check that the target was healed"
            )


def _load(view: View, saturation: Saturation, health: Health) -> Iterator[Finding]:
    if saturation.over:
        text = "over-saturated: requests in flight grew, or over 1 % were turned away"
        yield Finding("over_saturated", text, "latencies describe the length of the run; lower the rate")
    lag = view.distribution("send_lag", view.in_window)
    limit = max(health.limit_a, _tenth_of_gap(view))
    if lag.n and (worst := float(lag.samples.values.max())) > limit:
        text = f"late sends: up to {worst * 1e3:.1f} ms after the due time{_for_the_cap(view)}"
        yield Finding("late_sends", text, "trust the *_sched metrics, which count from the due time")
    for idle in idle_users(view):
        remedy = "the load became smaller than said: set arrival.requests to more than were planned"
        yield Finding("idle_users", str(idle), remedy)
    yield from _attempts(view)
    shed = group_counts(view.window)
    planned = len(view.window)
    turned_away = shed["rejected"] + shed["expired"]
    if turned_away:
        text = (
            f"{turned_away / planned:.1%} of {planned} requests were shed "
            f"({shed['rejected']} rejected, {shed['expired']} expired): latencies are of the served ones"
        )
        yield Finding("shed", text, "compare goodput and attainment, not latencies")


def _for_the_cap(view: View) -> str:
    waits = view.distribution("cap_wait", view.in_window).samples.values
    most = float(waits.max()) if len(waits) else 0.0
    return f", {most * 1e3:.1f} ms of it for a declared cap" if most else ""


def _attempts(view: View) -> Iterator[Finding]:
    """Requests that a cap kept back for good, and those that were sent again."""
    dropped = int((view.window["outcome"] == Outcome.DROPPED.value).sum())
    if dropped:
        text = f"a declared cap kept {dropped} requests from being sent: they count as failed"
        yield Finding("dropped", text, "lift the cap, or let it queue")
    if view.attempts is not None and len(view.attempts):
        wasted = int(view.attempts["n_out"].fillna(0).sum())
        again = view.attempts["id"].nunique()
        text = f"{again} requests were sent again, {len(view.attempts)} times; {wasted} tokens were wasted"
        yield Finding("retried", text, "the user waits from the first due time on: look at *_sched")


def _tenth_of_gap(view: View) -> float:
    """0.1/rate of the window, s."""
    due = view.window["due"].dropna()
    a, b = view.judging.window
    return 0.1 * (b - a) * 1e-9 / len(due) if len(due) else 0.0


def _classes(view: View) -> Iterator[Finding]:
    few: list[str] = []
    for name in view.names:
        marks = view.marks.at(view.in_window & view.of_class(name))
        found = attainment(marks)
        if found.undecidable:
            text = f"class {name}: {found.vacuous} answers leave an SLO metric undefined and count as met"
            yield Finding("slo_vacuous", text, "use an SLO that these answers have, or longer outputs")
        if found.incorrect:
            text = f"class {name}: {found.incorrect} completed answers failed a check"
            yield Finding("incorrect", text, "see their finish reasons and checks_failed in records.parquet")
        if found.uses_strict:
            text = f"class {name}: over 1 % of the requests were cut off or never sent after a failed turn"
            yield Finding("strict_attainment", text, "gates use attainment_strict; lengthen the drain")
        completed = int(marks.completed.sum())
        if 0 < completed < FEW_FOR_P99:
            few.append(f"{name} {completed}")
    if few:
        text = f"few completed requests ({', '.join(few)}): a p99 is worth a gate from {FEW_FOR_P99} on"
        yield Finding("few_for_p99", text, "gate p50, p90, attainment and counts, or run longer")


def _lengths(view: View) -> Iterator[Finding]:
    for name, served in served_lengths(view.window).items():
        if served.doubt:
            text = f"class {name}: prompts are not as long as asked for: {served.doubt}"
            yield Finding("served_length", text, "give target.tokenizer the model's own tokenizer.json")


def _records(view: View) -> Iterator[Finding]:
    completed = view.window[(view.window["outcome"] == "completed").to_numpy(dtype=bool)]
    sources = sorted(completed["n_out_source"].dropna().unique())
    if len(sources) > 1:
        text = f"output tokens were counted in different ways: {', '.join(sources)}"
        yield Finding("mixed_token_sources", text, "do not compare their token times; ask for usage")
    events = sum(len(e) for e in completed["event_us"])
    merged = int(completed["coalesced"].sum())
    if events and merged / events > 0.05:
        text = f"{merged / events:.0%} of the token events arrived together with another one"
        yield Finding("coalesced", text, "their arrival times are upper bounds; itl spreads them")
    warned = completed["warnings"].map(len).to_numpy(dtype=np.int64)
    if len(warned) and warned.any():
        names = sorted({w for row in completed["warnings"] for w in row})
        text = f"{int((warned > 0).sum())} answers were not quite by the protocol: {', '.join(names)}"
        yield Finding("protocol_warnings", text, "harmless for the numbers; tell the maker of the target")


def _invariants(data: RunData) -> Iterator[Finding]:
    for row in data.invariants or []:
        if row.get("verdict") == "fail":
            text = f"invariant {row.get('id')} is broken: {row.get('evidence')}"
            yield Finding("invariant", text, "the target lost its books; see audits.jsonl")


def as_dict(finding: Finding) -> dict[str, Any]:
    return {"code": finding.code, "text": finding.text, "remedy": finding.remedy}
