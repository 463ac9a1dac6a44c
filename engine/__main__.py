"""The engine as a process of its own: ``python -m engine --config FILE.json``.

Gateway and HTTP live here, each worker is a process below. When everything is warm, one line of JSON
goes to stdout: ``{"url", "admin_url", "pid"}``. SIGTERM or SIGINT drains and ends; a second one ends at
once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from engine.api.admin import LOOPBACK, AdminDoor, token_of
from engine.api.generation import Stamps
from engine.api.server import Server
from engine.api.service import Service
from engine.config import EngineConfig
from engine.config_io import read_config
from engine.fleet.door import Identity
from engine.fleet.fleet import Fleet
from engine.fleet.health import State
from engine.fleet.supervisor import ProcessPool, WorkersFailed
from engine.model import ModelError, check, fingerprint, identity, load_tokenizer
from engine.plain import PlainError
from engine.process import end_with_parent

DRAIN_BUDGET_S = 30.0
CUT_OFF = 3
"""Exit code when the drain budget, or impatience, ended streams that still ran (ENGINE E53)."""

NICENESS = 2
"""Behind the load generator, before the workers (FLEET F35)."""

log = logging.getLogger(__name__)

OnReady = Callable[[dict[str, Any]], None]


async def serve(
    config: EngineConfig,
    host: str = "127.0.0.1",
    port: int = 0,
    admin_port: int | None = None,
    token_file: Path | None = None,
    on_ready: OnReady = lambda _: None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    The HTTP server answers from the start, ``on_ready({"url", "admin_url", "pid"})`` is called once all
    workers are warm. The admin door is opened on ``admin_port`` (0: a free one), with the token in
    ``token_file``. Raises ModelError, WorkersFailed (a worker cannot start: with its log), OSError (a
    port is taken) or PermissionError (the token file is open to others).
    """
    check(config)
    tokenizer = load_tokenizer(config)
    names = identity(config)
    pool = ProcessPool(config, fingerprint(names))
    reading = ThreadPoolExecutor(1, "adapters")
    fleet = Fleet(config, pool, time.monotonic_ns, Identity(**names), process_metrics=True, executor=reading)
    signals = _Signals()
    async with AsyncExitStack() as stack:
        stack.callback(signals.close)
        stack.enter_context(reading)
        executor = stack.enter_context(ThreadPoolExecutor(1, "tokenise"))
        stamps = Stamps(time.monotonic_ns, lambda: int(time.time()))
        service = Service(fleet, tokenizer, config, stamps, executor)
        where = {"url": await _listen(stack, Server.of(service), host, port), "admin_url": None}
        if admin_port is not None:
            where["admin_url"] = await _open_admin_door(stack, fleet, host, admin_port, token_file)
        # Last in, first out: what still streams is ended with an error event before its socket closes.
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        if await _ready(fleet, pool, config, signals):
            gc.collect()
            gc.freeze()  # what lives for ever is not looked through again while tokens are relayed
            on_ready({**where, "pid": os.getpid()})
            await signals.stop.wait()
        return await _drain(service, signals)


async def _listen(stack: AsyncExitStack, server: Server, host: str, port: int) -> str:
    stack.push_async_callback(server.stop)
    return await server.start(host, port)


async def _open_admin_door(
    stack: AsyncExitStack, fleet: Fleet, host: str, port: int, token_file: Path | None
) -> str:
    if token_file is None:
        raise ValueError("the admin door needs a token file")
    door = AdminDoor(fleet, token_of(token_file))
    return await _listen(stack, Server(door.application()), host if host in LOOPBACK else LOOPBACK[0], port)


async def _ready(fleet: Fleet, pool: ProcessPool, config: EngineConfig, signals: _Signals) -> bool:
    """Wait until every worker is in rotation; False if a signal came first. Raises WorkersFailed."""
    assert pool.failed is not None
    while not signals.stop.is_set():
        if pool.failed.done():
            raise WorkersFailed(pool.failed.result())
        workers = (await fleet.state())["workers"]
        if sum(worker["state"] == State.IN_ROTATION for worker in workers) == config.workers:
            return True
        await asyncio.sleep(0.05)
    return False


async def _drain(service: Service, signals: _Signals) -> int:
    """Take nothing new and let streams run to the budget (E53)."""
    service.draining = True
    deadline = asyncio.get_running_loop().time() + DRAIN_BUDGET_S
    while service.generating and not signals.now.is_set():
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(0.05)
    return CUT_OFF if service.generating else 0


class _Signals:
    """SIGTERM and SIGINT: the first sets ``stop``, the second ``now``."""

    def __init__(self) -> None:
        self.stop, self.now = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if self.stop.is_set():
            self.now.set()
        self.stop.set()

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run ``serve(...)`` to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine", description="headrace's engine.")
    parser.add_argument("--config", type=Path, required=True, help="EngineConfig as JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--admin-port", type=int, help="opens the admin door, on loopback")
    parser.add_argument("--token-file", type=Path, help="the admin door's token; made if it is not there")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent process ends (Linux)")
    options = parser.parse_args()
    if options.with_parent:
        end_with_parent(signal.SIGTERM)
    os.nice(NICENESS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.admin_port is not None and options.token_file is None:
        parser.error("--admin-port needs --token-file")

    def announce(where: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(where) + "\n")
        sys.stdout.flush()

    try:
        config = read_config(options.config)
        return run(
            serve(config, options.host, options.port, options.admin_port, options.token_file, announce)
        )
    except (ModelError, WorkersFailed, PlainError, OSError, ValueError) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
