"""The gauges of one worker: what is true at this moment (ENGINE E55)."""

from __future__ import annotations

from collections import Counter

from engine.sched.scheduler import Scheduler
from engine.telemetry import Meter

_NS = 1e9


class Gauges:
    """Sets them; remembers which classes have ever waited, so that theirs go back to 0."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._waiting_classes: set[str] = set()

    def set(self, scheduler: Scheduler, epoch: int, ready: bool, step_started: int | None, now: int) -> None:
        """Set every gauge to what is true now."""
        pool, meter = scheduler.memory.pool, self.meter
        meter.set("headrace_engine_requests_running", len(scheduler.running))
        waiting = Counter(s.request.class_ for s in scheduler.waiting.values())
        self._waiting_classes |= waiting.keys()
        for class_ in self._waiting_classes:
            meter.set("headrace_engine_requests_waiting", waiting[class_], class_=class_, reason="capacity")
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
