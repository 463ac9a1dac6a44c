"""Names that the harness exports while a run goes on (OBSERVABILITY O12 to O14, O16). Times in s.

One home per name: the engine's are in engine.telemetry, these are here. Whoever exports or draws them
takes them from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HarnessKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class HarnessMetric:
    """One exported name, without the ``_total`` that the exposition adds to counters."""

    name: str
    kind: HarnessKind
    meaning: str
    labels: tuple[str, ...] = ()


def _client(name: str, kind: HarnessKind, meaning: str, *labels: str) -> HarnessMetric:
    return HarnessMetric(f"headrace_client_{name}", kind, meaning, labels)


def _cache(name: str, kind: HarnessKind, meaning: str, *labels: str) -> HarnessMetric:
    return HarnessMetric(f"headrace_cache_{name}", kind, meaning, ("class", "model", *labels))


_TABLE = (
    _client("offered", "counter", "Requests sent", "class"),
    _client("good", "counter", "Requests that were completed, correct and within every SLO", "class"),
    _client("requests", "counter", "Requests ended, by outcome", "class", "outcome"),
    _client("tokens", "counter", "Tokens: input, cached, output", "class", "kind"),
    _client("ttft_seconds", "histogram", "Send to first token", "class", "prompt_bucket"),
    _client("ttft_sched_seconds", "histogram", "Due time to first token", "class", "prompt_bucket"),
    _client("itl_seconds", "histogram", "Time per token after the first", "class"),
    _client("stall_seconds", "histogram", "Largest gap of a request", "class"),
    _client("tpot_seconds", "histogram", "Mean time per token of a request", "class"),
    _client("e2e_sched_seconds", "histogram", "Due time to last token", "class"),
    _client("lag_seconds", "histogram", "Due time to send, caps aside", "class"),
    _client("loop_lag_seconds", "histogram", "How late the event loop runs its timers"),
    _client("prompt_tokens", "histogram", "Prompt length served", "class"),
    _client("output_tokens", "histogram", "Output length", "class"),
    _client("slo_seconds", "gauge", "Bounds of the scenario", "class", "metric"),
    _client("in_flight", "gauge", "Requests sent and not let go"),
    _client("unsent", "gauge", "Requests due and not sent"),
    _client("open_connections", "gauge", "Connections of the client"),
    _client("cpu_ratio", "gauge", "CPU of the busiest load process"),
    _client("health", "gauge", "0 valid, 1 degraded, 2 invalid, over the window so far", "rule"),
    _cache("requests", "counter", "Requests by cache outcome", "outcome", "versions"),
    _cache("prompt_tokens", "counter", "Prompt tokens by ledger bucket", "bucket"),
    _cache("missed_tokens", "counter", "Missed prompt tokens of requests that missed", "cause", "versions"),
    _cache("misses", "counter", "Requests that missed", "cause", "subtype"),
    _cache("miss_cost_usd", "counter", "What the missed tokens cost", "cause"),
    _cache("first_divergence", "counter", "Where prompts first differ from their parent", "component"),
    _cache("conflicts", "counter", "Verdicts that the provider's own diagnostics contradict"),
    _cache("idle_seconds", "histogram", "Idle time before a request's prefix was used again", "outcome"),
    HarnessMetric("headrace_drill_invariant_failures", "counter", "Broken invariants, I1 to I30", ("rule",)),
    HarnessMetric("headrace_drill_recovery_seconds", "gauge", "Injection to recovery", ("fault",)),
    HarnessMetric("headrace_fault_active", "gauge", "1 while a fault is active", ("fault", "target")),
)

HARNESS_METRICS: dict[str, HarnessMetric] = {metric.name: metric for metric in _TABLE}
