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
from engine.fleet.backend import Ask, Generated, Rejected
from engine.fleet.breakpoints import Breakpoints
from engine.fleet.dispatch import PREDICTED_NS, Dispatcher
from engine.fleet.door import Door, Identity, config_digest
from engine.fleet.health import WorkerHealth
from engine.fleet.holds import Breakpoint, Holds
from engine.fleet.lives import DEAD_END, Lives
from engine.fleet.rotation import Rotation
from engine.fleet.run import Action, Emit, Run, Stage
from engine.fleet.timers import Timers
from engine.request import Finish
from engine.sched.fairness import DEFAULT_TENANT
from engine.telemetry import Meter

_RECALLS = {"draining": "draining", "recalled": "urgent"}
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
        self._overrides: dict[str, Any] = {}
        self.disk_fault: m.DiskFault | None = None
        """What is wrong with the workers' disks, those of later incarnations too."""
        self._handlers: dict[type[Any], Callable[[int, Any, int], None]] = {
            m.Hello: self._on_hello,
            m.Heartbeat: self.rotation.heartbeat,
            m.TokensOut: self._on_tokens,
            m.StepTokens: self._on_step_tokens,
            m.Progress: self._on_progress,
            m.Refused: self._on_refused,
            m.Done: self._on_done,
            m.KvEvents: self._on_kv_events,
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
        moves_nobody = isinstance(message, m.TokensOut | m.StepTokens) and self._decodes(worker, message)
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

    def _on_tokens(self, worker: int, message: m.TokensOut, now: int) -> None:
        run = self.lives.attempt(worker, message.id, message.attempt)
        if run is None:
            self.meter.inc("headrace_router_fenced_tokens_total", len(message.ids))
            return
        self._sign(run, worker, now)
        self.dispatcher.ledger.first_token(run.key, len(run.request.tokens))
        self.dispatcher.charges.served(run, len(message.ids))
        if not run.first_token:
            run.first_token = True
            key = run.key
            self._timers.at(now + PREDICTED_NS, lambda _: self.dispatcher.predicted.leave(key))
        if message.choice in run.over:
            return
        if message.finish is not None:
            run.over.add(message.choice)
        if run.intent in (None, Finish.EXPIRED):  # what an expired one still says is its partial text
            run.generated += len(message.ids)
            said = Generated(message.ids, message.choice, message.logprobs, message.finish)
            self.lives.emit(Emit(run.id, said))

    def _on_step_tokens(self, worker: int, message: m.StepTokens, now: int) -> None:
        for said in message.apart():
            self._on_tokens(worker, said, now)

    def _decodes(self, worker: int, message: m.TokensOut | m.StepTokens) -> bool:
        """One more token of requests in decode: nobody who waits can go for it."""
        if isinstance(message, m.StepTokens):  # nobody's first one comes so
            return worker not in self.dispatcher.refusing
        run = self.lives.attempt(worker, message.id, message.attempt)
        return run is not None and run.first_token and worker not in self.dispatcher.refusing

    def _on_progress(self, worker: int, message: m.Progress, now: int) -> None:
        run = self.lives.attempt(worker, message.id, message.attempt)
        if run is not None:
            self._sign(run, worker, now)
            left = len(run.request.tokens) - message.computed
            self.dispatcher.ledger.progress(run.key, left)

    def _on_refused(self, worker: int, message: m.Refused, now: int) -> None:
        run = self.lives.attempt(worker, message.id, message.attempt)
        if run is None:
            return
        self.health[worker].breaker.withdrawn()
        if message.reason in _RECALLS:
            self.meter.inc("headrace_router_recalls_total", reason=_RECALLS[message.reason])
        if message.reason != "recalled":
            self.dispatcher.refusing.add(worker)
        self.lives.handed_back(run, now)

    def _on_done(self, worker: int, done: m.Done, now: int) -> None:
        run = self.lives.attempt(worker, done.id, done.attempt)
        if run is None:
            return
        self._sign(run, worker, now)
        breaker = self.health[worker].breaker
        fault = self.adapters.fault(worker, run.request.adapter)
        if done.reason is Finish.ERROR and fault is not None:
            breaker.withdrawn()
            self.lives.failed(run, "adapter_unavailable", fault, now, done.truth)
            return
        if done.reason is Finish.ERROR:
            if done.own_fault:
                breaker.succeeded()
            else:
                breaker.failed(now)
            message = done.error or f"a step of worker {worker} failed"
            code = DEAD_END if done.own_fault else "step_failed"
            self.lives.failed(run, code, message, now, done.truth)
            return
        if done.reason is Finish.CANCELLED:
            breaker.withdrawn()
        else:
            breaker.succeeded()
        # A stop string that was found is the end, whatever its worker ended it for meanwhile.
        reason = Finish.STOP if run.intent is Finish.STOP else done.reason
        if done.reason in (Finish.STOP, Finish.LENGTH):
            each = round(done.truth.generated / run.request.n)
            self.dispatcher.outputs.ended(run.entry.class_, each)
        if run.choice is not None and done.truth.first_scheduled is not None:
            self.meter.inc("headrace_router_predicted_hit_tokens_total", run.choice.predicted_hit)
            self.meter.inc("headrace_router_realised_hit_tokens_total", done.truth.hit)
        self.dispatcher.unbind(run, now, truth=done.truth)
        self.lives.end(run, reason, now, done.truth)

    def _on_kv_events(self, worker: int, batch: m.KvEvents, now: int) -> None:
        events = self.dispatcher.events
        gaps, orphans = events.gaps, events.orphans
        if events.apply(worker, batch):
            self.dispatcher.cache_lost(worker)
        self.meter.inc("headrace_router_index_gaps_total", events.gaps - gaps)
        self.meter.inc("headrace_router_index_orphans_total", events.orphans - orphans)

    def _sign(self, run: Run, worker: int, now: int) -> None:
        run.started, run.signed = True, now
        self.health[worker].pulse(now)
        self.dispatcher.refusing.discard(worker)

    def _count_rejection(self, named: str, tenant: str, rejected: Rejected) -> None:
        if rejected.code == "unknown_class":
            class_ = "unknown"
        else:
            class_ = named if named in self.config.classes else self.door.class_of(named, tenant)
        own_code = rejected.status != 400 or rejected.code in _GATE_CODES
        reason = rejected.code if own_code else "context_length"
        self.meter.inc("headrace_router_requests_total", class_=class_)
        self.meter.inc("headrace_router_rejections_total", reason=reason, class_=class_)
