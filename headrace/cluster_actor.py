"""What Ray runs on a node: one load process with its files, heard and told from afar."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray

from headrace.hostclocks import clock_id
from headrace.processes import Child
from loadgen.stamps import sample_clock

_STOP_LIMIT_S = 5.0
_WRITTEN = ("records", "attempts", "observed", "texts")
"""Paths in a job that the load process writes to."""


class LoadActor:
    """Starts ``python -m loadgen.process`` in a temporary folder of its node."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-load-")
        self._in = Path(self._folder.name)
        self._out = self._in / "out"
        self._out.mkdir()
        self._child: Child | None = None

    async def about(self) -> dict[str, Any]:
        """Where this is. Ray starts its workers at niceness 15: taken back where that is allowed."""
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        return {
            "clock": clock_id(),
            "folder": self._folder.name,
            "host": ray.util.get_node_ip_address(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "node": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "version": version("headrace"),
        }

    async def clock(self) -> tuple[int, int, int]:
        """loadgen.stamps.ClockSample: this host's wall clock against its monotonic one."""
        sample = sample_clock()
        return sample.mono, sample.offset, sample.half

    async def begin(self, job: dict[str, Any], log: str, files: dict[str, bytes], plan: bytes) -> None:
        """Start the load process. ``files``: contents of the ``tokenizer`` and ``ca`` that the job names."""
        moved = {key: str(self._out / Path(job[key]).name) for key in _WRITTEN if job[key]}
        moved |= {key: self._put(key, content) for key, content in files.items()}
        target = {**job["target"], "ca": moved.pop("ca", None)}
        job = {**job, **moved, "target": target, "plan": self._put("plan.parquet", plan)}
        file = self._put("job.json", json.dumps(job).encode())
        self._child = await Child.start(["-m", "loadgen.process", file], self._out / log)

    def _put(self, name: str, content: bytes) -> str:
        (self._in / name).write_bytes(content)
        return str(self._in / name)

    async def line(self) -> str | None:
        """What it says next; None at its end, also after half a line of one that was killed."""
        assert self._child is not None
        line = await self._child.read_line()
        return line.decode() if line.endswith(b"\n") else None

    async def tell(self, message: dict[str, Any]) -> None:
        if self._child is not None:
            self._child.tell(message)

    async def ended(self) -> int:
        """Its exit code."""
        assert self._child is not None
        return await self._child.ended(_STOP_LIMIT_S)

    async def files(self) -> list[str]:
        """Names of what it wrote."""
        return sorted(file.name for file in self._out.iterdir())

    async def piece(self, name: str, start: int, size: int) -> bytes:
        """At most ``size`` bytes of a file; empty at its end."""
        return await asyncio.to_thread(_read, self._out / name, start, size)

    async def close(self) -> None:
        """End the load process and leave nothing on the node."""
        if self._child is not None:
            await self._child.end(_STOP_LIMIT_S)
        self._folder.cleanup()


def _read(file: Path, start: int, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(size)
