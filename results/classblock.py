"""One class over the window, as summary.json has it (JOINTS 6)."""

from __future__ import annotations

from typing import Any

from results.fairness import service_gap
from results.goodput import attainment
from results.judging import ClassGoal
from results.lengths import lengths_block
from results.metrics import METRICS
from results.offered import offered_block
from results.outcomes import Mask, counts, group_counts
from results.rates import rates
from results.record import Outcome
from results.sessions import sessions_block
from results.stats.distribution import all_attempts
from results.tokens import earlier_attempts, tokens_block
from results.view import View

LATENCIES = (
    "ttft",
    "ttft_sched",
    "ttfo",
    "ttfo_sched",
    "think_gap",
    "e2e",
    "e2e_sched",
    "stream_close",
    "tpot",
    "itl",
    "icl",
    "stall",
    "slowdown",
    "session_stretch",
)
OTHERS = ("send_lag", "cap_wait", "client_lag", "pool_wait", "connect", "queue_wait", "abort_latency")
ATTEMPTED = ("ttft", "ttft_sched", "e2e", "e2e_sched")


def class_block(view: View, name: str | None, goal: ClassGoal) -> dict[str, Any]:
    """One class (None: all) over the window."""
    of_class = view.of_class(name)
    rows = of_class & view.in_window
    data = view.part(rows)
    found = attainment(view.marks.at(rows))
    gap = service_gap(view, of_class, view.window_spans)
    block: dict[str, Any] = {
        "rank": goal.rank,
        "slo": goal.slo,
        "loop": "open loop" if goal.open_loop else "closed loop",
        "headline": "schedule" if goal.open_loop else "send",
        "planned": found.planned,
        "good": found.good,
        "incorrect": found.incorrect,
        "slo_vacuous": found.vacuous,
        "outcomes": counts(data),
        "groups": group_counts(data),
        "retried": earlier_attempts(view, name),
        "rates": rates(view.part(of_class), view.marks.at(of_class), view.window_spans),
        "offered": offered_block(view, rows),
        "attainment": found.value,
        "attainment_strict": found.strict,
        "attainment_for_gates": found.for_gates,
        "completed_share": float(view.marks.completed[rows].mean()) if found.planned else None,
        "metrics": {m: view.distribution(m, rows).table() for m in (*LATENCIES, *OTHERS)},
        "sessions": sessions_block(view.data, of_class, view.judging.window),
        "lengths": lengths_block(data),
        "tokens": tokens_block(view, name, rows),
        "all_attempts": _all_attempts(view, rows),
        "service_gap": gap.value,
    }
    if gap.value is None:
        block["service_gap_reason"] = gap.reason
    if found.value is None:
        block["attainment_reason"] = "no request to count"
    if block["sessions"] is None:
        block["sessions_reason"] = "no session has several requests"
    if not found.planned:
        block["completed_share_reason"] = "no request was planned"
    if block["rates"]["asked"] is None:
        block["rates"]["reason"] = "the window has no length"
    return block


def _all_attempts(view: View, rows: Mask) -> dict[str, Any]:
    """Quantiles over all that were neither cancelled by plan nor excluded; failures are +infinity."""
    bound = longest_timeout(view)
    return {name: _of_all(view, name, rows, bound) for name in ATTEMPTED}


def _of_all(view: View, name: str, rows: Mask, bound: float | None) -> dict[str, Any]:
    kept = rows & ~view.marks.cancelled & ~view.marks.excluded
    if name.endswith("_sched"):
        kept = kept & view.open_loop
    of = METRICS[name].per_request
    assert of is not None
    return all_attempts(of(view.data)[kept], ~view.marks.completed[kept], bound)


def longest_timeout(view: View) -> float | None:
    """The longest client timeout that was reached, else the longest that was set; s."""
    ran_out = view.window[(view.window["outcome"] == Outcome.CLIENT_TIMEOUT.value).to_numpy(dtype=bool)]
    reached = ((ran_out["closed"] - ran_out["start"]) * 1e-9).dropna()
    return float(reached.max()) if len(reached) else max(view.judging.timeouts.values(), default=None)
