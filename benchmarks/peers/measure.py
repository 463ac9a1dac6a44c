"""One tool at one rate, against a reference server of its own, as a row."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from benchmarks.peers.rows import Row
from benchmarks.peers.tool import Ask, Reported, Tool, ToolFailed
from benchmarks.peers.truth import measured, truth
from loadgen.reference.group import ReferenceServer
from loadgen.reference.log import Entry, read_log

_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one run left behind."""

    reported: Reported | None
    why: str | None
    log: list[Entry]
    wall_minus_mono: int


def measure(server_core: int, out: Path, tool: Tool, ask: Ask, settings: str) -> Row:
    """Run it; its files stay under ``out``. A tool that fails makes a row that says why."""
    folder = out / f"{tool.name.replace(' ', '-')}-{ask.rate:g}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = os.getloadavg()[0]
    date = datetime.now(UTC).isoformat(timespec="seconds")
    with CoreWatch(ask.core) as watch:
        seen = _run(tool, ask, server_core, folder)
    streams = measured(seen.log, seen.reported, seen.wall_minus_mono)
    found = truth(streams, ask.stream_s)
    said = seen.reported
    row = Row(
        tool=tool.name,
        version=tool.version,
        asked=ask.rate,
        settings=settings,
        true=found.times,
        delivered=found.rate,
        core_busy=watch.busy(*found.span) if found.span is not None else None,
        server_late_p99=found.late_p99,
        blocked=found.blocked,
        load_before=before,
        load_after=os.getloadavg()[0],
        date=date,
        why=seen.why,
    )
    return row if said is None else _with(row, said)


def _with(row: Row, said: Reported) -> Row:
    return replace(row, said=said.times, said_rate=said.rate, completed=said.completed, failed=said.failed)


def _run(tool: Tool, ask: Ask, server_core: int, folder: Path) -> _Seen:
    reported, why = None, None
    with tempfile.TemporaryDirectory(prefix="headrace-peers-") as scratch:
        log = Path(scratch) / "server.log"
        with ReferenceServer(ask.script, cpus=(server_core,), log=log) as server:
            offset = time.time_ns() - time.monotonic_ns()
            try:
                reported = tool.run(ask, server, folder)
            except ToolFailed as error:
                why = str(error)
        return _Seen(reported, why, read_log(log), offset)


class CoreWatch:
    """How busy one core is, whoever keeps it so. Linux."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._looks: list[tuple[int, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CoreWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            idle = idle_seconds(Path("/proc/stat").read_text(), self._core)
            if idle is not None:
                self._looks.append((time.monotonic_ns(), idle))

    def busy(self, begin: int, end: int) -> float | None:
        """Share of [begin, end), ns on CLOCK_MONOTONIC; None without two looks in it."""
        inside = [look for look in self._looks if begin <= look[0] < end]
        if len(inside) < 2:
            return None
        (first, idle_first), (last, idle_last) = inside[0], inside[-1]
        return max(0.0, 1 - (idle_last - idle_first) / ((last - first) / 1e9))


def idle_seconds(stat: str, core: int) -> float | None:
    """From the text of /proc/stat: time that a core had nothing to do, or waited for a disk."""
    for line in stat.splitlines():
        words = line.split()
        if words and words[0] == f"cpu{core}":
            return (int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK")
    return None
