"""Every metric that the engine exports.

``METRICS`` is the one home of engine, router and fleet names (OBSERVABILITY O2): dashboards and the
contract test read it, and engine.telemetry counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.config import EngineConfig
from engine.request import Finish, MissReason, Phase

Kind = Literal["counter", "gauge", "histogram"]
Part = Literal["engine", "router", "fleet"]
_SUB_SECOND = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_OVERLOAD = (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
TIME_BUCKETS = (*_SUB_SECOND, *_OVERLOAD)
TOKEN_BUCKETS = tuple(float(2**k) for k in range(15))
ROW_BUCKETS = tuple(float(2**k) for k in range(9))

OPEN: tuple[str, ...] = ()
"""Label values that are not known beforehand, or come from the configuration (class, worker)."""

_FINISH = tuple(Finish)
_PHASES = tuple(Phase)
_WORKER_STATES = ("in_rotation", "warming", "draining", "ejected", "gone")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``name`` is the full exposed name: counters end in ``_total``, times in ``_seconds``.

    ``labels`` maps a label to its known values, which start at 0 (O4). Engine metrics also carry
    ``model`` and ``worker``, the others ``model``. ``aggregate`` says how a gauge of several processes
    becomes one (O6). ``buckets`` are upper bounds; ``slo`` names the key of ``slo_bounds`` added to them.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]]
    aggregate: Literal["sum", "max", "latest"] = "latest"
    buckets: tuple[float, ...] = ()
    slo: str | None = None

    @property
    def part(self) -> Part:
        part = self.name.split("_")[1]
        assert part in ("engine", "router", "fleet")
        return part  # type: ignore[return-value]  # narrowed by the line above

    def bounds(self, config: EngineConfig) -> tuple[float, ...]:
        """Bucket bounds of a run: the metric's own and every SLO bound on it (O5)."""
        extra = config.slo_bounds.get(self.slo, ()) if self.slo else ()
        return tuple(sorted({*self.buckets, *extra}))


def _counter(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(f"headrace_{name}_total", "counter", help, _plain(labels))


def _gauge(
    name: str, help: str, aggregate: Literal["sum", "max", "latest"], **labels: tuple[str, ...]
) -> Metric:
    return Metric(f"headrace_{name}", "gauge", help, _plain(labels), aggregate)


def _times(name: str, help: str, slo: str | None = None, **labels: tuple[str, ...]) -> Metric:
    return Metric(
        f"headrace_{name}_seconds", "histogram", help, _plain(labels), buckets=TIME_BUCKETS, slo=slo
    )


def _plain(labels: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {name.rstrip("_"): values for name, values in labels.items()}


_ENGINE = (
    _gauge("engine_requests_running", "Requests admitted and not finished", "sum"),
    _gauge(
        "engine_requests_waiting",
        "Requests in the worker's own backlog",
        "sum",
        class_=OPEN,
        reason=("capacity", "adapter", "swapped", "restore"),
    ),
    _gauge(
        "engine_kv_blocks",
        "KV blocks by state; the states sum to all usable blocks",
        "sum",
        state=("used", "cached", "empty", "fenced"),
    ),
    _gauge("engine_kv_usage_ratio", "Referenced blocks over usable blocks", "max"),
    _gauge("engine_kv_reserved_blocks", "Blocks promised to running requests and not yet held", "sum"),
    _gauge("engine_active_kv_tokens", "KV tokens of blocks that running requests hold", "sum", tenant=OPEN),
    _gauge("engine_ready", "1 while the worker takes requests", "latest"),
    _gauge("engine_cache_epoch", "Epoch of the worker's prefix cache", "latest"),
    _gauge("engine_step_age_seconds", "Age of the step that runs now, 0 while none runs", "max"),
    _counter("engine_prompt_tokens", "Prompt tokens admitted", source=("computed", "device", "host", "disk")),
    _counter("engine_generated_tokens", "Output tokens"),
    _counter("engine_recomputed_tokens", "Tokens computed again after a preemption"),
    _counter("engine_prefix_query_tokens", "Prompt tokens looked up in the prefix cache"),
    _counter("engine_prefix_hit_tokens", "Prompt tokens read from the prefix cache"),
    _counter("engine_miss_tokens", "Prompt tokens not read from cache", reason=tuple(MissReason)),
    _counter("engine_service", "Weighted tokens that ended requests have had (fairness)", tenant=OPEN),
    _counter("engine_requests", "Requests taken by the worker", class_=OPEN),
    _counter("engine_rejections", "Requests handed back", reason=("backlog", "draining"), class_=OPEN),
    _counter("engine_finished", "Requests ended", reason=_FINISH, class_=OPEN),
    _counter("engine_cancelled", "Cancelled requests by the phase they were in", phase=_PHASES),
    _counter("engine_preemptions", "Requests that gave their blocks back", cause=("memory", "priority")),
    _counter(
        "engine_evicted_blocks",
        "Cached blocks that lost their content",
        cause=("capacity", "ttl", "bad"),
        tier=("device", "host", "disk"),
    ),
    _counter(
        "engine_failed_moves",
        "Moves of cached blocks between tiers that did not happen: torn, full, gone",
        move=("save", "spill", "fetch"),
    ),
    _counter(
        "engine_swapped_blocks",
        "Blocks of preempted requests moved to host memory and back",
        direction=("out", "in"),
    ),
    _counter("engine_duplicate_blocks", "Blocks computed although their content was cached"),
    _counter("engine_prefix_collisions", "Digest matches with other tokens (counted as misses)"),
    _counter("engine_allocation_failures", "Allocations that the pool could not serve"),
    _counter("engine_late_outputs", "Outputs of requests that had already ended"),
    _counter("engine_step_failures", "Steps that raised"),
    _counter("engine_kv_events", "KV events sent", type=("stored", "removed", "cleared")),
    _counter("engine_miss_history_overflow", "Times the miss history forgot a block"),
    _counter(
        "engine_invariant_violations",
        "Invariants found broken by an audit",
        rule=tuple(f"K{i}" for i in range(1, 10)),
    ),
    _times("engine_queue", "Wait in the worker's backlog", class_=OPEN),
    _times("engine_prefill", "First scheduled to prompt computed", class_=OPEN),
    _times("engine_decode", "Prompt computed to end", class_=OPEN),
    _times("engine_ttft", "Received to first token", slo="ttft", class_=OPEN),
    _times("engine_itl", "Gap between a request's tokens", slo="itl", class_=OPEN),
    _times("engine_e2e", "Received to end", slo="e2e", class_=OPEN, reason=_FINISH),
    _times("engine_step", "One forward pass", kind=("prefill", "decode", "mixed", "transfer")),
    _times("engine_schedule", "Planning of one step"),
    _times("engine_cancel_to_free", "Cancel flag to freed blocks"),
    _times("engine_block_idle_before_evict", "Last release to eviction of a cached block"),
    _times("engine_restore", "Loading of a prompt's blocks from a slower tier", tier=("host", "disk")),
    _times("engine_block_reuse_gap", "Last release to next hit of a cached block"),
    Metric(
        "headrace_engine_step_tokens", "histogram", "Tokens computed in a step", {}, buckets=TOKEN_BUCKETS
    ),
    Metric("headrace_engine_batch_rows", "histogram", "Requests in a step", {}, buckets=ROW_BUCKETS),
)

_ROUTER = (
    _counter("router_requests", "Requests submitted, refused ones included", class_=OPEN),
    _counter(
        "router_rejections",
        "Requests refused at submit",
        reason=(
            *("queue_full", "class_queue_full", "tenant_queue_full", "deadline_unreachable"),
            *("context_length", "tenant_kv_limit", "class_not_allowed", "not_ready", "draining"),
            "model_not_found",
        ),
        class_=OPEN,
    ),
    _counter(
        "router_selections",
        "Workers chosen",
        worker=OPEN,
        reason=("overlap", "load", "session", "escape", "only", "retry", "wait"),
    ),
    _times("router_decision", "Choosing a worker"),
    _gauge(
        "router_worker_state",
        "1 for the state that a worker is in",
        "latest",
        worker=OPEN,
        state=_WORKER_STATES,
    ),
    _counter("router_ejections", "Workers taken out of rotation", reason=("lost", "silent", "not_ready")),
    _times("router_detect", "Last sign of life to ejection"),
    _gauge("router_heartbeat_age_seconds", "Since a worker's last heartbeat", "max", worker=OPEN),
    _gauge("router_index_keys", "Digests in the block index", "sum", kind=("event", "predicted")),
    _gauge("router_index_event_lag_seconds", "Age of the last KV event batch when applied", "max"),
    _counter("router_index_gaps", "Missing KV event batches"),
    _counter("router_index_replays", "Replays asked for after a gap"),
    _counter("router_index_orphans", "Stored blocks whose parent was unknown"),
    _counter("router_predicted_hit_tokens", "Prompt tokens expected from cache at the decision"),
    _counter("router_realised_hit_tokens", "Prompt tokens that then came from cache"),
    _counter(
        "router_retries",
        "Attempts after the first",
        reason=("worker_lost", "silent", "stalled", "step_failed", "adapter_unavailable"),
    ),
    _counter("router_recalls", "Requests handed back unstarted", reason=("draining", "ejected", "urgent")),
    _counter("router_fenced_tokens", "Tokens of an older attempt or incarnation, dropped"),
    _counter("router_lost_tail_tokens", "Tokens that a dead worker counted and never delivered"),
    _gauge("router_queue_requests", "Requests waiting at the gateway", "sum", class_=OPEN),
    _gauge("router_queue_tokens", "Work of the requests waiting at the gateway", "sum", class_=OPEN),
    _times("router_queue", "Wait at the gateway", class_=OPEN),
    _gauge("router_queue_limit", "Bound of the gateway's queue", "sum", unit=("requests", "tokens")),
    _gauge("router_oldest_waiting_seconds", "Age of the oldest waiting request", "max"),
    _gauge("router_reserved_blocks", "Blocks that requests under way will need", "sum", worker=OPEN),
    _counter("router_streams_ended", "Requests ended towards the client", reason=(*_FINISH, "none")),
)

_FLEET = (
    _gauge("fleet_replicas", "Workers by state", "sum", state=_WORKER_STATES),
    _times("fleet_load", "Start of a worker to its first ready report"),
)

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*_ENGINE, *_ROUTER, *_FLEET)}
