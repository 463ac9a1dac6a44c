"""Workers as processes of this machine: started, heard, replaced, ended (FLEET F39).

Each worker connects twice to one unix socket in a private folder: its messages come over one connection,
its heartbeats over the other. Losing the first, or the process, is the loss of the worker, at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.config_io import write_config
from engine.fleet.life import Life, Link, OnLost, OnMessage
from engine.messages import ToWorker

MAX_BACKOFF_S = 30.0
RESTART_WINDOW_S = 60.0
STOP_GRACE_S = 3.0
LOG_TAIL_BYTES = 4000
_EPOCHS_PER_LIFE = 1 << 20
"""Room for the epochs of one incarnation's clears below those of the next."""

_PREFIX = "headrace-"

log = logging.getLogger(__name__)


class WorkersFailed(Exception):
    """A worker keeps ending; the message holds the tail of its log."""


class ProcessPool:
    """WorkerPool over real processes. ``failed`` is set once a worker is given up (more than
    ``max_restarts_per_minute`` restarts in 60 s); it holds why, with the tail of the worker's log. A worker
    that finds another model than the one of ``fingerprint`` (engine.model) ends."""

    def __init__(self, config: EngineConfig, fingerprint: str | None = None) -> None:
        self._config = config
        self._fingerprint = fingerprint
        self._folder = Path()
        self._lives: dict[int, Life] = {}
        self._by_key: dict[str, Life] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._on: tuple[OnMessage, OnLost] | None = None
        self.failed: asyncio.Future[str] | None = None

    async def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        """Listen and start every worker; returns before they are ready."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        self._on = (on_message, on_lost)
        _clear_away()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))  # mode 0700
        write_config(self._folder / "engine.json", self._config)
        self._server = await loop.create_unix_server(
            lambda: Link(self.introduced), str(self._folder / "gateway")
        )
        self._keepers = [loop.create_task(self._keep(worker)) for worker in range(self._config.workers)]

    def send(self, worker: int, message: ToWorker) -> None:
        life = self._lives.get(worker)
        if life is not None:
            life.send(message)

    async def kill(self, worker: int) -> None:
        self._alive(worker).signal(signal.SIGKILL)

    async def freeze(self, worker: int) -> None:
        self._alive(worker).signal(signal.SIGSTOP)

    async def thaw(self, worker: int) -> None:
        self._alive(worker).signal(signal.SIGCONT)

    def describe(self) -> list[dict[str, Any]]:
        return [self._describe(worker) for worker in range(self._config.workers)]

    async def stop(self) -> None:
        """End every worker, also one that is frozen; no process, socket or file is left."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        lives, self._lives = list(self._lives.values()), {}
        for life in lives:
            life.close()
        await asyncio.gather(*(_reap(life) for life in lives))
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)

    def log_tail(self, worker: int) -> str:
        """The end of what the worker's present and earlier incarnations wrote."""
        try:
            with (self._folder / f"worker-{worker}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def introduced(self, line: bytes, link: Link) -> Life | None:
        """The life that a new connection belongs to; None if it is nobody we wait for."""
        try:
            said = json.loads(line)
            life, purpose = self._by_key[said["key"]], said["for"]
        except (ValueError, KeyError, TypeError):
            log.warning("a connection without a valid introduction was closed")
            return None
        life.links[purpose] = link
        return life if life.ended is None else None

    async def _keep(self, worker: int) -> None:
        """Start the worker, and again whenever it ends, with growing pauses."""
        pause = self._config.health.restart_backoff
        restarts: deque[float] = deque()
        loop = asyncio.get_running_loop()
        for number in range(1, sys.maxsize):
            started = loop.time()
            reason = await self._live(worker, number * _EPOCHS_PER_LIFE)
            if number == 1 and self._lives[worker].hello is None:
                self._give_up(worker, reason)  # what it was told to run is at fault, not its luck
                return
            if loop.time() - started > RESTART_WINDOW_S:
                pause = self._config.health.restart_backoff
            restarts.append(loop.time())
            while restarts[0] < loop.time() - RESTART_WINDOW_S:
                restarts.popleft()
            if len(restarts) > self._config.health.max_restarts_per_minute:
                self._give_up(worker, reason)
                return
            log.warning("worker %d ended (%s); started again in %g s", worker, reason, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_BACKOFF_S)

    async def _live(self, worker: int, epoch: int) -> str:
        """One incarnation, from start to end; returns why it ended."""
        assert self._on is not None
        key = secrets.token_hex(16)
        command = [sys.executable, "-m", "engine.process", "--worker", str(worker), "--epoch", str(epoch)]
        command += ["--key", key, "--socket", str(self._folder / "gateway")]
        command += ["--config", str(self._folder / "engine.json")]
        if self._fingerprint is not None:
            command += ["--fingerprint", self._fingerprint]
        with (self._folder / f"worker-{worker}.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=_environment(self._config),
            )
        life = self._lives[worker] = self._by_key[key] = Life(worker, process, self._on)
        try:
            code = await process.wait()
        finally:
            del self._by_key[key]
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        life.over(ending)
        return ending if life.ended == ending else f"{life.ended}; {ending}"

    def _give_up(self, worker: int, reason: str) -> None:
        text = f"worker {worker} keeps ending ({reason}); its log ends:\n{self.log_tail(worker)}"
        log.error("%s", text)
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(text)

    def _alive(self, worker: int) -> Life:
        life = self._lives.get(worker)
        if life is None or life.ended is not None:
            raise LookupError(f"worker {worker} has no living process")
        return life

    def _describe(self, worker: int) -> dict[str, Any]:
        life = self._lives.get(worker)
        alive = life is not None and life.ended is None and life.process.returncode is None
        return {
            "worker": worker,
            "pid": life.process.pid if life is not None and alive else None,
            "incarnation": life.hello.incarnation if life is not None and life.hello is not None else None,
            "alive": alive,
        }


def _clear_away() -> None:
    """Remove the folders of engines that were killed and could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdigit() and not _runs(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)  # somebody else's is not ours to remove, and stays


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, under another user
        return True
    return True


async def _reap(life: Life) -> None:
    try:
        async with asyncio.timeout(STOP_GRACE_S):
            await life.process.wait()
    except TimeoutError:
        life.signal(signal.SIGKILL)
        await life.process.wait()


def _environment(config: EngineConfig) -> dict[str, str]:
    """Ours, with thread counts set before numpy and torch read them."""
    threads = str(config.threads)
    return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
