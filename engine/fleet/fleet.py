"""The driver around the gateway: performs what it decides, over any pool of workers (backend.Backend).

Everything runs on one event loop; the loop's own clock is used for nothing but to be woken. The methods
are the HTTP layer's (admits, submit, cancel, wrote, not_ready, metrics, digests) and the admin door's verbs,
which raise ValueError (bad argument), LookupError (no such worker or hold) or RuntimeError.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from prometheus_client import PROCESS_COLLECTOR

from engine import messages as m
from engine.config import EngineConfig
from engine.exposition import exposition
from engine.fleet import report
from engine.fleet.adapters import read
from engine.fleet.audits import Audits
from engine.fleet.backend import Ask, Ended, Listener, WorkerPool
from engine.fleet.breaking import disk_fault
from engine.fleet.controls import changed, effective
from engine.fleet.door import Identity
from engine.fleet.gateway import Gateway
from engine.fleet.health import State
from engine.fleet.run import Emit, Send
from engine.request import Finish, Tokens, TruthRow
from engine.telemetry import Meter

log = logging.getLogger(__name__)


class Fleet:
    """A gateway, its workers, and whoever listens to its requests.

    ``clock`` gives ns on the clock that workers' times are on too. ``process_metrics`` adds this
    process's own figures to the metrics page; left off in virtual time, where a run must repeat.
    ``executor`` reads adapters off the loop. Raises ModelError for an adapter of ``config`` that cannot be
    served.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: WorkerPool,
        clock: Callable[[], int],
        identity: Identity | None = None,
        process_metrics: bool = False,
        executor: Executor | None = None,
    ) -> None:
        self.meter = Meter(config, "router", "fleet")
        self.gateway = Gateway(config, identity or Identity(config.model), self.meter)
        self._pool = pool
        self._clock = clock
        self._process_metrics = process_metrics
        self._executor = executor
        self._registering = asyncio.Lock()
        self._listeners: dict[int, Listener] = {}
        self._performing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None
        self._audits = Audits(pool.send)
        self._held: dict[int, list[asyncio.Future[None]]] = {}
        for name, folder in config.adapters.items():
            self.gateway.adapters.put(read(config, name, folder))

    async def start(self) -> None:
        """Start the workers. They are ready later: ask ``not_ready``."""
        await self._pool.start(self._on_message, self._on_lost)
        self._perform()

    async def stop(self) -> None:
        """End every open stream with a retriable error, then every worker."""
        for run in list(self.gateway.lives.runs.values()):
            self.gateway.abandon(run.id, "shutting_down", "the engine stops", self._clock())
        self._perform()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._pool.stop()

    # ---- the HTTP layer's

    def admits(self, class_: str, tenant: str = "default") -> None:
        """Raises Rejected if a request of this class and tenant would be refused whatever its prompt is."""
        self.gateway.admits(class_, tenant)

    def submit(self, ask: Ask, listener: Listener) -> tuple[int, int]:
        """Queue a request; returns (id, out_max). Raises Rejected."""
        before, began = self.gateway.decisions, self._clock()
        id, out_max = self.gateway.submit(ask, began)
        self._count_decisions(before, began)
        self._listeners[id] = listener
        # Nothing may reach the listener before the caller knows the id.
        asyncio.get_running_loop().call_soon(self._perform)
        return id, out_max

    def cancel(self, id: int, reason: Finish = Finish.CANCELLED, choice: int | None = None) -> None:
        """Idempotent."""
        self.gateway.cancel(id, self._clock(), reason, choice)
        self._perform()

    def wrote(self, id: int, now: int) -> None:
        """Output bytes of this request left towards the client."""
        self.gateway.wrote(id, now)

    def not_ready(self) -> tuple[str, int] | None:
        """Why no worker can serve now and after how many seconds to ask again; None when one can."""
        return self.gateway.door.not_ready(self.gateway.health.values())

    def metrics(self) -> bytes:
        """The text of /metrics, true at this moment."""
        report.set_gauges(self.gateway, self._clock())
        extra = PROCESS_COLLECTOR.collect() if self._process_metrics else ()
        workers = self.gateway.rotation.meters.snapshots()
        return exposition(self.gateway.config, workers, self.meter.snapshot(), extra)

    def digests(self, tokens: Tokens[int], tenant: str) -> Sequence[bytes]:
        """Digests of the full blocks of a prompt (ENGINE E8)."""
        return self.gateway.door.digests(tokens, tenant)

    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that a request may give as its model."""
        return self.gateway.adapters.names

    # ---- the admin door's

    async def config(self) -> dict[str, Any]:
        """All controls with their values, and the config id."""
        return {"config_id": self.gateway.lives.config_id, "config": effective(self.gateway.config)}

    async def configure(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change controls while everything runs (E50). All or nothing."""
        config, for_workers = changed(self.gateway.config, changes)
        self.gateway.configure(config, for_workers, self._clock())
        self._perform()
        return await self.config()

    async def state(self) -> dict[str, Any]:
        """Workers, queue and requests as they are now."""
        return report.state(self.gateway, self._pool.describe(), self._clock())

    async def audit(self) -> dict[str, Any]:
        """The invariants with evidence, of the gateway and of every worker that answers."""
        health = self.gateway.health
        audits = await self._audits.ask(w for w in health if health[w].state is not State.GONE)
        rows = [report.audited(worker, audits.get(worker)) for worker in self.gateway.health]
        return {"invariants": report.invariants(self.gateway, audits), "workers": rows}

    async def truth(self, after: int = 0) -> list[TruthRow]:
        """Finished truth rows with ``seq`` > ``after``."""
        return self.gateway.lives.truth.after(after)

    async def kill(self, worker: int) -> None:
        """SIGKILL, or its equal in virtual time."""
        await self._pool.kill(self._existing(worker))

    async def freeze(self, worker: int) -> None:
        await self._pool.freeze(self._existing(worker))

    async def thaw(self, worker: int) -> None:
        await self._pool.thaw(self._existing(worker))

    async def drain(self, worker: int) -> None:
        """Nothing new goes there; its backlog comes back; what runs ends (F43)."""
        self.gateway.drain(self._existing(worker), self._clock())
        self._perform()

    async def hold(self, phase: str, request: str | None = None, worker: int | None = None) -> int:
        """Arm a breakpoint (E48); returns its id. ``request`` is the client's request id."""
        if worker is not None:
            self._existing(worker)
        point = self.gateway.hold(phase, request, worker, self._clock())
        self._perform()
        return point.id

    async def held(self, hold_id: int, timeout: float) -> dict[str, Any] | None:
        """Wait until something is held there: ``{"request", "worker", "phase"}``; None after ``timeout``
        seconds, or when the hold is released."""
        point = self.gateway.holds.get(hold_id)
        if point is None:
            raise LookupError(f"there is no hold {hold_id}")
        if point.held is None and timeout > 0:
            arrival = asyncio.get_running_loop().create_future()
            self._held.setdefault(hold_id, []).append(arrival)
            await asyncio.wait([arrival], timeout=timeout)
        if point.held is None:
            return None
        return {"request": point.held.client_id, "worker": point.held_by, "phase": point.held.phase}

    async def release(self, hold_id: int) -> None:
        """Idempotent."""
        self.gateway.release(hold_id, self._clock())
        self._perform()

    async def pool(self, blocks: int) -> None:
        """Take ``blocks`` out of every worker's pool; 0 gives them back."""
        if blocks < 0:
            raise ValueError(f"blocks: {blocks} is less than 0")
        self._tell_all(m.Ballast(blocks))

    async def tier(self, disk: str | None) -> None:
        """From now on every worker's disk tier is ``full`` or ``corrupt``; None heals it."""
        self.gateway.break_disk(disk_fault(self.gateway.config, disk))
        self._perform()

    async def cache_reset(self) -> None:
        """Every worker drops its cached blocks; a new epoch begins."""
        self._tell_all(m.Clear())

    async def load_adapter(self, name: str, folder: str) -> dict[str, Any]:
        """Register the LoRA adapter in a PEFT folder, in place of what had this name (E39); requests that
        began with that keep it. Raises ModelError saying what does not fit, to the model or into memory."""
        async with self._registering:  # the next one must see what this one takes
            reading = partial(read, self.gateway.config, name, folder, self.gateway.adapters.sizes())
            if self._executor is None:
                adapter = reading()
            else:
                adapter = await asyncio.get_running_loop().run_in_executor(self._executor, reading)
            self.gateway.adapters.put(adapter)
        self._settle_adapters()
        return adapter.plain()

    async def unload_adapter(self, name: str) -> None:
        """New requests for it get a 404; who has it ends with it."""
        self.gateway.adapters.remove(name)
        self._settle_adapters()

    def _settle_adapters(self) -> None:
        self.gateway.tick(self._clock())
        self._perform()

    # ---- what happens

    def _on_message(self, worker: int, message: m.FromWorker) -> None:
        if isinstance(message, m.AuditReport):
            self._audits.answered(worker, message)
            return
        before, began = self.gateway.decisions, self._clock()
        self.gateway.on_message(worker, message, began)
        self._count_decisions(before, began)
        self._perform()

    def _on_lost(self, worker: int, reason: str) -> None:
        self.gateway.on_lost(worker, reason, self._clock())
        self._perform()

    def _on_timer(self) -> None:
        self._timer = None
        self.gateway.tick(self._clock())
        self._perform()

    def _perform(self) -> None:
        """Do what the gateway wants done. A listener may call back into the fleet: what follows from
        that is done by the call that is already at it, in order."""
        if self._performing:
            return
        self._performing = True
        try:
            while actions := self.gateway.take_actions():
                for action in actions:
                    if isinstance(action, Send):
                        self._pool.send(action.worker, action.message)
                    else:
                        self._tell(action)
        finally:
            self._performing = False
        self._wake_holders()
        self._arm()

    def _tell(self, emit: Emit) -> None:
        if isinstance(emit.event, Ended):
            listener = self._listeners.pop(emit.id, None)
        else:
            listener = self._listeners.get(emit.id)
        if listener is None:
            return
        try:
            listener(emit.event)
        except Exception:  # E2: one request ends, never the process
            log.exception("the listener of request %d failed", emit.id)
            self._listeners.pop(emit.id, None)
            self.gateway.cancel(emit.id, self._clock())

    def _arm(self) -> None:
        due = self.gateway.next_wakeup()
        if due is None or (self._timer is not None and self._timer_due == due):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, due - self._clock()) / 1e9
        self._timer, self._timer_due = asyncio.get_running_loop().call_later(delay, self._on_timer), due

    def _wake_holders(self) -> None:
        for hold_id in list(self._held):
            point = self.gateway.holds.get(hold_id)
            if point is None or point.held is not None:
                for arrival in self._held.pop(hold_id):
                    if not arrival.done():
                        arrival.set_result(None)

    def _tell_all(self, message: m.ToWorker) -> None:
        self.gateway.broadcast(message)
        self._perform()

    def _count_decisions(self, before: int, began: int) -> None:
        made = self.gateway.decisions - before
        for _ in range(made):
            self.meter.observe("headrace_router_decision_seconds", (self._clock() - began) / made / 1e9)

    def _existing(self, worker: int) -> int:
        if worker not in self.gateway.health:
            raise LookupError(f"there is no worker {worker}; there are {len(self.gateway.health)}")
        return worker
