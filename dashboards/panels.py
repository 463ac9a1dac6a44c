"""The panels that our engine alone can feed: rows 3 to 6 of OBSERVABILITY 5, as plain data.

Every query is made from the table of metrics, so a name or a label that does not exist is a KeyError here
and not an empty panel later. Idle is shown as "no traffic": quantiles and ratios are cut off where nothing
was counted, since 0/0 would draw nothing and call it data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.metrics import METRICS, Metric

Unit = Literal["reqps", "cps", "s", "short", "percentunit", "none"]
VARIABLES = ("model", "worker", "class")
WINDOW = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. ``about`` says what it answers; the metrics' names are added to it when it is built."""

    title: str
    about: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "timeline"] = "timeseries"
    stacked: bool = False
    top: float | None = None
    """Upper end of the axis, where there is one."""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def _metric(name: str, kind: str) -> Metric:
    metric = METRICS[f"headrace_{name}"]
    if metric.kind != kind:
        raise KeyError(f"headrace_{name} is a {metric.kind}, not a {kind}")
    return metric


def _series(metric: Metric, suffix: str = "", only: str = "") -> str:
    """A selector with the dashboard's variables for the labels that the metric has."""
    own = {"model", *metric.labels} | ({"worker"} if metric.part == "engine" else set())
    matchers = [f'{label}=~"${label}"' for label in VARIABLES if label in own]
    return f"{metric.name}{suffix}{{{','.join([*matchers, *([only] if only else [])])}}}"


def _check(metric: Metric, by: tuple[str, ...]) -> None:
    unknown = set(by) - {*metric.labels, "model", "worker", "le"}
    if unknown:
        raise KeyError(f"{metric.name} has no label {', '.join(sorted(unknown))}")


def _sum(inner: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({inner})" if by else f"sum({inner})"


def _legend(by: tuple[str, ...], otherwise: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by) or otherwise


def rate(name: str, *by: str, called: str = "all") -> Query:
    """Events per second of a counter."""
    metric = _metric(name, "counter")
    _check(metric, by)
    prefix = "" if called == "all" or not by else f"{called} "
    return Query(_sum(f"rate({_series(metric)}{WINDOW})", by), prefix + _legend(by, called))


def level(name: str, *by: str, how: Literal["sum", "max"] = "sum", called: str = "all") -> Query:
    """A gauge, added up or at its highest."""
    metric = _metric(name, "gauge")
    _check(metric, by)
    inner = _sum(_series(metric), by)
    return Query(inner if how == "sum" else "max" + inner.removeprefix("sum"), _legend(by, called))


def quantile(q: float, name: str, *by: str) -> Query:
    """A quantile of a histogram, where anything was observed."""
    metric = _metric(name, "histogram")
    _check(metric, by)
    buckets = _sum(f"rate({_series(metric, '_bucket')}{WINDOW})", ("le", *by))
    counted = _sum(f"rate({_series(metric, '_count')}{WINDOW})", by)
    label = f"p{100 * q:g}"
    return Query(
        f"histogram_quantile({q:g}, {buckets}) and {counted} > 0", f"{label} {_legend(by, '')}".strip()
    )


def mean(name: str, *by: str) -> Query:
    """The mean of a histogram, where anything was observed."""
    metric = _metric(name, "histogram")
    _check(metric, by)
    total = _sum(f"rate({_series(metric, '_sum')}{WINDOW})", by)
    counted = _sum(f"rate({_series(metric, '_count')}{WINDOW})", by)
    return Query(f"{total} / ({counted} > 0)", f"mean {_legend(by, '')}".strip())


def share(part: str, whole: str, *by: str) -> Query:
    """One counter's rate over another's, where the other moved."""
    return Query(f"{rate(part, *by).expr} / ({rate(whole, *by).expr} > 0)", _legend(by, "ratio"))


def _skew() -> Query:
    running = _series(_metric("engine_requests_running", "gauge"))
    return Query(f"max({running}) / clamp_min(avg({running}), 1)", "max / mean")


def _states() -> Query:
    states = _series(_metric("router_worker_state", "gauge"))
    return Query(f"{states} == 1", "worker {{worker}} {{state}}")


TRAFFIC = Row(
    "Traffic",
    (
        Panel("Requests", "What arrives, by class.", "reqps", (rate("router_requests_total", "class"),)),
        Panel(
            "Rejections",
            "What the gateway refuses at once, by reason.",
            "reqps",
            (rate("router_rejections_total", "reason"),),
        ),
        Panel(
            "Tokens",
            "Prompt tokens computed or read from the cache, and tokens generated.",
            "cps",
            (
                rate("engine_prompt_tokens_total", "source", called="prompt"),
                rate("engine_generated_tokens_total", called="generated"),
            ),
        ),
        Panel("Finished", "How requests end.", "reqps", (rate("engine_finished_total", "reason"),)),
        Panel(
            "Cancelled", "Where cancelled requests were.", "reqps", (rate("engine_cancelled_total", "phase"),)
        ),
        Panel(
            "Time to first token, p99",
            "Received by the engine to first token. Clients wait longer: bench run measures that.",
            "s",
            (quantile(0.99, "engine_ttft_seconds", "class"),),
        ),
        Panel(
            "Time between tokens, p99",
            "Gap between a request's tokens.",
            "s",
            (quantile(0.99, "engine_itl_seconds", "class"),),
        ),
    ),
)

SCHEDULER = Row(
    "Scheduler",
    (
        Panel(
            "Waiting at the gateway",
            "Requests that no worker has yet.",
            "short",
            (level("router_queue_requests", "class"),),
            stacked=True,
        ),
        Panel(
            "Work waiting at the gateway",
            "The same in tokens.",
            "short",
            (level("router_queue_tokens", "class"),),
            stacked=True,
        ),
        Panel(
            "Oldest waiting",
            "Age of the request that waits longest.",
            "s",
            (level("router_oldest_waiting_seconds", how="max", called="oldest"),),
        ),
        Panel(
            "Mean wait at the gateway",
            "Of the requests that left the queue.",
            "s",
            (mean("router_queue_seconds", "class"),),
        ),
        Panel(
            "Running",
            "Requests admitted by each worker.",
            "short",
            (level("engine_requests_running", "worker"),),
            stacked=True,
        ),
        Panel(
            "Waiting at workers",
            "The small backlog of the workers, by what they wait for.",
            "short",
            (level("engine_requests_waiting", "reason"),),
        ),
        Panel("Mean prefill", "First scheduled to prompt computed.", "s", (mean("engine_prefill_seconds"),)),
        Panel(
            "Step, p99",
            "One forward pass, by what was in it.",
            "s",
            (quantile(0.99, "engine_step_seconds", "kind"),),
        ),
        Panel("Tokens per step", "Mean size of a step.", "short", (mean("engine_step_tokens"),)),
        Panel(
            "Preemptions",
            "Requests that gave their blocks back.",
            "cps",
            (rate("engine_preemptions_total", "cause"),),
        ),
    ),
)

CACHE = Row(
    "KV and prefix cache",
    (
        Panel(
            "Blocks",
            "Used, cached and free to take, empty, fenced.",
            "short",
            (level("engine_kv_blocks", "state"),),
            stacked=True,
        ),
        Panel(
            "Occupancy",
            "Referenced blocks over all, by worker.",
            "percentunit",
            (level("engine_kv_usage_ratio", "worker", how="max"),),
            top=1.0,
        ),
        Panel(
            "Prefix hit ratio",
            "Prompt tokens read from the cache over prompt tokens looked up.",
            "percentunit",
            (share("engine_prefix_hit_tokens_total", "engine_prefix_query_tokens_total"),),
            top=1.0,
        ),
        Panel(
            "Evictions",
            "Cached blocks that lost their content, by cause and tier.",
            "cps",
            (rate("engine_evicted_blocks_total", "cause", "tier"),),
        ),
        Panel(
            "Reuse gap, median",
            "Last release to next hit of a block: how long a life is worth having.",
            "s",
            (quantile(0.5, "engine_block_reuse_gap_seconds", "worker"),),
        ),
        Panel(
            "Misses by true reason",
            "Why prompt tokens were not read from the cache.",
            "cps",
            (rate("engine_miss_tokens_total", "reason"),),
            stacked=True,
        ),
    ),
)

ROUTER = Row(
    "Router",
    (
        Panel(
            "Selections",
            "Workers chosen, and why.",
            "reqps",
            (rate("router_selections_total", "worker", "reason"),),
        ),
        Panel("Skew", "Running requests of the busiest worker over the mean.", "short", (_skew(),)),
        Panel(
            "Worker state",
            "In rotation, warming, draining, ejected or gone.",
            "none",
            (_states(),),
            kind="timeline",
        ),
        Panel(
            "Index lag",
            "Age of the last block events when the router applied them.",
            "s",
            (level("router_index_event_lag_seconds", how="max", called="lag"),),
        ),
        Panel(
            "Predicted and realised hits",
            "Prompt tokens that the router expected from the cache, and those that came from it.",
            "cps",
            (
                rate("router_predicted_hit_tokens_total", called="predicted"),
                rate("router_realised_hit_tokens_total", called="realised"),
            ),
        ),
        Panel("Decision, p99", "Choosing a worker.", "s", (quantile(0.99, "router_decision_seconds"),)),
        Panel("Retries", "Attempts after the first.", "reqps", (rate("router_retries_total", "reason"),)),
    ),
)

ENGINE_ROWS = (TRAFFIC, SCHEDULER, CACHE, ROUTER)
