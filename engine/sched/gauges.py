"""The gauges of one worker: what is true at this moment (ENGINE E55)."""

from __future__ import annotations

from collections import Counter

from engine.sched.fairness import DEFAULT_TENANT, tenant_label
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence
from engine.telemetry import Meter

_NS = 1e9


class Gauges:
    """Sets them; remembers who has ever waited for what, so that those go back to 0."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._waited: set[tuple[str, str]] = set()
        """(class, reason)."""

    def set(self, scheduler: Scheduler, epoch: int, ready: bool, step_started: int | None, now: int) -> None:
        """Set every gauge to what is true now."""
        pool, meter = scheduler.memory.pool, self.meter
        # a request runs while any choice of it does; who waits aside for its blocks does not
        running = {s.id for s in scheduler.running.values() if s.loading is None}
        meter.set("headrace_engine_requests_running", len(running))
        queued = {
            s.id: (s.request.class_, _reason(scheduler, s))
            for s in (*scheduler.waiting.values(), *scheduler.memory.transfers.loading.values())
            if s.id not in running
        }
        waiting = Counter(queued.values())
        self._waited |= waiting.keys()
        for class_, reason in self._waited:
            count = waiting[class_, reason]
            meter.set("headrace_engine_requests_waiting", count, class_=class_, reason=reason)
        states = {
            "used": pool.referenced,
            "cached": pool.cached_free,
            "empty": pool.free - pool.cached_free,
            "fenced": pool.fenced,
        }
        for state, blocks in states.items():
            meter.set("headrace_engine_kv_blocks", blocks, state=state)
        meter.set("headrace_engine_kv_usage_ratio", pool.referenced / pool.size)
        meter.set("headrace_engine_kv_reserved_blocks", scheduler.memory.promised)
        meter.set("headrace_engine_ready", int(ready))
        meter.set("headrace_engine_cache_epoch", epoch)
        age = 0.0 if step_started is None else (now - step_started) / _NS
        meter.set("headrace_engine_step_age_seconds", age)
        self._by_tenant(scheduler)

    def _by_tenant(self, scheduler: Scheduler) -> None:
        config = scheduler.config
        held = dict.fromkeys((*config.tenants, DEFAULT_TENANT), 0)
        for job in {sequence.job for sequence in scheduler.running.values()}:
            held[tenant_label(config.tenants, job.request.tenant)] += job.blocks * config.memory.block_size
        for tenant, tokens in held.items():
            self.meter.set("headrace_engine_active_kv_tokens", tokens, tenant=tenant)


def _reason(scheduler: Scheduler, sequence: Sequence) -> str:
    """What it waits for."""
    if sequence.loading is not None:
        return "restore"
    if sequence.swapped is not None:
        return "swapped"
    waits = scheduler.adapters.waits(sequence.request.adapter, scheduler.running.values())
    return "adapter" if waits else "capacity"
