"""The process that speaks to Ray for a run: what ends a Ray driver, as a lost head node does, does not end
``bench``.

Started as ``python -m headrace.cluster_driver ORDERFILE``. It says on stdout ``joined`` with the places of
the load processes, or ``refused``; then what each load process says, with its ``slice``, and ``end`` after
its files are in the run directory; ``facts`` after the last one. On stdin it takes ``{"start": t0_ns}`` for
all, and what a load process takes together with its ``slice``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import ray
from ray.exceptions import RayError

from headrace.cluster_actor import LoadActor
from headrace.hostclocks import OURS, Reading, clock_id, host_clock
from loadgen.clock import monotonic
from loadgen.stamps import ClockSample, sample_clock

PLACE_LIMIT_S = 60.0
"""How long placing all load processes may take."""
CLOSE_LIMIT_S = 10.0
_PIECE = 8 * 1024 * 1024
_QUESTIONS = 9
"""The tightest of so many readings of a clock is taken."""
Actor = Any


class Refused(Exception):
    """The load cannot be placed: why, and what to do about it."""


class Driver:
    """The load processes of one run, one actor each."""

    def __init__(self, order: dict[str, Any], out: IO[str]) -> None:
        self._jobs: list[dict[str, Any]] = order["jobs"]
        self._logs: list[str] = order["logs"]
        self._folder = Path(order["folder"])
        self._clock: str = order["clock"]
        self._out = out
        self._actors: list[Actor] = []
        self._places: list[dict[str, Any]] = []
        self._start: dict[str, Reading] = {}
        self._end: dict[str, Reading] = {}

    async def run(self) -> None:
        """Until all have ended, or SIGTERM."""
        work = asyncio.create_task(self._work())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await asyncio.wait([work])
        await self._close()
        if not work.cancelled():
            work.result()

    async def _work(self) -> None:
        await self._place()
        self._say({"event": "joined", "places": self._places})
        files = [_inputs(job) for job in self._jobs[:1]][0]
        plan = ray.put(Path(self._jobs[0]["plan"]).read_bytes())
        relays = [self._relay(slice, files, plan) for slice in range(len(self._jobs))]
        async with asyncio.TaskGroup() as group:
            commands = group.create_task(self._obey())
            await asyncio.gather(*relays)
            commands.cancel()
        self._say({"event": "facts", **self._facts()})
