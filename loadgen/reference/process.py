"""One process of the reference server: ``python -m loadgen.reference.process JOBFILE``.

On stdout it says ``{"event": "ready", ..}`` and at its end ``{"event": "summary", ..}``, or
``{"event": "error", ..}``. It ends on SIGTERM, and when its stdin closes: then whoever started it is gone.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.reference import log
from loadgen.reference.cost import write_cost_us
from loadgen.reference.job import ServerJob
from loadgen.reference.log import LogFile
from loadgen.reference.server import FLUSH_NS, Server, new_listener

_PR_SET_TIMERSLACK = 29

Emit = Callable[[dict[str, Any]], None]


def main(job: ServerJob, emit: Emit) -> int:
    """Serve until told to stop; returns the exit code."""
    try:
        if job.cpus:
            os.sched_setaffinity(0, job.cpus)
        listener = new_listener(job.host, job.port, job.shared)
        server = _server(job, listener)
    except OSError as error:
        emit({"event": "error", "message": f"cannot listen on {job.host}:{job.port}: {error}"})
        return 3
    port = listener.getsockname()[1]
    _prepare()
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    cost = write_cost_us()
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    emit({"event": "ready", "port": port, "pid": os.getpid(), "us_per_write": round(cost, 2)})
    began, cpu = time.monotonic(), time.process_time()
    server.run()
    emit({"event": "summary", **_summary(server, time.monotonic() - began, time.process_time() - cpu)})
    return 0


def _server(job: ServerJob, listener: socket.socket) -> Server:
    folder = None if job.folder is None else Path(job.folder)
    own = None if folder is None else part(folder, job.process)
    return Server(
        job.script,
        listener,
        LogFile(own),
        process=job.process,
        log_data=None if folder is None else lambda: _whole_log(folder, job.shared),
        stop_fd=sys.stdin.fileno(),
    )


def part(folder: Path, process: int) -> Path:
    """The log of one process."""
    return folder / f"reference-{process}.log"


def _whole_log(folder: Path, shared: bool) -> bytes:
    """Of all processes of this server: the others flush theirs within FLUSH_NS."""
    if shared:
        time.sleep(2 * FLUSH_NS / 1e9)
    parts = [file.read_bytes()[len(log.MAGIC) :] for file in sorted(folder.glob("reference-*.log"))]
    return b"".join(data[: log.complete(data)] for data in parts)


def _summary(server: Server, wall: float, cpu: float) -> dict[str, Any]:
    writes, lateness = server.timeline.writes, server.lateness
    return {
        "pid": os.getpid(),
        **asdict(server.counts),
        "writes": writes,
        "late_p50_us": lateness.quantile_us(0.5),
        "late_p99_us": lateness.quantile_us(0.99),
        "late_max_us": lateness.longest_ns / 1000 if lateness.count else None,
        "cpu_s": round(cpu, 3),
        "cpu_share": round(cpu / wall, 4) if wall > 0 else None,
        "cpu_us_per_write": round(cpu / writes * 1e6, 2) if writes else None,
    }


def _prepare() -> None:
    """As many descriptors as there may be, and timers without slack."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _emit(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal
    sys.exit(main(ServerJob.of(json.loads(Path(sys.argv[1]).read_text())), _emit))
