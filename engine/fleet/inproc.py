"""Workers in this process, for virtual time: real Workers, a loop's sleep instead of computing.

A worker here can die, stand still and come back as a process can: what it holds is gone with it, what it
was about to say is never heard, and its next life begins after a backoff and its load time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.config import EngineConfig
from engine.fleet.delay import Wire
from engine.kv.disk import break_disk
from engine.messages import BreakDisk, Failed, FromWorker, ToWorker
from engine.runner.base import Runner
from engine.worker import Worker

EPOCHS_PER_LIFE = 1_000_000
"""Epochs of a life begin above all of the one before (ENGINE E44)."""
MAX_BACKOFF_S = 30.0

log = logging.getLogger(__name__)


class _Life:
    """One incarnation of one worker: its state machine, its step loop, its heartbeat."""

    def __init__(
        self,
        pool: InprocPool,
        index: int,
        number: int,
        say: Callable[[int, FromWorker], None],
        died: Callable[[int, str], None],
    ) -> None:
        config, self._clock = pool.config, pool.clock
        self._runner = pool.make_runner(index)
        self._config = config
        self.index = index
        self.incarnation = f"w{index}-{number}"
        self._died = died
        self.worker = Worker(
            config,
            index,
            self.incarnation,
            eos_ids=self._runner.eos_ids,
            max_positions=self._runner.max_positions,
            vocabulary=self._runner.vocabulary,
            kv_bytes_per_token=self._runner.kv_bytes_per_token,
            epoch=number * EPOCHS_PER_LIFE,
        )
        slots = self.worker.cache.below.sizes.slots
        self._runner.allocate(self.worker.pool.size, config.memory.block_size, slots)
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._wake = asyncio.Event()
        self._inbox: deque[ToWorker] = deque()
        self._out: Wire[FromWorker] = Wire(lambda message: say(index, message), pool.latency, self._clock)
        self._in: Wire[ToWorker] = Wire(self._receive, pool.latency, self._clock)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def frozen(self) -> bool:
        return not self._thawed.is_set()

    def begin(self) -> None:
        self._out.put(self.worker.hello())
        self._tasks = [asyncio.create_task(self._step_for_ever()), asyncio.create_task(self._beat_for_ever())]
        for task in self._tasks:
            task.add_done_callback(self._crashed)

    async def end(self) -> None:
        """Nothing of it acts or is heard after this."""
        self._in.cut()
        self._out.cut()
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _crashed(self, task: asyncio.Task[None]) -> None:
        """A process would have died of this."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("worker %d crashed", self.index, exc_info=error)
            self._died(self.index, f"crashed: {error!r}")

    def send(self, message: ToWorker) -> None:
        self._in.put(message)

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()
        while self._inbox:
            self._receive(self._inbox.popleft())

    def _receive(self, message: ToWorker) -> None:
        if self.frozen:
            self._inbox.append(message)
            return
        if isinstance(message, BreakDisk):
            break_disk(self._runner, message.fault)
        self.worker.receive(message, self._clock())
        self._ship()
        self._wake.set()

    def _ship(self) -> None:
        for message in self.worker.take_outbox():
            self._out.put(message)
            if isinstance(message, Failed):
                asyncio.get_running_loop().call_soon(self._died, self.index, message.reason)

    async def _step_for_ever(self) -> None:
        while True:
            await self._thawed.wait()
            self._wake.clear()
            plan = self.worker.plan(self._clock())
            self._ship()
            if plan is None:
                await self._idle()
                continue
            try:
                result = self._runner.execute(plan)
            except Exception as error:  # E16: the step fails, the worker says so and goes on
                log.warning("worker %d, step %d failed: %s", self.index, plan.step, error)
                await asyncio.sleep(self._config.cost.a)
                await self._thawed.wait()
                self.worker.step_failed(plan, error, self._clock())
            else:
                await asyncio.sleep(result.duration or 0.0)
                await self._thawed.wait()
                self.worker.commit(plan, result, self._clock())
            self._ship()

    async def _idle(self) -> None:
        """Until a message comes, or the worker itself wants to look again."""
        due = self.worker.next_wakeup
        if due is None:
            await self._wake.wait()
            return
        delay = max(0, due - self._clock()) / 1e9
        handle = asyncio.get_running_loop().call_later(delay, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            handle.cancel()

    async def _beat_for_ever(self) -> None:
        while True:
            await self._thawed.wait()
            self._out.put(self.worker.heartbeat(self._clock()))
            await asyncio.sleep(self._config.health.heartbeat)


class InprocPool:
    """A WorkerPool without processes. ``load_s`` is what a worker needs to load and warm up,
    ``latency`` (s) what a message takes each way."""

    def __init__(
        self,
        config: EngineConfig,
        clock: Callable[[], int],
        make_runner: Callable[[int], Runner],
        load_s: float = 1.0,
        latency: float = 0.0,
    ) -> None:
        self.config = config
        self.clock = clock
        self.make_runner = make_runner
        self.latency = latency
        self._load_s = load_s
        self._lives: dict[int, _Life] = {}
        self._numbers = dict.fromkeys(range(config.workers), 0)
        self._deaths: dict[int, deque[int]] = {worker: deque() for worker in range(config.workers)}
        self._births: dict[int, asyncio.Task[None]] = {}
        self._on_message: Callable[[int, FromWorker], None] = lambda worker, message: None
        self._on_lost: Callable[[int, str], None] = lambda worker, reason: None

    async def start(
        self, on_message: Callable[[int, FromWorker], None], on_lost: Callable[[int, str], None]
    ) -> None:
        """Begin to load every worker; each says Hello when it is warm."""
        self._on_message, self._on_lost = on_message, on_lost
        for worker in self._numbers:
            self._births[worker] = asyncio.create_task(self._bear(worker, 0.0))

    def send(self, worker: int, message: ToWorker) -> None:
        """Silently nothing if the worker is gone."""
        life = self._lives.get(worker)
        if life is not None:
            life.send(message)

    async def kill(self, worker: int) -> None:
        """It is gone at once, with all that it held and was about to say. Nothing if it is gone already."""
        await self._die(worker, "killed")

    async def freeze(self, worker: int) -> None:
        """It computes nothing, hears nothing and says nothing; raises RuntimeError if it is gone."""
        self._living(worker).freeze()

    async def thaw(self, worker: int) -> None:
        """It goes on where it stood. Nothing if it was replaced meanwhile."""
        life = self._lives.get(worker)
        if life is not None:
            life.thaw()

    def describe(self) -> list[dict[str, Any]]:
        """One row per worker; there is no process, so ``pid`` is None."""
        return [
            {
                "worker": worker,
                "pid": None,
                "incarnation": life.incarnation if life else None,
                "alive": life is not None,
                "frozen": life is not None and life.frozen,
            }
            for worker, life in ((worker, self._lives.get(worker)) for worker in self._numbers)
        ]

    async def stop(self) -> None:
        """End every worker and every one that is being born."""
        births, lives = list(self._births.values()), list(self._lives.values())
        self._births.clear()
        self._lives.clear()
        for birth in births:
            birth.cancel()
        await asyncio.gather(*births, return_exceptions=True)
        for life in lives:
            await life.end()

    def _living(self, worker: int) -> _Life:
        if worker not in self._lives:
            raise RuntimeError(f"worker {worker} is not running")
        return self._lives[worker]

    async def _bear(self, worker: int, backoff: float) -> None:
        await asyncio.sleep(backoff + self._load_s)
        self._numbers[worker] += 1
        try:
            life = _Life(self, worker, self._numbers[worker], self._on_message, self._failed)
        except Exception as error:  # a process that cannot load its model ends
            log.error("worker %d could not load: %s", worker, error)
            self._bear_again(worker)
            return
        self._lives[worker] = life
        life.begin()

    def _failed(self, worker: int, reason: str) -> None:
        self._births[worker] = asyncio.create_task(self._die(worker, reason))

    async def _die(self, worker: int, reason: str) -> None:
        life = self._lives.pop(worker, None)
        if life is None:
            return
        await life.end()
        self._on_lost(worker, reason)
        self._bear_again(worker)

    def _bear_again(self, worker: int) -> None:
        backoff = self._backoff(worker)
        if backoff is None:
            log.error("worker %d died too often and is not started again", worker)
            return
        self._births[worker] = asyncio.create_task(self._bear(worker, backoff))

    def _backoff(self, worker: int) -> float | None:
        """F39: seconds until it is started again, doubling; None after too many deaths in 60 s."""
        now, deaths = self.clock(), self._deaths[worker]
        while deaths and now - deaths[0] > 60_000_000_000:
            deaths.popleft()
        deaths.append(now)
        if len(deaths) > self.config.health.max_restarts_per_minute:
            return None
        return min(self.config.health.restart_backoff * 2.0 ** (len(deaths) - 1), MAX_BACKOFF_S)
