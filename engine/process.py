"""One worker as a process of its own: ``python -m engine.process``, started by the supervisor.

Three threads around one Worker, which a lock guards; no one holds it while the model computes:

- *step* (main): plan, execute, commit, ship;
- *inbox*: reads the gateway's messages and hands each over at once, also while a step runs;
- *heartbeat*: every 250 ms on a connection of its own, so a long step is no silence (FLEET F35).

It ends when the gateway's connection does, and with its parent in any case.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from engine import messages as m
from engine.config import EngineConfig
from engine.config_io import read_config
from engine.kv.disk import break_disk
from engine.kv.places import Sizes
from engine.model import ModelError, budget, load_runner, short_of
from engine.runner.base import Runner, StepPlan
from engine.warmup import warm_up
from engine.wire import Frames, encode
from engine.worker import Worker

NICENESS = 5
"""The load generator must not starve beside us (F35)."""
DRAIN_BUDGET_S = 30.0
CUT_OFF = 3
"""Exit code when the drain budget ended before the streams did (ENGINE E53)."""
FAILED = 4

log = logging.getLogger(__name__)


class WorkerProcess:
    """Runs a ready Worker over two connected sockets until it is told to end."""

    def __init__(
        self, worker: Worker, runner: Runner, main: socket.socket, beat: socket.socket, interval_s: float
    ) -> None:
        self._worker = worker
        self._runner = runner
        self._main = main
        self._beat = beat
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._shipping = threading.Lock()  # taken before _lock, so that messages keep their order
        self._changed = threading.Condition(self._lock)
        self._news = False
        self._terminating: float | None = None

    def run(self) -> int:
        """The step loop; returns the exit code. Call it on the main thread."""
        self._main.sendall(encode(self._worker.hello()))
        for target in (self._read_inbox, self._send_heartbeats):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()
        while True:
            plan = self._plan()
            failed = self._ship()
            if failed is not None:
                log.error("giving up: %s", failed)
                return FAILED
            if plan is not None:
                self._step(plan)
            else:
                self._rest()
            if (code := self._exit_code()) is not None:
                return code

    def terminate(self) -> None:
        """SIGTERM: take nothing new, finish what runs, then end (E53)."""
        if self._terminating is None:
            self._terminating = time.monotonic() + DRAIN_BUDGET_S
            # Not here: a signal handler may interrupt the very code that holds the lock.
            threading.Thread(target=self._receive, args=([m.Drain()],), daemon=True).start()

    def _plan(self) -> StepPlan | None:
        with self._lock:
            self._news = False
            began = time.monotonic_ns()
            plan = self._worker.plan(began)
            if plan is not None:  # looking and finding nothing to do is no schedule of a step
                took = (time.monotonic_ns() - began) / 1e9
                self._worker.meter.observe("headrace_engine_schedule_seconds", took)
        return plan

    def _step(self, plan: StepPlan) -> None:
        started = time.monotonic_ns()
        try:
            result = self._runner.execute(plan)
        except Exception as error:
            log.exception("step %d failed", plan.step)
            with self._lock:
                self._worker.step_failed(plan, error, time.monotonic_ns())
            return
        if result.duration is not None:  # a simulated step takes its time
            left = started + int(result.duration * 1e9) - time.monotonic_ns()
            time.sleep(max(0, left) / 1e9)
        with self._lock:
            self._worker.commit(plan, result, time.monotonic_ns())

    def _rest(self) -> None:
        """Wait for news or the next wake-up."""
        with self._lock:
            if not self._news:
                due = self._worker.next_wakeup
                pause = 0.5 if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9)
                self._changed.wait(min(pause, 0.5))

    def _exit_code(self) -> int | None:
        """How to end if this worker is to end now."""
        if self._terminating is None:
            return None
        with self._lock:
            if self._worker.draining and self._worker.idle:
                return 0
        return CUT_OFF if time.monotonic() >= self._terminating else None

    def _receive(self, messages: list[m.ToWorker]) -> None:
        with self._lock:
            now = time.monotonic_ns()
            for message in messages:
                if isinstance(message, m.BreakDisk):
                    break_disk(self._runner, message.fault)
                self._worker.receive(message, now)
            self._news = True
            self._changed.notify()
        self._ship()

    def _ship(self) -> str | None:
        """Send what the worker has to say; returns why it cannot go on, if it says so."""
        with self._shipping:
            with self._lock:
                outbox = self._worker.take_outbox()
            if outbox:
                self._main.sendall(b"".join(encode(message) for message in outbox))
        return next((message.reason for message in outbox if isinstance(message, m.Failed)), None)

    def _read_inbox(self) -> None:
        frames = Frames()
        try:
            while data := self._main.recv(1 << 18):
                self._receive(frames.feed(data))
        except OSError as error:
            log.warning("connection to the gateway lost: %s", error)
        except Exception:
            log.exception("the inbox failed")
            os._exit(FAILED)
        os._exit(0)  # without a gateway there is nobody to work for

    def _send_heartbeats(self) -> None:
        try:
            while True:
                with self._lock:
                    heartbeat = self._worker.heartbeat(time.monotonic_ns())
                self._beat.sendall(encode(heartbeat))
                time.sleep(self._interval_s)
        except OSError:
            os._exit(0)


def connect(path: str, worker: int, key: str, purpose: str) -> socket.socket:
    """A connection to the gateway, introduced by one line of JSON."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendall(json.dumps({"worker": worker, "key": key, "for": purpose}).encode() + b"\n")
    return connection


def end_with_parent(number: signal.Signals) -> None:
    """Let the kernel signal this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # 1 = PR_SET_PDEATHSIG


def build(
    config: EngineConfig, index: int, epoch: int, fingerprint: str | None = None
) -> tuple[Worker, Runner]:
    """A loaded and warmed-up worker, of the model with this ``engine.model.fingerprint``. Raises ModelError
    or WarmUpFailed."""
    runner = load_runner(config, index, fingerprint)
    plan = budget(config)
    blocks = plan.blocks
    if plan.limit is not None:
        log.info("memory of worker %d:\n%s", index, plan.table())
    if (short := short_of(config, blocks)) is not None:
        log.warning("worker %d: %s", index, short)
    config = dataclasses.replace(config, memory=dataclasses.replace(config.memory, kv_blocks=blocks))
    size = config.memory.block_size
    sizes = Sizes.of(config.cache.tiers, runner.kv_bytes_per_token * size)
    runner.allocate(blocks, size, sizes.slots)
    warm_up(config, runner, time.monotonic_ns)
    worker = Worker(
        config,
        index,
        f"{os.getpid()}-{epoch}",
        eos_ids=runner.eos_ids,
        max_positions=runner.max_positions,
        vocabulary=runner.vocabulary,
        kv_bytes_per_token=runner.kv_bytes_per_token,
        epoch=epoch,
    )
    return worker, runner


def main() -> int:
    parser = argparse.ArgumentParser(prog="engine.process", description="One headrace worker.")
    parser.add_argument("--socket", required=True, help="the gateway's unix socket")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--epoch", type=int, default=1, help="above every epoch of earlier incarnations")
    parser.add_argument("--key", default="", help="tells this incarnation from others to the gateway")
    parser.add_argument("--fingerprint", help="of the model's identity, to which its files must still fit")
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args()
    end_with_parent(signal.SIGKILL)
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = read_config(options.config)
    main_socket, beat = (
        connect(options.socket, options.worker, options.key, use) for use in ("main", "beat")
    )
    try:
        worker, runner = build(config, options.worker, options.epoch, options.fingerprint)
    except (ModelError, MemoryError) as error:
        log.error("cannot load the model: %s", error)
        main_socket.sendall(encode(m.Failed(f"cannot load the model: {error}")))
        return FAILED
    gc.collect()
    gc.freeze()  # what lives for ever is not looked through again while steps are planned
    process = WorkerProcess(worker, runner, main_socket, beat, config.health.heartbeat)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.run()


if __name__ == "__main__":
    sys.exit(main())
