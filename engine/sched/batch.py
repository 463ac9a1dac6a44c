"""Who waits and who runs on a worker, and every way from the one to the other (ENGINE 5 and 6)::

add ──> waiting ──enter──> running ──> remove
           ^                 │ ├─ fork: the other choices of a request begin to run
           └─────────────────┘ └─ hold_blocks: for the next tokens, preempting others if it must
            preempt; loaded, if a transfer has failed
"""

from __future__ import annotations

from collections import OrderedDict

from engine.config import EngineConfig
from engine.sched import victims
from engine.sched.accounts import Accounts
from engine.sched.adapters import Adapters
from engine.sched.capacity import Capacity
from engine.sched.holds import Holds
from engine.sched.lockstep import Lockstep
from engine.sched.memory import Memory
from engine.sched.outlook import FIRST_RATIO, Outlook
from engine.sched.sequence import Key, Sequence, State
from engine.sched.step import Step


class Batch:
    """Waiting and running sequences of one worker, and their blocks.

    Each is in one of the two (invariant K6); the order of ``waiting`` is that of dispatch, but for victims,
    and that of ``running`` is the order of admission.
    """

    def __init__(self, config: EngineConfig, memory: Memory, holds: Holds, accounts: Accounts) -> None:
        self.config = config
        self.memory = memory
        self.holds = holds
        self.accounts = accounts
        self.outlook = Outlook(accounts.lengths)
        self.capacity = Capacity(memory, self.outlook)
        self.adapters = Adapters(config.max_adapters)
        self.waiting: OrderedDict[Key, Sequence] = OrderedDict()
        self.running: dict[Key, Sequence] = {}
        self.lockstep = Lockstep(memory.cache.block_size)
        self.backlog_tokens = 0
        """Sum of the estimates of waiting sequences."""
        self.exhausted: list[Sequence] = []
        """Alone and out of blocks: the caller ends them with ``length``."""
        self._admissions = 0

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from the next step on. A new policy of admission begins without experience."""
        if config.admission.policy != self.config.admission.policy:
            self.outlook.ratio = FIRST_RATIO
        self.config = config
        self.memory.configure(config)

    def add(self, sequence: Sequence) -> None:
        """Append a fresh sequence to the backlog."""
        sequence.estimate = self.memory.uncached(sequence)
        self.waiting[sequence.key] = sequence
        self.backlog_tokens += sequence.estimate

    def remove(self, sequence: Sequence, now: int, fence: int | None = None) -> None:
        """Take a sequence out for good, wherever it is; its blocks come free behind ``fence``."""
        sequence.step_out()
        if sequence.state is State.WAITING:
            del self.waiting[sequence.key]
            self.backlog_tokens -= sequence.estimate
        else:
            del self.running[sequence.key]
            self.memory.leave(sequence, now, fence)
        self.memory.transfers.forget(sequence)
        sequence.state = State.FINISHED

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """The other choices of a request whose prefill has just ended: they run from now on, beyond
        ``max_running`` if need be."""
        forks = [self.memory.fork(sequence, choice) for choice in range(1, sequence.request.n)]
        for fork in forks:
            fork.order = self._admissions = self._admissions + 1
            self.running[fork.key] = fork
        return forks

    def enter(self, sequence: Sequence, now: int) -> bool:
        """From the backlog into the batch: check capacity, take the hits and allocate, or nothing (E23)."""
        match = self.capacity.fits(sequence, self.running.values())
        if match is None or not self.adapters.enter(sequence.request.adapter, self.running.values()):
            return False
        path = self.memory.transfers.choose(sequence, match)
        self.accounts.looked_up(sequence, match, path)
        self.memory.take(sequence, match, now, path)
        if sequence.loading is None:
            self.accounts.admitted(sequence, self.config.cache.enabled)
        del self.waiting[sequence.key]
        self.backlog_tokens -= sequence.estimate
        self.running[sequence.key] = sequence
        sequence.state = State.RUNNING
        sequence.order = self._admissions = self._admissions + 1
        sequence.served = -1
        sequence.lacks_since = None
        return True

    # -- out of blocks ------------------------------------------------------------------------

    def hold_blocks(self, sequence: Sequence, tokens: int, planned: Step, now: int) -> bool:
        """Make the table cover the next ``tokens`` positions, preempting others if it must (E26)."""
        pool = self.memory.pool
        while missing := self.memory.grow(sequence, tokens, now):
            if pool.free + pool.fenced >= missing or not self._may_preempt:
                return False  # blocks come free by themselves: no victim
            if len(self.running) == 1:
                self.exhausted.append(sequence)
                return False
            victim = victims.choose(self.running.values(), self.exhausted)
            if victim is None or (victim is sequence and self._unheld() == 1):
                return False  # the others are paused and keep their blocks
            self.preempt(victim, planned, now)
            if victim is sequence:
                return False
        return True

    def _unheld(self) -> int:
        return sum(not s.paused for s in self.running.values())

    @property
    def _may_preempt(self) -> bool:
        """With ``none`` only while more is promised than there is: not all were let in by ``lifetime``."""
        return self.config.preemption != "none" or self.memory.overcommitted

    def preempt(self, victim: Sequence, planned: Step, now: int, cause: str = "memory") -> None:
        """Take it out of the batch and put it at the front of its class (E27)."""
        planned.take_back(victim)
        planned.preempted = True
        self.memory.set_aside(victim, now)
        self._put_back(victim)
        self.accounts.preempted(victim, cause)
        if cause == "memory":
            self.outlook.preempted(self.running.values())

    def loaded(self, sequence: Sequence, now: int) -> None:
        """It need not wait aside any longer: it runs on, or what it lacks has to be computed (E45)."""
        if self.memory.loaded(sequence, now):
            self.accounts.admitted(sequence, self.config.cache.enabled)
            if self.holds.waiting:
                self.holds.reached(sequence, "admitted", now)
            return
        self.memory.leave(sequence, now)
        sequence.computed = sequence.published = 0
        self.accounts.put_back(sequence)
        self._put_back(sequence)

    def _put_back(self, victim: Sequence) -> None:
        """From the batch, where it holds nothing any more, to the front of its class in the backlog."""
        del self.running[victim.key]
        victim.state = State.WAITING
        victim.estimate = victim.left - (victim.swapped.computed if victim.swapped else 0)
        self.backlog_tokens += victim.estimate
        ahead = [s for s in self.waiting.values() if s.request.rank < victim.request.rank]
        self.waiting[victim.key] = victim
        self.waiting.move_to_end(victim.key, last=False)
        for other in reversed(ahead):
            self.waiting.move_to_end(other.key, last=False)
