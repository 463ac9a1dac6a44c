"""A reference server as processes of its own, that do not outlive whoever started them."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from loadgen.reference.job import ServerJob
from loadgen.reference.log import LogTail, merge
from loadgen.reference.process import part
from loadgen.reference.script import Script
from loadgen.reference.server import new_listener

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 20.0


class ServerFailed(Exception):
    """It could not start, or a process of it died; says why."""


@dataclass(frozen=True, slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    us_per_write: float


class ReferenceServer:
    """Starts in ``start``, serves ``processes`` wide until ``stop``; as a context manager, both.

    ``cpus``: process k is pinned to the k-th of them, round and round; empty = not pinned. ``log``: where
    the merged log is at the end; with None each process still has its part, for ``tail``, unless
    ``keep_log`` is False.
    """

    def __init__(
        self,
        script: Script,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        processes: int = 1,
        cpus: Sequence[int] = (),
        log: Path | None = None,
        keep_log: bool = True,
    ) -> None:
        self._script = script
        self._host, self._port = host, port
        self._count = processes
        self._cpus = tuple(cpus)
        self._log = log
        self._keep = keep_log or log is not None
        self._stack = ExitStack()
        self._processes: list[_Process] = []
        self._folder: Path | None = None

    def start(self) -> None:
        """Returns when all processes listen. Raises ServerFailed."""
        if self._log is not None and not self._log.parent.is_dir():
            raise ServerFailed(
                f"the log {self._log} cannot be written: there is no folder {self._log.parent}"
            )
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-ref-")))
        try:
            self._start_all(self._folder)
        except BaseException:
            self.end()
            raise

    def _start_all(self, folder: Path) -> None:
        shared = self._count > 1
        job = ServerJob(
            self._script, self._host, self._port, shared, folder=str(folder) if self._keep else None
        )
        if shared:
            # Bound but not listening: it keeps the port ours, and gets no connection.
            job = replace(job, port=self._stack.enter_context(self._reserved()).getsockname()[1])
        popens = []
        for k in range(self._count):
            popens.append(self._spawn(replace(job, process=k, cpus=self._cpus_of(k)), folder))
        for k, popen in enumerate(popens):
            ready = _event(popen, "ready", READY_LIMIT_S)
            self._processes[k] = _Process(popen, ready["us_per_write"])
            self._port = ready["port"]

    def _reserved(self) -> socket.socket:
        try:
            new_listener(self._host, self._port, shared=False).close()  # or does somebody listen there?
            return new_listener(self._host, self._port, shared=True)
        except OSError as error:
            raise ServerFailed(f"cannot listen on {self._host}:{self._port}: {error}") from error

    def _cpus_of(self, k: int) -> tuple[int, ...]:
        return (self._cpus[k % len(self._cpus)],) if self._cpus else ()

    def _spawn(self, job: ServerJob, folder: Path) -> subprocess.Popen[bytes]:
        file = folder / f"job-{job.process}.json"
        file.write_text(json.dumps(job.as_dict()))
        popen = subprocess.Popen(
            [sys.executable, "-m", "loadgen.reference.process", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(_Process(popen, 0.0))
        return popen

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def pids(self) -> list[int]:
        return [process.popen.pid for process in self._processes]

    @property
    def us_per_write(self) -> float:
        """As measured before it served; the dearest process."""
        return max(process.us_per_write for process in self._processes)

    def tail(self) -> LogTail:
        """Reads the entries that come into the log; one is there at the latest 0.2 s after its end."""
        assert self._folder is not None
        assert self._keep
        return LogTail([part(self._folder, k) for k in range(self._count)])

    def died(self) -> str | None:
        """Why a process is gone by itself; None while all live."""
        for process in self._processes:
            if (code := process.popen.poll()) is not None:
                return f"process {process.popen.pid} of the reference server ended with exit code {code}"
        return None

    def stop(self) -> list[dict[str, Any]]:
        """End it; returns the summary of each process, and writes the merged log. Raises ServerFailed if a
        process gave none."""
        try:
            for process in self._processes:
                if process.popen.poll() is None:
                    process.popen.terminate()
            summaries = [_event(process.popen, "summary", STOP_LIMIT_S) for process in self._processes]
            for process in self._processes:
                process.popen.wait(STOP_LIMIT_S)
            if self._log is not None and self._folder is not None:
                merge([part(self._folder, k) for k in range(self._count)], self._log)
            return summaries
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs, without a summary. Idempotent."""
        for process in self._processes:
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait()
            for pipe in (process.popen.stdin, process.popen.stdout):
                assert pipe is not None
                pipe.close()
        self._processes = []
        self._stack.close()

    def __enter__(self) -> ReferenceServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._processes:
            self.stop()
        else:
            self.end()


def _event(popen: subprocess.Popen[bytes], name: str, limit_s: float) -> dict[str, Any]:
    """The next line of a process, which should be ``name``. Raises ServerFailed."""
    assert popen.stdout is not None
    line = _line(popen.stdout, limit_s)
    if not line.endswith(b"\n"):
        raise ServerFailed(
            f"process {popen.pid} of the reference server gave no {name} within {limit_s:.0f} s"
            f" (exit code {popen.poll()})"
        )
    event: dict[str, Any] = json.loads(line)
    if event["event"] != name:
        raise ServerFailed(str(event.get("message", event)))
    return event


def _line(pipe: IO[bytes], limit_s: float) -> bytes:
    """A line of an otherwise quiet pipe; what there is of it at its end or after ``limit_s``."""
    data, until = b"", time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not data.endswith(b"\n") and selector.select(max(0.0, until - time.monotonic())):
            read = os.read(pipe.fileno(), 65_536)
            if not read:
                break
            data += read
    return data
