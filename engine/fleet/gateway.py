"""The gateway: a state machine over everything that happens to a request (FLEET 1, 4, 5, 6).

It is told events with the time and collects what is to be done; it knows no socket, task or clock.

    submit ──> queue ──late binding──> worker ──tokens──> listener
       │         ^ │                     │
    Rejected     │ └ deadline, cancel    ├─ Done ───────────────────────> exactly one Ended
                 └── refused, recalled, retry before the first byte <── lost, stalled, step failed
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from engine import messages as m
from engine.config import EngineConfig
from engine.fleet.adapters import Adapters
from engine.fleet.backend import Ask, Rejected
from engine.fleet.breakpoints import Breakpoints
from engine.fleet.dispatch import Dispatcher
from engine.fleet.door import Door, Identity, config_digest
from engine.fleet.health import WorkerHealth
from engine.fleet.hearing import Hearing
from engine.fleet.holds import Breakpoint, Holds
from engine.fleet.lives import Lives
from engine.fleet.rotation import Rotation
from engine.fleet.run import Action, Run, Stage
from engine.fleet.timers import Timers
from engine.request import Finish
from engine.sched.fairness import DEFAULT_TENANT
from engine.telemetry import Meter

TOO_LATE = "its turn came too late to be done by its deadline"
_GATE_CODES = ("empty_prompt", "invalid_max_tokens", "unknown_class", "unknown_retention", "tenant_kv_limit")


class Gateway:
    """All calls are synchronous and take ``now`` in ns; ``take_actions`` after each tells what to do."""

    def __init__(self, config: EngineConfig, identity: Identity, meter: Meter) -> None:
        self.config = config
        self.meter = meter
        self.health = {worker: WorkerHealth(config.health) for worker in range(config.workers)}
        self.dispatcher = Dispatcher(config, self.health)
        self.adapters = Adapters(config.model, self.broadcast)
        self.dispatcher.load_seconds = self.adapters.load_seconds
        self.door = Door(config, identity, self.adapters.digest)
        self.holds = Holds()
        self.decisions = 0
        """Workers chosen so far."""
        self._timers = Timers()
        self.lives = Lives(config, self.dispatcher, self._timers, meter)
        self.lives.config_id = config_digest(config)
        self.breakpoints = Breakpoints(self.holds, self.health, self.dispatcher, self.lives, self._timers)
        self.rotation = Rotation(self.health, self.dispatcher, self.lives, self._timers, meter)
        self.hearing = Hearing(self.health, self.dispatcher, self.adapters, self.lives, self._timers, meter)
        self._overrides: dict[str, Any] = {}
        self.disk_fault: m.DiskFault | None = None
        """What is wrong with the workers' disks, those of later incarnations too."""
        self._handlers: dict[type[Any], Callable[[int, Any, int], None]] = {
            m.Hello: self._on_hello,
            m.Heartbeat: self.rotation.heartbeat,
            m.TokensOut: self.hearing.tokens,
            m.StepTokens: self.hearing.step_tokens,
            m.Progress: self.hearing.progress,
            m.Refused: self.hearing.refused,
            m.Done: self.hearing.done,
            m.KvEvents: self.hearing.kv_events,
            m.Held: self.breakpoints.held,
            m.AdapterState: lambda worker, state, now: self.adapters.hears(worker, state),
            m.Failed: lambda worker, failed, now: self.rotation.failed(worker, failed.reason, now),
        }

    def admits(self, class_: str, tenant: str = DEFAULT_TENANT) -> None:
        """Raises Rejected if a request of this class and tenant would be refused whatever its prompt is."""
        try:
            self.door.knock(class_, tenant, self.dispatcher, self.health.values())
        except Rejected as rejected:
            self._count_rejection(class_, tenant, rejected)
            raise

    def submit(self, ask: Ask, now: int) -> tuple[int, int]:
        """Queue a request; returns (id, out_max). Raises Rejected."""
        try:
            run = self.door.admit(ask, now, self.dispatcher, list(self.health.values()))
        except Rejected as rejected:
            self._count_rejection(ask.class_, ask.tenant, rejected)
            raise
        self.meter.inc("headrace_router_requests_total", class_=run.entry.class_)
        self.lives.begin(run)
        if run.entry.deadline is not None:
            self._timers.at(run.entry.deadline, partial(self.lives.expire, run.id))
        self.breakpoints.queued(run, now)
        self._dispatch(now, run)
        if run.stage is Stage.QUEUED and not run.held:
            for other in self.dispatcher.displaced(run, now):
                assert other.worker is not None
                other.recalled = True
                self.lives.send(other.worker, m.Recall(other.id))
        return run.id, run.request.out_max

    def cancel(self, id: int, now: int, reason: Finish = Finish.CANCELLED, choice: int | None = None) -> None:
        """Idempotent. A running request, or one choice of it, ends when its worker has let go of it (E34)."""
        if choice is None:
            self.lives.cancel(id, now, reason)
        else:
            self.lives.cancel_choice(id, choice, now, reason)
        self._dispatch(now)

    def wrote(self, id: int, now: int) -> None:
        """Output bytes of this request left towards the client."""
        run = self.lives.runs.get(id)
        if run is None:
            self.lives.truth.wrote(id, now)
            return
        run.first_write = now if run.first_write is None else run.first_write
        run.last_write = now

    def on_message(self, worker: int, message: m.FromWorker, now: int) -> None:
        """Take a message. What an ended attempt still says is dropped, and its tokens are counted."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return
        moves_nobody = isinstance(message, m.TokensOut | m.StepTokens) and self.hearing.decodes(
            worker, message
        )
        handler(worker, message, now)
        if not moves_nobody:
            self._dispatch(now)

    def on_lost(self, worker: int, reason: str, now: int) -> None:
        """Connection closed or process gone. Idempotent."""
        self.adapters.worker_gone(worker)
        self.rotation.lost(worker, reason, now)
        self._dispatch(now)

    def tick(self, now: int) -> None:
        """Do what is due. Early calls do no harm."""
        self._timers.run(now)
        self._dispatch(now)

    def next_wakeup(self) -> int | None:
        """When ``tick`` is to be called next, in ns."""
        return self._timers.next()

    def take_actions(self) -> list[Action]:
        return self.lives.take_actions()

    def hold(self, phase: str, request: str | None, worker: int | None, now: int) -> Breakpoint:
        """Arm a breakpoint (E48). Raises ValueError for an unknown phase."""
        return self.breakpoints.arm(phase, request, worker, now)

    def release(self, hold_id: int, now: int) -> None:
        """Let go what it holds and disarm it. Idempotent."""
        self.breakpoints.release(hold_id, now)
        self._dispatch(now)

    def configure(self, config: EngineConfig, changes: dict[str, Any], now: int) -> None:
        """Take over a changed configuration; ``changes`` goes to the workers, later incarnations too."""
        self.dispatcher.configure(config)
        self.door.configure(config)
        self.rotation.configure(config.health, now)
        self.config, self.lives.config_id = config, config_digest(config)
        self._overrides.update(changes)
        self.broadcast(m.Configure(changes))
        self._dispatch(now)

    def drain(self, worker: int, now: int) -> None:
        """F43: nothing new goes there, its backlog comes back, what runs ends."""
        self.rotation.drain(worker, now)
        self.lives.send(worker, m.Drain())
        self._dispatch(now)

    def abandon(self, id: int, code: str, message: str, now: int) -> None:
        """End a request with an error at once, whatever its worker does."""
        run = self.lives.runs[id]
        if run.worker is not None and run.stage is Stage.DISPATCHED:
            self.lives.send(run.worker, m.Cancel(id))
            self.dispatcher.unbind(run, now, failed=True)
        self.lives.end(run, Finish.ERROR, now, None, code, message)

    def break_disk(self, fault: m.DiskFault | None) -> None:
        """Let the workers' disk tiers fail so; None heals them."""
        self.disk_fault = fault
        self.broadcast(m.BreakDisk(fault))

    def broadcast(self, message: m.ToWorker) -> None:
        for worker in self.health:
            self.lives.send(worker, message)

    def _dispatch(self, now: int, arrival: Run | None = None) -> None:
        """Send what can be sent now (F29)."""
        self.adapters.forget_unused(lambda: {run.request.adapter for run in self.lives.runs.values()})
        if not self.dispatcher.queue:
            return
        for run, choice in self.dispatcher.due(self.lives.runs, now, arrival):
            if choice is None:
                self.lives.end(run, Finish.EXPIRED, now, message=TOO_LATE)
                continue
            first = run.dispatched is None
            request = self.dispatcher.bind(run, choice, now)
            self.decisions += 1
            self.meter.inc(
                "headrace_router_selections_total", worker=str(choice.worker), reason=choice.reason
            )
            if first:
                waited = (now - run.entry.arrived) / 1e9
                self.meter.observe("headrace_router_queue_seconds", waited, class_=run.entry.class_)
            self.lives.send(choice.worker, m.Submit(request))

    def _on_hello(self, worker: int, hello: m.Hello, now: int) -> None:
        self.rotation.hello(worker, hello, now)
        self.adapters.worker_gone(worker)
        for message in self.adapters.introduction():
            self.lives.send(worker, message)
        if self._overrides:
            self.lives.send(worker, m.Configure(dict(self._overrides)))
        if self.disk_fault is not None:
            self.lives.send(worker, m.BreakDisk(self.disk_fault))
        self.breakpoints.introduce(worker)

    def _count_rejection(self, named: str, tenant: str, rejected: Rejected) -> None:
        if rejected.code == "unknown_class":
            class_ = "unknown"
        else:
            class_ = named if named in self.config.classes else self.door.class_of(named, tenant)
        own_code = rejected.status != 400 or rejected.code in _GATE_CODES
        reason = rejected.code if own_code else "context_length"
        self.meter.inc("headrace_router_requests_total", class_=class_)
        self.meter.inc("headrace_router_rejections_total", reason=reason, class_=class_)
