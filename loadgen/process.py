"""The load process: fires its slice of a plan and writes the records.

Started as ``python -m loadgen.process JOBFILE``. It speaks JSON lines: on stdout ``{"event": "ready"}``,
``progress`` each second, then ``done`` with the client signals, or ``error``; on stdin it takes
``{"start": t0_ns}``, ``{"cancel": shot}`` and ``{"stop": true}``. A closed stdin means that whoever
started it is gone, and stops it too.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.alarm import live_alarm
from loadgen.client import Address, Client
from loadgen.clock import monotonic, sleep_until
from loadgen.driver import Driver
from loadgen.feeder import ThreadFeeder
from loadgen.health import HealthMeter, driver_signals, freeze_heap
from loadgen.job import LoadJob
from loadgen.observe import Kept, keep, new_salt, observe, tokenizer_of
from loadgen.observed_io import write_observed
from loadgen.plan_io import read_plan
from loadgen.render import Rendered
from loadgen.targets import Dialect
from loadgen.texts import write_texts
from loadgen.timeline import Exchange
from results.record import Record
from results.recordfile import RecordWriter

Emit = Callable[[dict[str, Any]], None]

OK, ERROR = 0, 3
_PROGRESS_NS = 1_000_000_000


def load_process(job: dict[str, Any]) -> int:
    """Run ``job`` (LoadJob.as_dict) on an event loop of its own; returns the exit code."""
    try:
        return _run_on_fast_loop(_LoadProcess(LoadJob.of(job), _emit).run())
    except (OSError, ValueError, TypeError) as error:
        _emit({"event": "error", "message": f"{type(error).__name__}: {error}"})
        return ERROR


class _LoadProcess:
    """One run of a job: what happens before, during and after the driver."""

    def __init__(self, job: LoadJob, emit: Emit) -> None:
        self._job = job
        self._emit = emit
        self._recorder = _Recorder(Path(job.records), emit)
        self._kept: list[Kept] = []
        self._interrupted = False
        self._commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def run(self) -> int:
        job = self._job
        plan, dialect = read_plan(Path(job.plan)), job.target.make()
        client = Client(Address.of(job.target.url), monotonic)
        loop = asyncio.get_running_loop()
        listener = loop.create_task(_listen(self._commands))
        try:
            await _warm(client, job)
            freeze_heap()
            self._emit({"event": "ready"})
            t0 = job.t0_ns if job.t0_ns is not None else await self._told_to_start()
            if t0 is None:
                return OK
            driver = Driver(
                plan,
                job.renderer(dialect),
                client,
                monotonic,
                t0,
                self._on_close,
                slice=job.slice,
                timeouts=job.timeouts,
                feeder=ThreadFeeder(),
            )
            loop.add_signal_handler(signal.SIGTERM, self._stop, driver)
            signals = await self._fire(driver, t0, plan.phases.window_ns)
            done = {"event": "done", "signals": signals, "interrupted": self._interrupted}
            if job.observed is not None and dialect.own:
                done["observe_error"] = await self._observe(client, dialect, Path(job.observed))
            if job.texts is not None:
                write_texts(self._kept, Path(job.texts))
            self._emit(done)
            return OK
        finally:
            listener.cancel()
            await client.close()

    async def _told_to_start(self) -> int | None:
        """t0, or None if told to stop instead."""
        while True:
            command = await self._commands.get()
            if "start" in command:
                return int(command["start"])
            if command.get("stop"):
                return None

    async def _fire(self, driver: Driver, t0: int, window: tuple[int, int]) -> dict[str, Any]:
        """The load itself, with everything that watches it; returns the client signals."""
        meter = HealthMeter(monotonic)
        helpers = [
            asyncio.create_task(self._report(driver)),
            asyncio.create_task(self._obey(driver)),
            asyncio.create_task(_measure(meter, t0, window)),
        ]
        try:
            await driver.run(live_alarm)
        finally:
            await _end(helpers)
            self._recorder.close()
        self._emit({"event": "progress", **asdict(driver.snapshot())})
        return driver_signals(driver, meter.signals()).as_dict()

    def _on_close(self, exchange: Exchange, rendered: Rendered | None) -> None:
        self._recorder.append(exchange.record)
        wanted = self._job.observed is not None or self._job.texts is not None
        if wanted and rendered is not None:
            kept = keep(exchange, rendered.messages)
            if kept is not None:
                self._kept.append(kept)

    async def _report(self, driver: Driver) -> None:
        """Once a second, records to disk and progress to whoever watches; both off the loop (C38)."""
        due = monotonic()
        while True:
            due += _PROGRESS_NS
            await sleep_until(due, monotonic)
            self._recorder.flush({"event": "progress", **asdict(driver.snapshot())})

    async def _obey(self, driver: Driver) -> None:
        while True:
            command = await self._commands.get()
            if "cancel" in command:
                driver.cancel(int(command["cancel"]))
            elif command.get("stop"):
                self._stop(driver)

    def _stop(self, driver: Driver) -> None:
        self._interrupted = True
        driver.stop()

    async def _observe(self, client: Client, dialect: Dialect, path: Path) -> str | None:
        """Write what attribution may see; returns why that could not be had, if so. The records stand
        either way."""
        salt = self._job.salt if self._job.salt is not None else new_salt()
        try:
            observed = await observe(self._kept, tokenizer_of(client, dialect), salt, self._job.target.url)
        except (OSError, ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        write_observed(observed, path)
        return None


class _Recorder:
    """Writes records in a thread of its own, away from the send path."""

    def __init__(self, path: Path, emit: Emit) -> None:
        self._writer = RecordWriter(path)
        self._emit = emit
        self._thread = ThreadPoolExecutor(1, "recorder")
        self._closed: list[Record] = []
        self._written: list[Future[None]] = []

    def append(self, record: Record) -> None:
        self._closed.append(record)

    def flush(self, event: dict[str, Any] | None = None) -> None:
        """Hand over what was appended so far; then ``event`` is emitted."""
        batch, self._closed = self._closed, []
        self._written.append(self._thread.submit(self._write, batch, event))

    def close(self) -> None:
        """Write the rest and close the file. Raises what writing failed with."""
        self.flush()
        self._thread.shutdown(wait=True)
        self._writer.close()
        for written in self._written:
            written.result()

    def _write(self, batch: list[Record], event: dict[str, Any] | None) -> None:
        for record in batch:
            self._writer.append(record)
        self._writer.flush()
        if event is not None:
            self._emit(event)


async def _warm(client: Client, job: LoadJob) -> None:
    try:
        await client.warm(job.warm_connections)
    except OSError as error:
        raise OSError(f"cannot connect to {job.target.url}: {error}") from error


async def _measure(meter: HealthMeter, t0: int, window: tuple[int, int]) -> None:
    await sleep_until(t0 + window[0], monotonic)
    meter.begin()
    try:
        await sleep_until(t0 + window[1], monotonic)
    finally:
        meter.end()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the helpers; what one of them failed with is raised."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _listen(commands: asyncio.Queue[dict[str, Any]]) -> None:
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
    sys.setswitchinterval(0.001)  # the feeder's thread must not hold up a send for long
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; this one ends when it is told to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(load_process(json.loads(Path(sys.argv[1]).read_text())))
