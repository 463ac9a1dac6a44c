"""Late binding: requests wait at the gateway, and a worker gets only what it can soon start (FLEET F29).

A worker's backlog (dispatched, not started) is at most max(1 request, 0.5 s of prefill). A request whose
best worker is full waits for it: it counts there, but later requests may pass to other workers.
"""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

from engine.config import EngineConfig
from engine.fleet.health import WorkerHealth
from engine.fleet.index import EventIndex, PredictedIndex
from engine.fleet.ledger import Ledger, Reservation
from engine.fleet.misses import facts_at
from engine.fleet.router import ROUTINGS, Candidate, Choice, Overlap, Query, Setting
from engine.fleet.run import Run, Stage
from engine.kv.blocks import blocks_for
from engine.request import Request
from engine.sched.admission import headroom
from engine.sched.queue import Queue
from engine.sched.rates import OutputLengths, Rates

LOOK_AHEAD = 64
"""F29: so many of the queue choose again when a worker stops being full."""
BACKLOG_S = 0.5
PREDICTED_NS = 2_000_000_000
"""F31: a prediction stays until first token + 2 s."""
MAX_SESSIONS = 65_536


class Dispatcher:
    """Queue, reservations, indexes and rates of one gateway, and the choice that joins them."""

    def __init__(self, config: EngineConfig, health: Mapping[int, WorkerHealth]) -> None:
        if config.router.policy not in ROUTINGS:
            raise ValueError(f"router.policy {config.router.policy!r} is none of {', '.join(ROUTINGS)}")
        self.queue = Queue(config.queue, random.Random(config.seed))
        self.ledger = Ledger()
        self.events = EventIndex()
        self.predicted = PredictedIndex()
        self.rates = Rates(config.cost)
        self.outputs = OutputLengths()
        self.on_worker: dict[int, dict[int, Run]] = {worker: {} for worker in health}
        self.refusing: set[int] = set()
        """Workers that handed something back and have shown no progress since."""
        self.health = health
        self._sessions: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._last: int | None = None
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        """Take over new values of the controls. Raises ValueError."""
        self.config = config
        self.queue.configure(config.queue)
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
        """Prompt tokens expected from the worker's cache: the longer of both indexes' runs, by E17."""
        blocks = min(self._run_blocks(request, worker), (len(request.tokens) - 1) // self.block_size)
        return blocks * self.block_size

    def best_hit(self, request: Request, now: int) -> int:
        """The longest hit in the fleet, in tokens."""
        return max(
            (self.hit_tokens(request, w) for w, h in self.health.items() if h.selectable(now)), default=0
        )

    def candidates(self, run: Run, now: int) -> list[int]:
        """F20: workers that may be chosen for this request, full ones included."""
        return [
            worker
            for worker, health in self.health.items()
            if health.selectable(now) and health.incarnation not in run.excluded
        ]

    def due(self, runs: Mapping[int, Run], now: int) -> Iterator[tuple[Run, Choice]]:
        """Take requests off the queue, each with the worker that it is to be sent to now.

        The caller sends each before it asks for the next, so that every choice sees the one before.
        """
        self.ledger.clear_waiting()
        open_ = [worker for worker, health in self.health.items() if health.selectable(now)]
        blocked: set[int] = set()
        if all(self._saturated(worker) for worker in open_):
            return
        for entry in list(islice(self.queue.in_order(now), LOOK_AHEAD)):
            if all(worker in blocked or self._saturated(worker) for worker in open_):
                return
            run = runs[entry.id]
            choice = None if run.held else self.choose(run, now)
            if choice is None:
                continue
            worker = choice.worker
            if worker in blocked or not self._fits(run, worker, now):
                run.waits_for = worker
                blocked.add(worker)
                self.ledger.wait(worker, *self._promise(run, worker)[:2])
                continue
            if run.waits_for == worker and choice.reason not in ("only", "retry"):
                choice = dataclasses.replace(choice, reason="wait")
            self.queue.remove(run.id)
            yield run, choice

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
        candidates = [self._candidate(run, worker) for worker in workers]
        return self._routing(query, candidates, dataclasses.replace(self._setting, last=self._last))

    def bind(self, run: Run, choice: Choice, now: int) -> Request:
        """Reserve, and write down what is known at this moment; returns what the worker gets."""
        worker, health = choice.worker, self.health[choice.worker]
        others = sum(1 << w for w, h in self.health.items() if w != worker and h.hello and not h.silent(now))
        run.facts = facts_at(run.request.digests, worker, self.events, self.predicted, others)
        run.stage, run.choice, run.worker = Stage.DISPATCHED, choice, worker
        run.incarnation, run.epoch = health.incarnation, health.hello.epoch if health.hello else None
        run.dispatched = run.signed = now
        run.started = run.first_token = False
        prefill, decode, whole = self._promise(run, worker)
        digests = self._shared(run)
        self.ledger.reserve(run.key, Reservation(worker, prefill, decode, whole, digests))
        self.predicted.enter(run.key, worker, digests)
        if not self.on_worker[worker]:
            health.step_at = now
        self.on_worker[worker][run.id] = run
        self.rates.of(worker).begin(now)
        health.breaker.sent()
        self._last = worker
        self._remember(run, worker, health.incarnation)
        return dataclasses.replace(run.request, attempt=run.attempt)

    def unbind(self, run: Run, now: int, failed: bool = False) -> None:
        """The attempt is over: settle what it had reserved. Its prediction goes at once if it failed or
        had no token yet; else it stays for the events to take over."""
        assert run.worker is not None
        self.ledger.settle(run.key)
        if failed or not run.first_token:
            self.predicted.leave(run.key)
        here = self.on_worker[run.worker]
        here.pop(run.id, None)
        if not here:
            self.rates.of(run.worker).end(now)
            self.health[run.worker].rest()

    def cache_lost(self, worker: int) -> None:
        """A new epoch: neither its blocks nor the sessions that were drawn to them are there."""
        self.predicted.forget(worker)
        self.forget_sessions(worker)

    def forget_sessions(self, worker: int) -> None:
        """F24: affinity is void after an ejection or a new epoch."""
        for session in [s for s, (w, _) in self._sessions.items() if w == worker]:
            del self._sessions[session]

    def _fits(self, run: Run, worker: int, now: int) -> bool:
        """False if the worker is full for this request (F20)."""
        load = self.ledger.load(worker)
        if self._saturated(worker) or not self.health[worker].breaker.allows(now):
            return False
        prefill, _, whole = self._promise(run, worker)
        if load.backlog_requests and load.backlog_tokens + prefill > self._backlog_tokens(worker):
            return False
        hello = self.health[worker].hello
        if hello is None or self.config.admission.policy != "lifetime":
            return hello is not None
        new = whole - sum(1 for digest in self._shared(run) if digest in load.shared)
        free = hello.blocks - headroom(self.config.admission, hello.blocks, load.requests)
        return load.blocks + new <= free

    def _saturated(self, worker: int) -> bool:
        """Full for whatever request: dispatched ones at their limit, or backlog at its bound."""
        load = self.ledger.load(worker)
        return (
            load.requests >= self.config.router.max_dispatched
            or worker in self.refusing
            or (load.backlog_requests > 0 and load.backlog_tokens >= self._backlog_tokens(worker))
        )

    def _backlog_tokens(self, worker: int) -> float:
        rate = self.rates.prefill(worker)
        if rate is None:
            cost, chunk = self._setting.cost, self._setting.chunk
            rate = chunk / (cost.a + cost.b * chunk)
        return BACKLOG_S * rate

    def _promise(self, run: Run, worker: int) -> tuple[int, int, int]:
        """(prefill tokens, blocks of prompt + E[out], blocks of prompt + out_max)."""
        prompt, out_max = len(run.request.tokens), run.request.out_max
        expected = self.outputs.expected(run.entry.class_, out_max)
        return (
            max(prompt - self.hit_tokens(run.request, worker), 1),
            blocks_for(prompt + round(expected), self.block_size),
            blocks_for(prompt + out_max, self.block_size),
        )

    def _candidate(self, run: Run, worker: int) -> Candidate:
        load = self.ledger.load(worker)
        requests, prefill, decode = self.ledger.waiting(worker)
        return Candidate(
            worker,
            prefill=load.prefill + prefill,
            decode=load.decode + decode,
            requests=load.requests + requests,
            running=load.running,
            contexts=load.contexts,
            overlap=Overlap(device=self._run_blocks(run.request, worker)),
        )

    def _run_blocks(self, request: Request, worker: int) -> int:
        if not self.config.cache.enabled:
            return 0
        digests = request.digests
        return max(self.events.run(digests, worker), self.predicted.run(digests, worker))

    def _shared(self, run: Run) -> tuple[bytes, ...]:
        return run.request.digests if self.config.cache.enabled else ()

    def _session_worker(self, run: Run) -> int | None:
        worker, incarnation = self._sessions.get(run.ask.session or "", (None, ""))
        if worker is None or self.health[worker].incarnation != incarnation:
            return None
        return worker

    def _remember(self, run: Run, worker: int, incarnation: str | None) -> None:
        if run.ask.session is None or incarnation is None:
            return
        self._sessions[run.ask.session] = worker, incarnation
        self._sessions.move_to_end(run.ask.session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
