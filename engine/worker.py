"""The step loop's state machine: ``receive``, ``plan``, (execute), ``commit``, told the time, pure.

Two drivers run it: a process with sockets and the torch runner, and the virtual-clock loop with the
simulated one. Between ``plan`` and ``commit`` a step is in flight: messages may arrive then, and a request
that ends then gives its blocks back behind a fence that the commit lifts (ENGINE E34, E35)::

    receive* -> plan -> receive* -> commit | step_failed -> receive* -> plan ...
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine import messages as m
from engine.config import EngineConfig
from engine.kv.blocks import BlockPool
from engine.kv.prefix_cache import PrefixCache
from engine.request import Finish, Request, Tokens, WorkerTruth
from engine.runner.base import Row, StepPlan, StepResult
from engine.sched.accounts import Accounts
from engine.sched.admission import unservable
from engine.sched.audit import audit
from engine.sched.controls import apply_changes
from engine.sched.gauges import Gauges
from engine.sched.holds import Holds
from engine.sched.memory import Memory
from engine.sched.rates import BusyWindow
from engine.sched.roster import Roster
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import Sequence, State
from engine.telemetry import Meter

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""So many failed steps in a row, and the worker gives up (ENGINE E16)."""
NO_NUMBER = "the model's output for this request is no number"
BACKLOG_S = 0.5
"""Seconds of prefill that a worker's backlog should hold at most; it refuses beyond twice that (F29)."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step being executed: its plan, whose its rows are, and when it began (ns)."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    started: int


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
        self.epoch = epoch
        self.meter = meter if meter is not None else Meter(config, "engine")
        self.block_size = config.memory.block_size
        self.pool = BlockPool(blocks, config.cache.eviction)
        self.cache = PrefixCache(
            self.pool, self.block_size, self.meter, verify_tokens=verify_tokens, digest_bits=digest_bits
        )
        self.holds = Holds()
        self.accounts = Accounts(self.meter, self.cache)
        self.memory = Memory(config, self.pool, self.cache, self.meter)
        self.scheduler = Scheduler(config, self.memory, self.holds, self.accounts)
        self._outbox: list[m.FromWorker] = []
        self.roster = Roster(self.scheduler, self.holds, self.accounts, self._outbox)
        self.draining = False
        context = min(max_positions, blocks * self.block_size)
        self.max_model_len = context if config.max_model_len is None else min(context, config.max_model_len)
        self._eos_ids, self._vocabulary = eos_ids, vocabulary
        self._gauges = Gauges(self.meter)
        self._busy = BusyWindow(config.cost)
        self._flight: _Flight | None = None
        self._step = self._failures = self._event_batches = self._ack = 0

    @property
    def config(self) -> EngineConfig:
        """The effective configuration."""
        return self.scheduler.config

    @property
    def idle(self) -> bool:
        """Nobody waits or runs here and no step is in flight."""
        return not self.roster.active and self._flight is None

    @property
    def next_wakeup(self) -> int | None:
        """When ``plan`` must be called even if no message comes: a life, a hold or a deadline ends."""
        times = (self.pool.next_expiry(), self.holds.next_lapse, self.roster.next_deadline)
        return min((time for time in times if time is not None), default=None)

    def tokens_of(self, id: int) -> Tokens[int] | None:
        """Prompt and output so far of a request that is here."""
        sequence = self.roster.active.get(id)
        return sequence.tokens if sequence else None

    # -- one step -------------------------------------------------------------------------------

    def plan(self, now: int) -> StepPlan | None:
        """The next step, or None if nobody can run now. Call it after messages, after each commit and
        at ``next_wakeup``."""
        assert self._flight is None, "a step is in flight"
        self.holds.lapse(now)  # E20 (1); cancels and changes were applied when they came
        self.cache.expire(now)
        self.roster.expire(now)
        chunks = self._schedule(now)  # (2) to (5)
        self._report()
        if not chunks:
            self._busy.end(now)
            return None
        self._busy.begin(now)
        plan = StepPlan(self._step, tuple(sequence.row(tokens) for sequence, tokens in chunks.items()))
        self._flight = _Flight(plan, tuple(chunks), now)
        self.roster.departed(self._step)
        self._step += 1
        for sequence in chunks:
            self.accounts.scheduled(sequence, now)
        return plan

    def _schedule(self, now: int) -> dict[Sequence, int]:
        """Tokens per sequence. Who is alone and out of blocks ends here (ENGINE E26)."""
        chunks: dict[Sequence, int] = {}
        for _ in range(3):  # ending or preempting somebody may empty a plan that was full before
            chunks = self.scheduler.plan(now, self._step)
            while self.scheduler.exhausted:
                self.roster.finish(self.scheduler.exhausted.pop(), Finish.LENGTH, now)
            if chunks or not self.scheduler.stirred:
                break
        return chunks

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        """Apply a finished step: count, publish, append tokens, end who is done (ENGINE E20 (7), E16)."""
        sequences = self._land(plan, now)
        self._failures = 0
        live: list[tuple[Sequence, Row, int | None]] = []
        for index, (sequence, row, token) in enumerate(zip(sequences, plan.rows, result.tokens, strict=True)):
            if sequence.state is not State.RUNNING:
                self.accounts.late(token)
            elif index in result.failed:
                self.roster.finish(sequence, Finish.ERROR, now, NO_NUMBER)
            else:
                self.accounts.computed(sequence, row, plan)
                self.memory.publish(sequence)
                live.append((sequence, row, token))
        self._flush_events()
        for sequence, row, token in live:
            self._deliver(sequence, row, token, now)
        self._report()

    def step_failed(self, plan: StepPlan, error: BaseException | str, now: int) -> None:
        """The runner raised: publish nothing, end the step's requests with ``error`` (ENGINE E16)."""
        sequences = self._land(plan, now)
        self._failures += 1
        self.meter.inc("headrace_engine_step_failures_total")
        for sequence in sequences:
            if sequence.state is State.RUNNING:
                self.roster.finish(sequence, Finish.ERROR, now, f"step_failed: {error}")
        if self._failures >= FAILURES_IN_A_ROW:
            self._outbox.append(m.Failed(f"{self._failures} steps in a row failed, the last with: {error}"))
        self._report()

    def _land(self, plan: StepPlan, now: int) -> tuple[Sequence, ...]:
        """The step in flight is over: its writes are done, so its fences open."""
        flight = self._flight
        assert flight is not None, "no step is in flight"
        assert flight.plan is plan, "not the step in flight"
        self._flight = None
        self.pool.applied(plan.step, now)
        self.accounts.stepped(plan, flight.started, now)
        self.roster.landed(flight.sequences, now)
        prefill = sum(len(row.tokens) for row in plan.rows if not row.is_decode)
        self._busy.computed(now, prefill, plan.tokens - prefill)
        return flight.sequences

    def _deliver(self, sequence: Sequence, row: Row, token: int | None, now: int) -> None:
        """Tell how far it came; append what it drew, and end it if that was its last token."""
        request = sequence.request
        if not row.is_decode:
            sequence.chunks += 1
            computed = min(sequence.computed, sequence.prompt)
            self._outbox.append(m.Progress(request.id, request.attempt, computed))
        if token is not None:
            sequence.tokens.append(token)
            self.accounts.generated(sequence, now)
            self._outbox.append(m.TokensOut(request.id, request.attempt, (token,)))
            if token in self._eos_ids and not request.sampling.ignore_eos:
                self.roster.finish(sequence, Finish.STOP, now)
            elif sequence.generated >= request.out_max:
                self.roster.finish(sequence, Finish.LENGTH, now)
        if not row.is_decode and self.holds.waiting and sequence.state is State.RUNNING:
            self.holds.reached(sequence, f"prefill:{sequence.chunks}", now)

    # -- messages in --------------------------------------------------------------------------

    def receive(self, message: m.ToWorker, now: int) -> None:
        """Take a message at any time, also while a step is in flight."""
        match message:
            case m.Submit(request):
                self._submit(request, now)
            case m.Cancel(id, reason):
                self.roster.cancel(id, reason, now)
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
            case m.Drain():
                self.draining = True
                for id in list(self.scheduler.waiting):
                    self.roster.hand_back(id, "draining", now)
            case m.AskAudit(ask_id):
                self._outbox.append(m.AuditReport(ask_id, self.audit()))
        self._flush_events()

    def _submit(self, request: Request, now: int) -> None:
        self._ack += 1
        if self.draining or request.id in self.roster.active:
            self.roster.refuse(request, "draining" if self.draining else "duplicate")
            return
        truth = WorkerTruth(self.index, self.incarnation, self.epoch, prompt=len(request.tokens))
        sequence = Sequence(request, self.block_size, now, truth)
        problem = unservable(request, self.max_model_len, self.pool.size, self.block_size, self._vocabulary)
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
        rate = self._busy.rates()[0] or chunk / (cost.a + cost.b * chunk)
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
        if switched_off:
            self._clear()

    def _clear(self) -> None:
        """Drop all digests and begin a new epoch; running requests compute on, but publish no more."""
        self._flush_events()
        self.memory.clear(self.scheduler.running.values())
        self.epoch += 1
        self._event_batches = 0
        self._flush_events()

    # -- messages out -------------------------------------------------------------------------

    def take_outbox(self) -> list[m.FromWorker]:
        """Messages to the gateway since the last call, in order."""
        self._flush_events()
        outbox = self._outbox.copy()
        self._outbox.clear()  # the roster writes into this very list
        return outbox

    def _report(self) -> None:
        self._outbox += self.holds.take_reports()
        self._flush_events()

    def _flush_events(self) -> None:
        if events := self.cache.events.take():
            self._event_batches += 1
            self._outbox.append(m.KvEvents(self.epoch, self._event_batches, events))

    def hello(self) -> m.Hello:
        return m.Hello(
            self.index, self.incarnation, self.epoch, self.pool.size, self.block_size, self.max_model_len
        )

    def heartbeat(self, now: int) -> m.Heartbeat:
        """State, load and a snapshot of the meter, true at ``now``."""
        started = self._flight.started if self._flight else None
        self._gauges.set(self.scheduler, self.epoch, not self.draining, started, now)
        return m.Heartbeat(
            self.incarnation,
            self.epoch,
            self._step,
            started,
            "draining" if self.draining else "ready",
            self.load,
            self.meter.snapshot(),
        )

    @property
    def load(self) -> m.Load:
        running = self.scheduler.running.values()
        return m.Load(
            running=len(running),
            waiting=len(self.scheduler.waiting),
            prefill_tokens=self.scheduler.backlog_tokens
            + sum(max(0, s.prompt - s.computed) for s in running),
            decode_blocks=self.pool.referenced - len(self.memory.ballast),
            free_blocks=self.pool.free,
            ack=self._ack,
        )

    def audit(self) -> dict[str, object]:
        """Invariants K1 to K9 with evidence; violations are counted, never fatal (ENGINE 15)."""
        report = audit(self.scheduler, self.roster.taken, self.roster.ended, self.roster.handed_back)
        for violation in report["violations"]:
            log.error("invariant broken on worker %d: %s", self.index, violation)
            self.meter.inc("headrace_engine_invariant_violations_total", rule=violation.split(":")[0])
        return report
