"""A child process that cannot outlive us, is spoken to by lines, and leaves its stderr in a file."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_LINE_LIMIT = 1 << 24


def _with_parent(parent: int) -> None:
    """In the child: be ended when the process that started it is gone, whatever ended that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before the line above
            os._exit(1)


class Child:
    """A Python process of ours. It has a session of its own, so Ctrl-C in the terminal reaches only us."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def start(arguments: list[str], log: Path) -> Child:
        """Run ``python *arguments``; stderr is appended to ``log``."""
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                start_new_session=True,
                preexec_fn=partial(_with_parent, os.getpid()),
                limit=_LINE_LIMIT,
            )
        return Child(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self._process.returncode

    async def read_line(self) -> bytes:
        """The next line of its stdout; empty at its end."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    def tell(self, message: dict[str, Any]) -> None:
        """One JSON line to its stdin; nothing if it is gone."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def ended(self, limit: float) -> int:
        """Exit code of one that is about to end by itself, as its closed stdout tells; ``end`` after
        ``limit`` s."""
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._process.wait(), limit)
        return await self.end(limit)

    async def end(self, limit: float) -> int:
        """SIGTERM, and SIGKILL after ``limit`` s; returns its exit code. Idempotent."""
        if self._process.returncode is None:
            # Not terminate(): it looks whether the process has ended, and then takes its exit code away
            # from the event loop, which would report 255.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), limit)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
        return await self._process.wait()
