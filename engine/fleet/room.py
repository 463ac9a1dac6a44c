"""What fits on which worker now, and how much each request is promised there (FLEET F20, F29)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.config import EngineConfig
from engine.fleet.health import WorkerHealth
from engine.fleet.ledger import Ledger
from engine.fleet.run import Run
from engine.request import Request
from engine.sched.admission import headroom, unit_blocks
from engine.sched.rates import OutputLengths, Rates

BACKLOG_S = 0.5


class Room:
    """Looks at reservations, not at what workers say. ``new_tokens`` (request, worker) is F21's ``new``: what
    of a prompt keeps the worker busy, in tokens."""

    def __init__(
        self,
        config: EngineConfig,
        health: Mapping[int, WorkerHealth],
        ledger: Ledger,
        rates: Rates,
        outputs: OutputLengths,
        new_tokens: Callable[[Request, int], int],
    ) -> None:
        self.config = config
        self.on_worker: dict[int, dict[int, Run]] = {worker: {} for worker in health}
        self.refusing: set[int] = set()
        """Workers that handed something back and have shown no progress since."""
        self._health = health
        self._ledger = ledger
        self._rates = rates
        self._outputs = outputs
        self._new_tokens = new_tokens

    def fits(self, run: Run, worker: int, now: int) -> bool:
        """False if the worker is full for this request (F20)."""
        load = self._ledger.load(worker)
        if self.saturated(worker) or not self._health[worker].breaker.allows(now):
            return False
        prefill, _, whole = self.promise(run, worker)
        if load.backlog_requests and load.backlog_tokens + prefill > self._backlog(worker):
            return False
        hello = self._health[worker].hello
        if hello is None or self.config.admission.policy != "lifetime":
            return hello is not None
        new = whole - sum(1 for digest in self.shared(run) if digest in load.shared)
        free = hello.blocks - headroom(self.config.admission, hello.blocks, load.requests)
        return load.blocks + new <= free

    def saturated(self, worker: int) -> bool:
        """Full for whatever request: dispatched ones at their limit, or backlog at its bound."""
        load = self._ledger.load(worker)
        return (
            load.requests >= self.config.router.max_dispatched
            or worker in self.refusing
            or (load.backlog_requests > 0 and load.backlog_tokens >= self._backlog(worker))
        )

    def may_preempt(self, run: Run, worker: int) -> bool:
        """True if less urgent requests run there, and without them there would be room (E26)."""
        lower = [other for other in self.less_urgent(run, worker) if other.started]
        load, hello = self._ledger.load(worker), self._health[worker].hello
        if not lower or hello is None or worker in self.refusing:
            return False
        prefill, _, whole = self.promise(run, worker)
        if load.backlog_requests and load.backlog_tokens + prefill > 2 * self._backlog(worker):
            return False
        theirs = sum(self.promise(other, worker)[2] for other in lower)
        return load.blocks - theirs + whole <= hello.blocks

    def less_urgent(self, run: Run, worker: int) -> list[Run]:
        """Requests of lower classes that are there."""
        return [other for other in self.on_worker[worker].values() if other.entry.rank > run.entry.rank]

    def promise(self, run: Run, worker: int) -> tuple[int, int, int]:
        """(new prefill tokens, blocks of prompt + E[out], blocks of prompt + out_max), of all its choices."""
        request, block_size = run.request, self.config.memory.block_size
        prompt, n = len(request.tokens), request.n
        expected = self._outputs.expected(run.entry.class_, request.out_max)
        return (
            self._new_tokens(request, worker),
            unit_blocks(prompt, prompt + round(expected), block_size, n),
            unit_blocks(prompt, prompt + request.out_max, block_size, n),
        )

    def shared(self, run: Run) -> tuple[bytes, ...]:
        """Digests that it may have in common with others."""
        return run.request.digests if self.config.cache.enabled else ()

    def _backlog(self, worker: int) -> float:
        """Most prompt tokens of more than one request that may be dispatched and not started (F29)."""
        return BACKLOG_S * self._rates.prefill(worker)
