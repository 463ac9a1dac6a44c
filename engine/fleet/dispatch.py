"""Late binding: requests wait at the gateway, and a worker gets only what it can soon start (FLEET F29).

A worker's backlog (dispatched, not started) is at most max(1 request, 0.5 s of prefill). A request whose
best worker is full waits for it: it counts there, but later requests may pass to other workers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from engine.config import EngineConfig
from engine.fleet.charges import Charges
from engine.fleet.health import WorkerHealth
from engine.fleet.index import EventIndex
from engine.fleet.ledger import Ledger, Reservation
from engine.fleet.misses import facts_at
from engine.fleet.predicted import PredictedIndex
from engine.fleet.restoring import Restoring
from engine.fleet.room import Room
from engine.fleet.router import ROUTINGS, Candidate, Choice, Overlap, Query, Setting
from engine.fleet.run import Run, Stage
from engine.fleet.sessions import Sessions
from engine.messages import Load
from engine.request import Request, WorkerTruth
from engine.runner.cost import stay
from engine.sched.fairness import Caps
from engine.sched.queue import Queue
from engine.sched.rates import OutputLengths, Rates

LOOK_AHEAD = 64
"""F29: so many of the queue choose again when a worker stops being full."""
PREDICTED_NS = 2_000_000_000
"""F31: a prediction stays until first token + 2 s."""
NOTHING = Overlap()
NO_RUNS = (0, 0, 0)


class Dispatcher:
    """Queue, reservations, indexes and rates of one gateway, and the choice that joins them."""

    def __init__(self, config: EngineConfig, health: Mapping[int, WorkerHealth]) -> None:
        if config.router.policy not in ROUTINGS:
            raise ValueError(f"router.policy {config.router.policy!r} is none of {', '.join(ROUTINGS)}")
        self.queue = Queue(config, random.Random(config.seed))
        self.caps = Caps(config)
        self.ledger = Ledger()
        self.charges = Charges(self.queue, self.ledger)
        self.events = EventIndex()
        self.predicted = PredictedIndex()
        self.rates = Rates(config)
        self.outputs = OutputLengths()
        self.health = health
        self.room = Room(config, health, self.ledger, self.rates, self.outputs, self.new_tokens)
        self.on_worker, self.refusing = self.room.on_worker, self.room.refusing
        self._sessions = Sessions()
        self.load_seconds: Callable[[int, str | None], float] = lambda worker, adapter: 0.0
        """What loading this adapter would take on this worker."""
        self._last: int | None = None
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        """Take over new values of the controls. Raises ValueError."""
        self.config = self.room.config = config
        self.queue.configure(config)
        self.caps.configure(config)
        self.rates.configure(config)
        self.block_size = config.memory.block_size
        self._routing = ROUTINGS[config.router.policy]
        self._setting = Setting(
            block_size=self.block_size,
            decode_weight=config.router.decode_weight,
            chunk=min(config.scheduler.prefill_chunk, config.scheduler.max_step_tokens),
            seed=config.seed,
            cost=config.cost,
        )

    def hit_tokens(self, request: Request, worker: int) -> int:
        """Prompt tokens expected from the worker's cache, in whatever tier it pays to load them from."""
        return self.overlap(request, worker)[0].blocks * self.block_size

    def new_tokens(self, request: Request, worker: int) -> int:
        """F21's ``new``: what the worker is kept busy for, loads counted as prompt tokens."""
        _, worth = self.overlap(request, worker)
        return max(round(len(request.tokens) - worth * self.block_size), 1)

    def overlap(self, request: Request, worker: int) -> tuple[Overlap, float]:
        """What the worker will read from cache by E17, and what that is worth in blocks: on the device the
        longer of both indexes' runs (F31), below it what the events say."""
        return self._expected(request, worker, self.events.runs(request.digests, worker))

    def _expected(self, request: Request, worker: int, runs: tuple[int, int, int]) -> tuple[Overlap, float]:
        predicted = self.predicted.run(request.digests, worker)
        if not (predicted or runs[2]) or not self.config.cache.enabled:
            return NOTHING, 0.0
        most = (len(request.tokens) - 1) // self.block_size
        device = min(max(runs[0], predicted), most)
        host = min(max(runs[1], device), most)
        disk = min(max(runs[2], host), most)
        have = Overlap(device, host - device, disk - host)
        return self._restoring(worker).worth(have) if disk > device else (have, float(device))

    def _restoring(self, worker: int) -> Restoring:
        hello, heartbeat = self.health[worker].hello, self.health[worker].heartbeat
        block_bytes = hello.block_bytes if hello else 0
        factors = (heartbeat.load if heartbeat else Load()).factors
        return Restoring(self.config.cost, self.config.cache.tiers, self.block_size, block_bytes, factors)

    def best_hit(self, request: Request, now: int) -> int:
        """The longest hit in the fleet, in tokens."""
        workers = [worker for worker, health in self.health.items() if health.selectable(now)]
        runs = self.events.all_runs(request.digests)
        hits = (self._expected(request, worker, runs.get(worker, NO_RUNS))[0].blocks for worker in workers)
        return max(hits, default=0) * self.block_size

    def candidates(self, run: Run, now: int) -> list[int]:
        """F20: workers that may be chosen for this request, full ones included."""
        return [
            worker
            for worker, health in self.health.items()
            if health.selectable(now) and health.incarnation not in run.excluded
        ]

    def due(
        self, runs: Mapping[int, Run], now: int, arrival: Run | None = None
    ) -> Iterator[tuple[Run, Choice | None]]:
        """Take requests off the queue, each with the worker that it is to be sent to now, or None if it can
        no longer end by its deadline. The caller sends or ends it before it asks for the next, so that every
        choice and the order of who is left see the one before. An ``arrival`` that is next may go to a full
        worker where it may preempt (F20)."""
        self.ledger.clear_waiting()
        open_ = [worker for worker, health in self.health.items() if health.selectable(now)]
        blocked: set[int] = set()
        capped: set[str] = set()
        left = LOOK_AHEAD
        urgent = arrival if self.config.priority_preemption else None
        if urgent is None and all(self.room.saturated(worker) for worker in open_):
            return
        with closing(self.queue.in_order(now, capped)) as waiting:
            for entry in waiting:
                if not self.caps.allows(entry):
                    capped.add(entry.tenant)
                    continue
                run, left = runs[entry.id], left - 1
                if self.queue.order.drops_late and self._too_late(run, now):
                    self.queue.remove(run.id)
                    yield run, None
                elif (choice := self._may_go(run, blocked, now, run is urgent)) is not None:
                    self.queue.remove(run.id)
                    yield run, choice
                if not left or all(worker in blocked or self.room.saturated(worker) for worker in open_):
                    return

    def _may_go(self, run: Run, blocked: set[int], now: int, urgent: bool) -> Choice | None:
        """The choice of a worker that takes it now; else it waits, at the worker that it would have."""
        choice = None if run.held else self.choose(run, now)
        if choice is None:
            return None
        worker = choice.worker
        fits = self.room.fits(run, worker, now) or (urgent and self.room.may_preempt(run, worker))
        if worker in blocked or not fits:
            run.waits_for = worker
            blocked.add(worker)
            self.ledger.wait(worker, *self.room.promise(run, worker)[:2])
            return None
        if run.waits_for == worker and choice.reason not in ("only", "retry"):
            return dataclasses.replace(choice, reason="wait")
        return choice

    def _too_late(self, run: Run, now: int) -> bool:
        """It would miss its deadline on every worker, were its output as short as a tenth of its class's."""
        deadline, request = run.entry.deadline, run.request
        workers = self.candidates(run, now)
        if deadline is None or not workers:
            return False
        prompt, short = len(request.tokens), self.outputs.short(run.entry.class_, request.out_max)
        loads = [(self.ledger.load(worker), self.hit_tokens(request, worker)) for worker in workers]
        cost, chunk = self._setting.cost, self._setting.chunk
        soonest = min(
            stay(cost, chunk, load.running, load.contexts, prompt, prompt - hit, short) for load, hit in loads
        )
        return now + int(soonest * 1e9) > deadline

    def displaced(self, run: Run, now: int) -> list[Run]:
        """Less urgent requests that have not started on the worker where this one would go and is kept
        waiting: to be recalled for it (F29). None where the order does not look at rank."""
        workers = [worker for worker in self.on_worker if self.ledger.load(worker).backlog_requests]
        lower = {worker: self.room.less_urgent(run, worker) for worker in workers}
        choice = self.choose(run, now) if self.queue.order.by_rank and any(lower.values()) else None
        there = lower.get(choice.worker, []) if choice else []
        return [other for other in there if not other.started and not other.recalled]

    def choose(self, run: Run, now: int) -> Choice | None:
        """The best worker for it, full or not; None if it has no candidate."""
        workers = self.candidates(run, now)
        if not workers:
            return None
        query = Query(
            request=run.id,
            prompt=len(run.request.tokens),
            left=None if run.entry.deadline is None else (run.entry.deadline - now) / 1e9,
            session=self._session_worker(run),
            waits_for=run.waits_for,
            retry=run.failures > 0,
        )
        runs = self.events.all_runs(run.request.digests)
        candidates = [self._candidate(run, worker, runs.get(worker, NO_RUNS)) for worker in workers]
        return self._routing(query, candidates, dataclasses.replace(self._setting, last=self._last))

    def bind(self, run: Run, choice: Choice, now: int) -> Request:
        """Reserve, and write down what is known at this moment; returns what the worker gets."""
        worker, health = choice.worker, self.health[choice.worker]
        others = sum(1 << w for w, h in self.health.items() if w != worker and h.hello and not h.silent(now))
        run.facts = facts_at(run.request.digests, worker, self.events, self.predicted, others)
        run.stage, run.choice, run.worker = Stage.DISPATCHED, choice, worker
        run.incarnation, run.epoch = health.incarnation, health.hello.epoch if health.hello else None
        run.dispatched = run.signed = now
        run.started = run.first_token = run.recalled = False
        prefill, decode, whole = self.room.promise(run, worker)
        digests = self.room.shared(run)
        promised = Reservation(worker, prefill, decode, whole, digests, run.request.n)
        self.ledger.reserve(run.key, promised)
        self.predicted.enter(run.key, worker, digests)
        if not self.on_worker[worker]:
            health.step_at = now
        self.on_worker[worker][run.id] = run
        self.caps.starts(run.entry)
        self.charges.admitted(run, max(len(run.request.tokens) - choice.predicted_hit, 1))
        health.breaker.sent()
        self._last = worker
        self._sessions.remember(run.ask.session, worker, health.incarnation)
        return dataclasses.replace(run.request, attempt=run.attempt)

    def unbind(self, run: Run, now: int, failed: bool = False, truth: WorkerTruth | None = None) -> None:
        """The attempt is over: settle what it had reserved, and what its tenant is charged. Its prediction
        goes at once if it failed or had no token yet; else it stays for the events to take over."""
        assert run.worker is not None
        self.charges.settled(run, truth)
        self.ledger.settle(run.key)
        self.caps.ends(run.entry)
        if failed or not run.first_token:
            self.predicted.leave(run.key)
        here = self.on_worker[run.worker]
        here.pop(run.id, None)
        if not here:
            self.health[run.worker].rest()

    def cache_lost(self, worker: int) -> None:
        """A new epoch: neither its blocks nor the sessions that were drawn to them are there."""
        self.predicted.forget(worker)
        self.forget_sessions(worker)

    def forget_sessions(self, worker: int) -> None:
        """Affinity is void after an ejection or a new epoch (F24)."""
        self._sessions.forget(worker)

    def _candidate(self, run: Run, worker: int, runs: tuple[int, int, int]) -> Candidate:
        load = self.ledger.load(worker)
        requests, prefill, decode = self.ledger.waiting(worker)
        overlap, worth = self._expected(run.request, worker, runs)
        return Candidate(
            worker,
            prefill=load.prefill + prefill + self._loading(run.request, worker),
            decode=load.decode + decode,
            requests=load.requests + requests,
            running=load.running,
            contexts=load.contexts,
            overlap=overlap,
            worth=worth,
        )

    def _loading(self, request: Request, worker: int) -> int:
        """Tokens that would be prefilled there while its adapter is loaded (F21)."""
        if request.adapter is None:
            return 0
        cost, chunk = self._setting.cost, self._setting.chunk
        return round(self.load_seconds(worker, request.adapter) * chunk / (cost.a + cost.b * chunk))

    def _session_worker(self, run: Run) -> int | None:
        last = self._sessions.last(run.ask.session)
        return last[0] if last and self.health[last[0]].incarnation == last[1] else None
