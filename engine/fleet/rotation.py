"""Who comes into rotation and who falls out of it, and what that does to the work there (FLEET 5)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil

from engine.config import HealthConfig
from engine.exposition import FleetMeters
from engine.fleet.dispatch import Dispatcher
from engine.fleet.health import State, WorkerHealth
from engine.fleet.lives import PATIENCE_NS, Lives
from engine.fleet.run import Run
from engine.fleet.timers import Timers
from engine.messages import Cancel, Heartbeat, Hello
from engine.telemetry import Meter


class Rotation:
    """Hears Hello, heartbeats, losses and silence. When no worker has been in rotation for
    ``PATIENCE_NS``, everything that waits is ended."""

    def __init__(
        self,
        health: Mapping[int, WorkerHealth],
        dispatcher: Dispatcher,
        lives: Lives,
        timers: Timers,
        meter: Meter,
    ) -> None:
        self.health = health
        self.meters = FleetMeters()
        self._dispatcher = dispatcher
        self._lives = lives
        self._timers = timers
        self._meter = meter
        self._empty_since: int | None = 0
        self._watches: dict[int, int] = {}
        """When the silence of each worker is looked at next."""

    def hello(self, worker: int, hello: Hello, now: int) -> None:
        """A new incarnation has warmed up. If the loss of the one before was missed, it is made up."""
        self.lost(worker, "replaced by a new incarnation", now)
        self.health[worker].hears_hello(hello, now)
        self._dispatcher.events.begin(worker, hello.epoch)
        self._watch(worker, now)

    def configure(self, config: HealthConfig, now: int) -> None:
        """Go by these times from now on: who has been silent for too long by them is out at once."""
        for worker, health in self.health.items():
            before, health.config = health.config, config
            if before.eject_after != config.eject_after:
                self._watch(worker, now)

    def heartbeat(self, worker: int, heartbeat: Heartbeat, now: int) -> None:
        """Of the living incarnation only; a new epoch means that its cache was cleared (F30)."""
        health = self.health[worker]
        if health.incarnation != heartbeat.incarnation:
            return
        if heartbeat.metrics:
            self.meters.update(worker, heartbeat.incarnation, heartbeat.metrics)
        if self._dispatcher.events.begin(worker, heartbeat.epoch):
            self._dispatcher.cache_lost(worker)
        rotated = health.state is State.IN_ROTATION
        health.hears_heartbeat(heartbeat, now)
        load = heartbeat.load
        self._dispatcher.rates.hears(worker, load.prefill_rate, load.decode_rate)
        self._dispatcher.refusing.discard(worker)
        if health.state is State.IN_ROTATION:
            self._empty_since = None
        elif rotated:
            self._out(worker, "not_ready", now)
        self._fail_stalled(worker, now)

    def lost(self, worker: int, reason: str, now: int) -> None:
        """Connection closed or process gone: out at once, whatever it held is gone too. Idempotent."""
        health = self.health[worker]
        if health.state is State.GONE:
            return
        was_in = health.state is State.IN_ROTATION
        seen = health.seen
        health.lose(reason, now)
        self._dispatcher.events.depart(worker)
        self._dispatcher.cache_lost(worker)
        self._dispatcher.rates.forget(worker)
        self.meters.lost(worker)
        if was_in:
            self._out(worker, "lost", now, seen)
        self._fail_all(worker, "worker_lost", f"worker {worker} was lost: {reason}", now)

    def failed(self, worker: int, reason: str, now: int) -> None:
        """It says itself why it ends, perhaps before it ever got ready: that is why it is gone."""
        self.lost(worker, reason, now)
        self.health[worker].reason = reason

    def drain(self, worker: int, now: int) -> None:
        """No selection from this moment (F43)."""
        was_in = self.health[worker].state is State.IN_ROTATION
        self.health[worker].drain(now)
        self._dispatcher.forget_sessions(worker)
        if was_in:
            self._see_if_empty(now)

    def running_on(self, worker: int) -> list[Run]:
        """The attempts dispatched to a worker, by request id."""
        return [run for _, run in sorted(self._dispatcher.on_worker[worker].items())]

    def _watch(self, worker: int, now: int) -> None:
        """Look at the worker now, and again when its silence would matter."""
        health = self.health[worker]
        if health.seen is None:
            return
        if health.silent(now) and health.state is not State.EJECTED:
            self._silent(worker, now)
        eject_after = ceil(health.config.eject_after * 1e9)
        heard_by = health.seen + eject_after
        due = self._watches[worker] = heard_by if heard_by > now else now + eject_after
        self._timers.at(due, partial(self._watch_due, worker, due))

    def _watch_due(self, worker: int, due: int, now: int) -> None:
        """Only the latest watch of a worker matters."""
        if self._watches[worker] == due:
            self._watch(worker, now)

    def _silent(self, worker: int, now: int) -> None:
        """F35: frozen or cut off. It is told to drop what it has, should it ever wake up."""
        health = self.health[worker]
        was_in, seen = health.state is State.IN_ROTATION, health.seen
        health.eject("silent", now)
        if was_in:
            self._out(worker, "silent", now, seen)
        for run in self.running_on(worker):
            self._lives.send(worker, Cancel(run.id))
        self._fail_all(worker, "silent", f"worker {worker} has been silent", now)

    def _fail_stalled(self, worker: int, now: int) -> None:
        """F35: its heartbeats go on, but an attempt shows no step (or, once started, no chunk)."""
        health = self.health[worker]
        limit = health.stall_limit()
        for run in self.running_on(worker):
            idle_since = run.signed if run.started else max(run.signed, health.step_at or 0)
            if not run.held and now - idle_since > limit:
                self._lives.send(worker, Cancel(run.id))
                health.breaker.failed(now)
                message = f"worker {worker} made no progress for {limit / 1e9:.0f} s"
                self._lives.failed(run, "stalled", message, now)

    def _fail_all(self, worker: int, code: str, message: str, now: int) -> None:
        for run in self.running_on(worker):
            self._lives.failed(run, code, message, now)

    def _out(self, worker: int, reason: str, now: int, seen: int | None = None) -> None:
        self._meter.inc("headrace_router_ejections_total", reason=reason)
        if seen is not None:
            self._meter.observe("headrace_router_detect_seconds", (now - seen) / 1e9)
        self._dispatcher.forget_sessions(worker)
        self._see_if_empty(now)

    def _see_if_empty(self, now: int) -> None:
        if not any(health.state is State.IN_ROTATION for health in self.health.values()):
            self._empty_since = now
            self._timers.at(now + PATIENCE_NS, partial(self._still_empty, now))

    def _still_empty(self, since: int, now: int) -> None:
        if self._empty_since == since:
            self._lives.end_waiting(now)
