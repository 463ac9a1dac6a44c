"""The step loop's state machine: ``receive``, ``plan``, (execute), ``commit``, told the time, pure.

Two drivers run it: a process with sockets and the torch runner, and the virtual-clock loop with the
simulated one. Between ``plan`` and ``commit`` a step is in flight: messages may arrive then, and a request
that ends then gives its blocks back behind a fence that the commit lifts (ENGINE E34, E35)::

    receive* -> plan -> receive* -> commit | step_failed -> receive* -> plan ...
"""

from __future__ import annotations

import logging

from engine import messages as m
from engine.config import EngineConfig
from engine.kv.blocks import BlockPool
from engine.kv.eviction import EVICTIONS
from engine.kv.places import Sizes
from engine.kv.prefix_cache import PrefixCache
from engine.request import Request, WorkerTruth
from engine.runner.base import StepPlan, StepResult
from engine.sched.accounts import Accounts
from engine.sched.admission import unservable
from engine.sched.audit import audit
from engine.sched.controls import apply_changes
from engine.sched.delivery import Delivery
from engine.sched.gauges import Gauges
from engine.sched.holds import Holds
from engine.sched.job import Job
from engine.sched.memory import Memory
from engine.sched.outbox import Outbox
from engine.sched.roster import Roster
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence
from engine.sched.steps import Steps
from engine.telemetry import Meter

log = logging.getLogger(__name__)

BACKLOG_S = 0.5
"""Seconds of prefill that a worker's backlog should hold at most; it refuses beyond twice that (F29)."""


class Worker:
    """One incarnation of one worker. Times are ns; nothing here waits, reads a clock or blocks.

    ``eos_ids``, ``max_positions`` and ``vocabulary`` are the runner's facts. ``epoch`` must be greater
    than any epoch of an earlier incarnation and leave room for one more per clear.
    ``Load.ack`` counts the Submit messages that this incarnation has received, refused ones included.
    """

    def __init__(
        self,
        config: EngineConfig,
        index: int,
        incarnation: str,
        *,
        eos_ids: frozenset[int],
        max_positions: int,
        vocabulary: int,
        kv_bytes_per_token: int = 0,
        epoch: int = 1,
        meter: Meter | None = None,
        verify_tokens: bool = True,
        digest_bits: int = 128,
    ) -> None:
        blocks = config.memory.kv_blocks
        if blocks is None:
            raise ValueError("memory.kv_blocks is not set; turn memory.total into a number of blocks first")
        self.index = index
        self.incarnation = incarnation
        self.meter = meter if meter is not None else Meter(config, "engine")
        self.block_size = config.memory.block_size
        self.pool = BlockPool(blocks, EVICTIONS[config.cache.eviction](config))
        self.pool.cached.copied_first = config.cache.copied_first
        self.cache = PrefixCache(
            self.pool,
            self.block_size,
            self.meter,
            verify_tokens=verify_tokens,
            digest_bits=digest_bits,
            sizes=Sizes.of(config.cache.tiers, kv_bytes_per_token * self.block_size),
        )
        self.holds = Holds()
        self.accounts = Accounts(self.meter, self.cache, config)
        self.memory = Memory(config, self.pool, self.cache, self.meter)
        self.scheduler = Scheduler(config, self.memory, self.holds, self.accounts)
        self.adapters = self.scheduler.adapters
        self._outbox = Outbox(epoch, self.cache, self.holds, self.adapters)
        self.roster = Roster(self.scheduler, self.holds, self.accounts, self._outbox.messages)
        self.draining = False
        context = min(max_positions, blocks * self.block_size)
        self.max_model_len = context if config.max_model_len is None else min(context, config.max_model_len)
        self.delivery = Delivery(self.scheduler, self.roster, self.holds, eos_ids)
        self.steps = Steps(config.cost, self.scheduler, self.roster, self.delivery, self._outbox)
        self._vocabulary = vocabulary
        self._gauges = Gauges(self.meter)
        self._ack = 0

    @property
    def config(self) -> EngineConfig:
        """The effective configuration."""
        return self.scheduler.config

    @property
    def epoch(self) -> int:
        """Which contents of the cache its events speak of (ENGINE E44)."""
        return self._outbox.epoch

    @property
    def idle(self) -> bool:
        """Nobody waits or runs here, no step is in flight and nothing has to be moved."""
        return not self.roster.active and self.steps.started is None and not self.cache.below.moves

    @property
    def next_wakeup(self) -> int | None:
        """When ``plan`` must be called even if no message comes: a life, a hold, a deadline or the patience
        with a restore ends."""
        patience = self.memory.transfers.next_overdue
        times = (self.cache.next_expiry(), self.holds.next_lapse, self.roster.next_deadline, patience)
        return min((time for time in times if time is not None), default=None)

    # -- one step -------------------------------------------------------------------------------

    def plan(self, now: int) -> StepPlan | None:
        """The next step, or None if nobody can run now. Call it after messages, after each commit and
        at ``next_wakeup``."""
        return self.steps.plan(now)

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """The step was executed and this is what came out."""
        self.steps.commit(plan, result, now)

    def step_failed(self, plan: StepPlan, error: BaseException | str, now: int) -> None:
        """The runner raised, and nothing of the step counts."""
        self.steps.step_failed(plan, error, now)

    # -- messages in --------------------------------------------------------------------------

    def receive(self, message: m.ToWorker, now: int) -> None:
        """Take a message at any time, also while a step is in flight."""
        match message:
            case m.Submit(request):
                self._submit(request, now)
            case m.Cancel(id, reason, choice):
                self.roster.cancel(id, reason, now, choice)
            case m.Recall(id):
                self.roster.hand_back(id, "recalled", now)
            case m.Hold():
                self._hold(message)
            case m.Release(hold_id):
                self.holds.release(hold_id)
            case m.Configure(changes):
                self._configure(changes)
            case m.Ballast(blocks):
                self.memory.set_ballast(blocks, now)
            case m.Clear():
                self._clear()
            case m.LoadAdapter(digest, folder):
                self.adapters.know(digest, folder)
            case m.UnloadAdapter(digest):
                self.adapters.forget(digest)
            case m.Drain():
                self.draining = True
                for id, _ in list(self.scheduler.waiting):
                    self.roster.hand_back(id, "draining", now)
            case m.AskAudit(ask_id):
                self._outbox.messages.append(m.AuditReport(ask_id, self.audit()))
        self._outbox.gather()

    def _submit(self, request: Request, now: int) -> None:
        self._ack += 1
        if self.draining or request.id in self.roster.active:
            self.roster.refuse(request, "draining" if self.draining else "duplicate")
            return
        truth = WorkerTruth(self.index, self.incarnation, self.epoch, prompt=len(request.tokens))
        sequence = Sequence.first_of(Job(request, now, truth), self.block_size)
        problem = unservable(request, self.max_model_len, self.pool.size, self.block_size, self._vocabulary)
        problem = problem or self.adapters.problem(request.adapter)
        ends_at_once = problem is not None or self.roster.cancelled_early(request.id)
        if not ends_at_once and self._backlog_full(sequence):
            self.roster.refuse(request, "backlog")
            return
        self.roster.take(sequence, problem, now)

    def _backlog_full(self, sequence: Sequence) -> bool:
        """Beyond twice max(1 request, half a second of prefill), the request included (F29)."""
        if len(self.scheduler.waiting) < 2:
            return False
        cost, chunk = self.config.cost, self.config.scheduler.prefill_chunk
        rate = self.steps.busy.rates()[0] or chunk / (cost.a + cost.b * chunk)
        return self.scheduler.backlog_tokens + self.memory.uncached(sequence) > 2 * BACKLOG_S * rate

    def _hold(self, hold: m.Hold) -> None:
        try:
            self.holds.add(hold)
        except ValueError as error:  # the gateway checks phases; a wrong one must not end the process
            log.error("worker %d: %s", self.index, error)

    def _configure(self, changes: dict[str, object]) -> None:
        try:
            config = apply_changes(self.config, changes)
        except ValueError as error:  # the gateway checks changes; wrong ones must not end the process
            log.error("worker %d keeps its configuration: %s", self.index, error)
            return
        switched_off = self.config.cache.enabled and not config.cache.enabled
        self.scheduler.configure(config)
        self.accounts.configure(config)
        if switched_off:
            self._clear()

    def _clear(self) -> None:
        """Drop all digests and begin a new epoch; running requests compute on, but publish no more."""
        self._outbox.gather()
        self.memory.clear(self.scheduler.running.values())
        self._outbox.begin_epoch()
        self._outbox.gather()

    # -- messages out -------------------------------------------------------------------------

    def take_outbox(self) -> list[m.FromWorker]:
        """Messages to the gateway since the last call, in order."""
        return self._outbox.take()

    def hello(self) -> m.Hello:
        return m.Hello(
            self.index,
            self.incarnation,
            self.epoch,
            self.pool.size,
            self.block_size,
            self.max_model_len,
            self.cache.below.sizes.block_bytes,
        )

    def heartbeat(self, now: int) -> m.Heartbeat:
        """State, load and a snapshot of the meter, true at ``now``."""
        started = self.steps.started
        self._gauges.set(self.scheduler, self.epoch, not self.draining, started, now)
        return m.Heartbeat(
            self.incarnation,
            self.epoch,
            self.steps.number,
            started,
            "draining" if self.draining else "ready",
            self.load,
            self.meter.snapshot(),
        )

    @property
    def load(self) -> m.Load:
        running = self.scheduler.running.values()
        prefill_rate, decode_rate = self.steps.busy.rates()
        prices = self.memory.transfers.prices
        return m.Load(
            running=len(running),
            waiting=len(self.scheduler.waiting),
            prefill_tokens=self.scheduler.backlog_tokens
            + sum(max(0, s.prompt - s.computed) for s in running),
            decode_blocks=self.pool.referenced - len(self.memory.ballast),
            free_blocks=self.pool.free,
            ack=self._ack,
            prefill_rate=prefill_rate,
            decode_rate=decode_rate,
            factors=(prices.computing_factor, prices.host.now, prices.disk.now),
        )

    def audit(self) -> dict[str, object]:
        """Invariants K1 to K9 with evidence; violations are counted, never fatal (ENGINE 15)."""
        report = audit(self.scheduler, self.roster.taken, self.roster.ended, self.roster.handed_back)
        for violation in report["violations"]:
            log.error("invariant broken on worker %d: %s", self.index, violation)
            self.meter.inc("headrace_engine_invariant_violations_total", rule=violation.split(":")[0])
        return report
