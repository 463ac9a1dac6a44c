"""The life of every request at the gateway: attempts, retries, and the one terminal event (FLEET 6)."""

from __future__ import annotations

import random
from functools import partial

from engine.config import CacheConfig, EngineConfig
from engine.fleet.backend import Ended
from engine.fleet.dispatch import Dispatcher
from engine.fleet.health import RetryBudget, State, backoff_ns
from engine.fleet.misses import refine
from engine.fleet.run import Action, Emit, Run, Send, Stage
from engine.fleet.timers import Timers
from engine.fleet.truth import TruthLog, truth_row
from engine.messages import Cancel, ToWorker
from engine.request import Finish, Miss, WorkerTruth
from engine.telemetry import Meter

MAX_FAILURES = 2
"""F40: up to 2 more attempts after the first."""
PATIENCE_NS = 30_000_000_000
"""A request that no worker in rotation may take for so long ends with a retriable error."""

DEAD_END = "dead_end"
"""Code of an error that lies in the request itself."""
OVERDUE_NS = 250_000_000
"""So often an expired request is looked at again until it has ended."""


class Lives:
    """Owns the requests under way. Every one that ``begin`` was called for ends in ``end`` once."""

    def __init__(self, config: EngineConfig, dispatcher: Dispatcher, timers: Timers, meter: Meter) -> None:
        self.runs: dict[int, Run] = {}
        self.truth = TruthLog()
        self.admitted = 0
        self.terminal = 0
        self.config_id = ""
        self._dispatcher = dispatcher
        self._timers = timers
        self._meter = meter
        self._budget = RetryBudget()
        self._rng = random.Random(config.seed + 1)
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def send(self, worker: int, message: ToWorker) -> None:
        self._actions.append(Send(worker, message))

    def emit(self, action: Emit) -> None:
        self._actions.append(action)

    def begin(self, run: Run) -> None:
        """It was let in and now waits in the queue."""
        self._budget.earn()
        self.admitted += 1
        self.runs[run.id] = run
        self._dispatcher.queue.add(run.entry)

    def dispatched(self, worker: int, id: int) -> Run | None:
        """The request if it is on this worker now."""
        run = self.runs.get(id)
        return run if run is not None and run.stage is Stage.DISPATCHED and run.worker == worker else None

    def attempt(self, worker: int, id: int, attempt: int) -> Run | None:
        """The request if this is its living attempt, on this worker (F5)."""
        run = self.dispatched(worker, id)
        return run if run is not None and run.attempt == attempt else None

    def cancel(self, id: int, now: int, reason: Finish) -> None:
        """End it, by way of its worker if it has one. Idempotent; the first reason stands."""
        run = self.runs.get(id)
        if run is None or run.intent is not None:
            return
        if run.stage is Stage.DISPATCHED and run.worker is not None:
            run.intent = reason
            self.send(run.worker, Cancel(run.id, reason))
        else:
            self.end(run, reason, now)

    def cancel_choice(self, id: int, choice: int, now: int, reason: Finish) -> None:
        """End one of its choices; the last one ends the request. Idempotent."""
        run = self.runs.get(id)
        if run is None or run.intent is not None or choice in run.over:
            return
        run.over.add(choice)
        if len(run.over) == run.request.n:
            self.cancel(id, now, reason)
        elif run.stage is Stage.DISPATCHED and run.worker is not None:
            self.send(run.worker, Cancel(run.id, reason, choice))

    def expire(self, id: int, now: int) -> None:
        """Its deadline has passed (E31). Its worker ends it in the next step; one that has gone silent
        is not waited for."""
        self.cancel(id, now, Finish.EXPIRED)
        run = self.runs.get(id)
        if run is None or run.worker is None:
            return
        if self._dispatcher.health[run.worker].suspect(now):
            self._dispatcher.unbind(run, now, failed=True)
            self.end(run, run.intent or Finish.EXPIRED, now)
        else:
            self._timers.at(now + OVERDUE_NS, partial(self.expire, id))

    def handed_back(self, run: Run, now: int) -> None:
        """Its worker did not start it: back to its place, which uses up no attempt."""
        self._dispatcher.unbind(run, now, failed=True)
        if run.intent is not None:
            self.end(run, run.intent, now)
        else:
            self._requeue(run, now)

    def failed(self, run: Run, code: str, message: str, now: int, truth: WorkerTruth | None = None) -> None:
        """The attempt is lost (``worker_lost``, ``silent``, ``stalled``, ``step_failed``): another one
        before the first byte (F40), else the one error event (F41)."""
        self._dispatcher.unbind(run, now, failed=True, truth=truth)
        if run.incarnation is not None:
            run.excluded.add(run.incarnation)
        if run.intent is not None:
            self.end(run, run.intent, now, truth)
        elif code == "silent" and not run.started:
            self._meter.inc("headrace_router_recalls_total", reason="ejected")
            run.attempt += 1
            self._requeue(run, now)
        elif code != DEAD_END and self._may_retry(run):
            self._retry(run, code, now)
        else:
            code = "worker_lost" if code == "silent" else code
            self.end(run, Finish.ERROR, now, truth, code, message)

    def end(
        self,
        run: Run,
        finish: Finish,
        now: int,
        truth: WorkerTruth | None = None,
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        """The one terminal event. Errors are retriable unless the request itself caused them."""
        self._dispatcher.queue.remove(run.id)
        del self.runs[run.id]
        waited = run.stage is not Stage.DISPATCHED
        run.stage = Stage.ENDED
        self.terminal += 1
        if finish is Finish.EXPIRED:
            code = "deadline_exceeded"
            message = message or "the deadline passed before the request was done"
        config = self._dispatcher.config
        misses = refine(truth.misses, run.facts, self._dispatcher.block_size) if truth else ()
        self._actions.append(
            Emit(run.id, _ended(run, finish, truth, misses, now, code, message, self.config_id, config.cache))
        )
        policy = config.router.policy
        flagged = now if waited and finish in (Finish.CANCELLED, Finish.EXPIRED) else None
        self.truth.add(truth_row(run, finish, truth, misses, now, self.config_id, policy, flagged))
        self._meter.inc("headrace_router_streams_ended_total", reason=finish.value)

    def end_waiting(self, now: int) -> None:
        """There has been no worker for too long: nobody is left waiting for ever."""
        for entry in list(self._dispatcher.queue.in_order(now)):
            self._end_unserved(self.runs[entry.id], now)

    def _may_retry(self, run: Run) -> bool:
        """Some other worker may take it, now or when it is back, and the budget allows it."""
        others = (
            health.state is State.GONE or health.incarnation not in run.excluded
            for health in self._dispatcher.health.values()
        )
        return not run.generated and run.failures < MAX_FAILURES and any(others) and self._budget.spend()

    def _retry(self, run: Run, code: str, now: int) -> None:
        run.failures += 1
        run.attempt += 1
        self._meter.inc("headrace_router_retries_total", reason=code)
        if code == "worker_lost":
            self._requeue(run, now)
            return
        run.stage = Stage.PAUSED
        due = now + backoff_ns(run.failures, self._rng)
        self._timers.at(due, partial(self._resume, run.id, run.attempt))

    def _resume(self, id: int, attempt: int, now: int) -> None:
        run = self.runs.get(id)
        if run is not None and run.attempt == attempt and run.stage is Stage.PAUSED:
            self._requeue(run, now)

    def _requeue(self, run: Run, now: int) -> None:
        """Back to its old place in the queue. Nothing of the attempt is left, its breakpoint neither."""
        run.stage, run.waits_for = Stage.QUEUED, None
        run.started = run.first_token = run.held = False
        run.back_since = now
        self._dispatcher.queue.add(run.entry)
        self._timers.at(now + PATIENCE_NS, partial(self._give_up, run.id, now))

    def _give_up(self, id: int, since: int, now: int) -> None:
        run = self.runs.get(id)
        waits = run is not None and run.back_since == since and run.stage is Stage.QUEUED
        if run is not None and waits and not self._dispatcher.candidates(run, now):
            self._end_unserved(run, now)

    def _end_unserved(self, run: Run, now: int) -> None:
        seconds = PATIENCE_NS // 1_000_000_000
        self.end(run, Finish.ERROR, now, None, "no_worker", f"no worker could take it for {seconds} s")


def _ended(
    run: Run,
    finish: Finish,
    truth: WorkerTruth | None,
    misses: tuple[Miss, ...],
    now: int,
    code: str | None,
    message: str | None,
    config_id: str,
    cache: CacheConfig,
) -> Ended:
    done = truth or WorkerTruth(generated=run.generated)
    return Ended(
        finish=finish,
        prompt=len(run.request.tokens),
        hits=done.hits,
        generated=done.generated,
        out_max=run.request.out_max,
        worker=run.worker,
        epoch=truth.epoch if truth else run.epoch,
        attempt=run.attempt,
        config_id=config_id,
        created_cache=done.created_cache_tokens,
        retention=cache.ttl if run.request.life is None else run.request.life / 1e9,
        misses=misses,
        code=code,
        message=message,
        retriable=finish is Finish.ERROR and code != DEAD_END,
        times={
            "received": run.received,
            "queued": run.queued,
            "dispatched": run.dispatched,
            "first_scheduled": done.first_scheduled,
            "prefill_done": done.prefill_done,
            "finished": done.finished if done.finished is not None else now,
        },
    )
