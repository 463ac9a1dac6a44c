"""What workers say about requests, and what that means for these (FLEET F5, ENGINE E33)."""

from __future__ import annotations

from collections.abc import Mapping

from engine import messages as m
from engine.fleet.adapters import Adapters
from engine.fleet.backend import Generated
from engine.fleet.dispatch import PREDICTED_NS, Dispatcher
from engine.fleet.health import WorkerHealth
from engine.fleet.lives import DEAD_END, Lives
from engine.fleet.run import Emit, Run
from engine.fleet.timers import Timers
from engine.request import Finish
from engine.telemetry import Meter

_RECALLS = {"draining": "draining", "recalled": "urgent"}


class Hearing:
    """A method for each kind of message: (worker, message, now in ns). What an ended attempt still says is
    dropped, and its tokens are counted."""

    def __init__(
        self,
        health: Mapping[int, WorkerHealth],
        dispatcher: Dispatcher,
        adapters: Adapters,
        lives: Lives,
        timers: Timers,
        meter: Meter,
    ) -> None:
        self._health = health
        self._dispatcher = dispatcher
        self._adapters = adapters
        self._lives = lives
        self._timers = timers
        self._meter = meter

    def tokens(self, worker: int, message: m.TokensOut, now: int) -> None:
        run = self._lives.attempt(worker, message.id, message.attempt)
        if run is None:
            self._meter.inc("headrace_router_fenced_tokens_total", len(message.ids))
            return
        self._sign(run, worker, now)
        self._dispatcher.ledger.first_token(run.key, len(run.request.tokens))
        if not run.first_token:
            run.first_token = True
            key = run.key
            self._timers.at(now + PREDICTED_NS, lambda _: self._dispatcher.predicted.leave(key))
        self._pass_on(run, message)

    def step_tokens(self, worker: int, message: m.StepTokens, now: int) -> None:
        """The first token of none of them."""
        for said in message.apart():
            run = self._lives.attempt(worker, said.id, said.attempt)
            if run is None:
                self._meter.inc("headrace_router_fenced_tokens_total")
            else:
                self._sign(run, worker, now)
                self._pass_on(run, said)

    def _pass_on(self, run: Run, said: m.TokensOut) -> None:
        self._dispatcher.charges.served(run, len(said.ids))
        if said.choice in run.over:
            return
        if said.finish is not None:
            run.over.add(said.choice)
        if run.intent in (None, Finish.EXPIRED):  # what an expired one still says is its partial text
            run.generated += len(said.ids)
            told = Generated(said.ids, said.choice, said.logprobs, said.finish)
            self._lives.emit(Emit(run.id, told))

    def decodes(self, worker: int, message: m.TokensOut | m.StepTokens) -> bool:
        """One more token of requests in decode: nobody who waits can go for it."""
        if isinstance(message, m.StepTokens):  # nobody's first one comes so
            return worker not in self._dispatcher.refusing
        run = self._lives.attempt(worker, message.id, message.attempt)
        return run is not None and run.first_token and worker not in self._dispatcher.refusing

    def progress(self, worker: int, message: m.Progress, now: int) -> None:
        run = self._lives.attempt(worker, message.id, message.attempt)
        if run is not None:
            self._sign(run, worker, now)
            left = len(run.request.tokens) - message.computed
            self._dispatcher.ledger.progress(run.key, left)

    def refused(self, worker: int, message: m.Refused, now: int) -> None:
        run = self._lives.attempt(worker, message.id, message.attempt)
        if run is None:
            return
        self._health[worker].breaker.withdrawn()
        if message.reason in _RECALLS:
            self._meter.inc("headrace_router_recalls_total", reason=_RECALLS[message.reason])
        if message.reason != "recalled":
            self._dispatcher.refusing.add(worker)
        self._lives.handed_back(run, now)

    def done(self, worker: int, done: m.Done, now: int) -> None:
        run = self._lives.attempt(worker, done.id, done.attempt)
        if run is None:
            return
        self._sign(run, worker, now)
        breaker = self._health[worker].breaker
        fault = self._adapters.fault(worker, run.request.adapter)
        if done.reason is Finish.ERROR and fault is not None:
            breaker.withdrawn()
            self._lives.failed(run, "adapter_unavailable", fault, now, done.truth)
            return
        if done.reason is Finish.ERROR:
            if done.own_fault:
                breaker.succeeded()
            else:
                breaker.failed(now)
            message = done.error or f"a step of worker {worker} failed"
            code = DEAD_END if done.own_fault else "step_failed"
            self._lives.failed(run, code, message, now, done.truth)
            return
        if done.reason is Finish.CANCELLED:
            breaker.withdrawn()
        else:
            breaker.succeeded()
        # A stop string that was found is the end, whatever its worker ended it for meanwhile.
        reason = Finish.STOP if run.intent is Finish.STOP else done.reason
        if done.reason in (Finish.STOP, Finish.LENGTH):
            each = round(done.truth.generated / run.request.n)
            self._dispatcher.outputs.ended(run.entry.class_, each)
        if run.choice is not None and done.truth.first_scheduled is not None:
            self._meter.inc("headrace_router_predicted_hit_tokens_total", run.choice.predicted_hit)
            self._meter.inc("headrace_router_realised_hit_tokens_total", done.truth.hit)
        self._dispatcher.unbind(run, now, truth=done.truth)
        self._lives.end(run, reason, now, done.truth)

    def kv_events(self, worker: int, batch: m.KvEvents, now: int) -> None:
        events = self._dispatcher.events
        gaps, orphans = events.gaps, events.orphans
        if events.apply(worker, batch):
            self._dispatcher.cache_lost(worker)
        self._meter.inc("headrace_router_index_gaps_total", events.gaps - gaps)
        self._meter.inc("headrace_router_index_orphans_total", events.orphans - orphans)

    def _sign(self, run: Run, worker: int, now: int) -> None:
        run.started, run.signed = True, now
        self._health[worker].pulse(now)
        self._dispatcher.refusing.discard(worker)
