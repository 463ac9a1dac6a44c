"""The load process: sockets, timers and the plan's due times; nothing that takes thought.

Started as ``python -m loadgen.process JOBFILE``. It starts its clerk (loadgen.clerk), which renders bodies
and makes records. It speaks JSON lines: on stdout ``{"event": "ready"}``, ``progress`` each second, then
``done`` with the client signals, or ``error``; on stdin it takes ``{"start": t0_ns}``, ``{"cancel": shot}``
and ``{"stop": true}``. A closed stdin means that whoever started it is gone, and stops it too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen import native
from loadgen.clerk_desk import ClerkDesk
from loadgen.client import WARM_BATCH, Address, Client
from loadgen.clock import monotonic, sleep_until
from loadgen.desk import HURRY_NS
from loadgen.driver import Driver
from loadgen.foresight import SPARE_DESCRIPTORS, raise_descriptor_limit
from loadgen.health import HealthMeter, driver_signals, freeze_heap
from loadgen.job import LoadJob
from loadgen.owncores import Rank, kept_awake
from loadgen.plan_io import read_shots

Emit = Callable[[dict[str, Any]], None]

OK, ERROR = 0, 3
_PROGRESS_NS = 1_000_000_000
_LINK_BYTES = 4 * 1024 * 1024
_MOST_UNSAID = 1000
"""Frames that may wait for a clerk that is the last one."""
_PLACE_S = 0.1


def load_process(job_file: str) -> int:
    """Run a job (LoadJob.as_dict in a JSON file) on an event loop of its own; returns the exit code."""
    try:
        job = LoadJob.of(json.loads(Path(job_file).read_text()))
        link, clerk = _clerk(job_file)
        with link:
            return _run_on_fast_loop(_LoadProcess(job, link, clerk, _emit).run())
    except (OSError, ValueError, TypeError) as error:
        _emit({"event": "error", "message": _words(error)})
        return ERROR


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _clerk(job_file: str) -> tuple[socket.socket, int]:
    """Start the clerk; our end of the socket to it, and its process. It ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LINK_BYTES)
        command = [sys.executable, "-m", "loadgen.clerk", job_file, str(theirs.fileno())]
        # It keeps our stdout open: who reads that sees its end only when the records are complete.
        clerk = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return ours, clerk.pid


class _LoadProcess:
    """One run of a job: what happens before, during and after the driver."""

    def __init__(self, job: LoadJob, link: socket.socket, clerk: int, emit: Emit) -> None:
        self._job = job
        self._own_cores = job.on_own_cores()
        self._link, self._clerk = link, clerk
        self._emit = emit
        self._interrupted = False
        self._driver: Driver | None = None
        self._lost: BaseException | None = None
        self._said: dict[str, Any] = {}
        self._commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def run(self) -> int:
        job = self._job
        files = raise_descriptor_limit()
        shots, phases, _ = read_shots(Path(job.plan), job.slice, prompts=False)
        self._rank = Rank(self._clerk, may_be_last=self._own_cores and not job.waits(shots))
        dialect = job.target.make()
        client = Client(Address.of(job.target.url), monotonic, job.target.tls(), job.connections)
        desk = ClerkDesk(self._link, self._clerk_lost)
        listener = asyncio.create_task(listen(self._commands))
        try:
            await _warm(client, job, files)
            await desk.ready
            freeze_heap()
            self._emit({"event": "ready", "kernel_stamps": client.kernel_stamps})
            t0 = job.t0_ns if job.t0_ns is not None else await self._told_to_start()
            if t0 is None:
                return OK
            self._driver = driver = Driver(shots, phases, desk, dialect, client, monotonic, t0, job.rules)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
            signals = await self._fire(driver, client, desk, t0, phases.window_ns)
            self._emit({"event": "done", "signals": signals, "interrupted": self._interrupted, **self._said})
            return OK
        finally:
            listener.cancel()
            desk.close()
            await client.close()

    async def _told_to_start(self) -> int | None:
        """t0, or None if told to stop instead."""
        while True:
            command = await self._commands.get()
            if "start" in command:
                return int(command["start"])
            if command.get("stop"):
                return None

    async def _fire(
        self, driver: Driver, client: Client, desk: ClerkDesk, t0: int, window: tuple[int, int]
    ) -> dict[str, Any]:
        """The load itself, with everything that watches it; returns the client signals."""
        meter = HealthMeter(monotonic)
        helpers = [
            asyncio.create_task(self._report(driver, desk, t0)),
            asyncio.create_task(self._obey(driver)),
            asyncio.create_task(_measure(meter, t0, window)),
        ]
        if self._job.block is not None:
            helpers.append(asyncio.create_task(_block(*self._job.block)))
        helpers.append(asyncio.create_task(_place(self._rank, driver, desk)))
        gc.disable()  # nothing here makes cycles; what the collector would find can wait (C37)
        try:
            if self._lost is not None:
                raise self._lost
            with kept_awake(self._own_cores) as awake:
                await driver.run(client.alarm)
            await _end([helpers.pop()])
            self._said = await desk.finish()
        finally:
            gc.enable()
            await _end(helpers)
        self._emit(_progress(driver, desk, t0))
        signals = driver_signals(driver, self._said, meter.signals()).as_dict()
        stamp = "kernel" if client.kernel_stamps else "user"
        return signals | {"stamp": stamp, "reads": native.reads(), "awake": awake}

    def _clerk_lost(self, error: BaseException) -> None:
        self._lost = error
        if self._driver is not None:
            self._driver.fail(error)

    async def _report(self, driver: Driver, desk: ClerkDesk, t0: int) -> None:
        """Progress to whoever watches, once a second; written by a thread, since a pipe may be full."""
        due, loop = monotonic(), asyncio.get_running_loop()
        while True:
            due += _PROGRESS_NS
            await sleep_until(due, monotonic)
            await loop.run_in_executor(None, self._emit, _progress(driver, desk, t0))

    async def _obey(self, driver: Driver) -> None:
        while True:
            command = await self._commands.get()
            if "cancel" in command:
                driver.cancel(int(command["cancel"]))
            elif command.get("stop"):
                self._stop()

    def _stop(self) -> None:
        self._interrupted = True
        if self._driver is not None:
            self._driver.stop()


def _progress(driver: Driver, desk: ClerkDesk, t0: int) -> dict[str, Any]:
    snapshot = driver.counts.snapshot(monotonic() - t0, driver.in_flight.now, desk.heard)
    return {"event": "progress", **asdict(snapshot)}


async def _warm(client: Client, job: LoadJob, files: int | None) -> None:
    """As many connections as are to be warm and may be open (``files``; None = no limit)."""
    wanted = job.warm_connections
    if files is not None:
        wanted = max(0, min(wanted, files - SPARE_DESCRIPTORS))
    limit = job.rules.timeouts.connect * (1 + wanted / WARM_BATCH)
    try:
        await asyncio.wait_for(client.warm(wanted), limit)
    except TimeoutError:
        raise OSError(f"cannot connect to {job.target.url}: no answer within {limit:.0f} s") from None
    except OSError as error:
        raise OSError(f"cannot connect to {job.target.url}: {error}") from error


async def _measure(meter: HealthMeter, t0: int, window: tuple[int, int]) -> None:
    try:
        await sleep_until(t0 + window[0], monotonic)
        meter.begin()
        await sleep_until(t0 + window[1], monotonic)
    finally:
        meter.end()


async def _place(rank: Rank, driver: Driver, desk: ClerkDesk) -> None:
    """The clerk is last while nothing is urgent: the bodies that are ready reach far, and it keeps up."""
    try:
        while True:
            bare = driver.planned(skip=desk.stock)
            ample = bare is None or bare > monotonic() + HURRY_NS
            rank.be(last=ample and not desk.awaited and desk.unsaid < _MOST_UNSAID)
            await asyncio.sleep(_PLACE_S)
    finally:
        rank.be(last=False)


async def _block(for_s: float, every_s: float) -> None:
    """Hold the event loop up on purpose."""
    while True:
        await asyncio.sleep(every_s - for_s)
        time.sleep(for_s)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the helpers; what one of them failed with is raised."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def listen(commands: asyncio.Queue[dict[str, Any]]) -> None:
    """Commands from stdin, one JSON object a line; its end is a stop."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        commands.put_nowait(json.loads(line))
    commands.put_nowait({"stop": True})


def _emit(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _run_on_fast_loop(main: Coroutine[Any, Any, int]) -> int:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; this one ends when it is told to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(load_process(sys.argv[1]))
