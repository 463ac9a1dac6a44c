"""The process that speaks to Ray for a run: what ends a Ray driver, as a lost head node does, does not end
``bench``.

Started as ``python -m headrace.cluster_driver ORDERFILE``. It says on stdout ``joined`` with the places of
the load processes, or ``refused``; then what each load process says, with its ``slice``, and ``end`` after
its files are in the run directory; ``facts`` after the last one. On stdin it takes ``{"start": t0_ns}`` for
all, what a load process takes together with its ``slice``, and ``{"end": true}``.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import ray
from ray.exceptions import RayError

from headrace.cluster_actor import LoadActor
from headrace.hostclocks import OURS, Reading, host_clock
from loadgen.clock import monotonic
from loadgen.process import listen
from loadgen.stamps import ClockSample, sample_clock

CLOSE_LIMIT_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_PIECE = 8 * 1024 * 1024
_QUESTIONS = 9
"""The tightest of so many readings of a clock is taken."""
_SAME = "Every node needs the same headrace, Python and packages: `pip install 'headrace[cluster]'`."
_START = "Start it with `RAY_worker_niceness=0 ray start`, see docs/cluster.md; `ray status` shows it."
_AT_ONCE = ("ready", "progress")
"""Events that are passed on as they come; the others are the last words, and wait for the files."""


class Refused(Exception):
    """The load cannot be placed: why, and what to do about it."""


class Driver:
    """The load processes of one run, one actor each. ``out``: where bench listens."""

    def __init__(self, order: dict[str, Any], out: IO[str]) -> None:
        self._jobs: list[dict[str, Any]] = order["jobs"]
        self._logs: list[str] = order["logs"]
        self._folder, self._clock = Path(order["folder"]), order["clock"]
        self._limit: float = order["limit_s"]
        self._out = out
        self._actors: list[Any] = []
        self._places: list[dict[str, Any]] = []
        self._start: dict[str, Reading] = {}
        self._end: dict[str, Reading] = {}

    async def run(self) -> None:
        """Until all have ended, or it is told to end. Raises Refused."""
        work = asyncio.create_task(self._work(lambda: work.cancel()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await asyncio.wait([work])
        await self._close()
        if not work.cancelled():
            work.result()

    async def _work(self, end: Callable[[], object]) -> None:
        await self._place()
        self._say({"event": "joined", "places": self._places})
        job = self._jobs[0]
        paths = {"tokenizer": job["tokenizer"], "ca": job["target"]["ca"]}
        files = ray.put({key: Path(path).read_bytes() for key, path in paths.items() if path})
        plan = ray.put(Path(job["plan"]).read_bytes())
        obeying = asyncio.create_task(self._obey(end))
        try:
            await asyncio.gather(*(self._relay(slice, files, plan) for slice in range(len(self._jobs))))
        finally:
            obeying.cancel()
        self._say({"event": "facts", "clock": self._clocks()})

    async def _place(self) -> None:
        spread = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(LoadActor)
        self._actors = [spread.remote() for _ in self._jobs]
        asked = asyncio.gather(*(actor.about.remote() for actor in self._actors))
        try:
            self._places = await asyncio.wait_for(asked, self._limit)
        except TimeoutError:
            has, free = (seen.get("CPU", 0) for seen in (ray.cluster_resources(), ray.available_resources()))
            raise Refused(
                f"Ray has not placed all {len(self._jobs)} load processes within {self._limit:g} s",
                f"Each takes one CPU; the cluster has {has:g}, {free:g} of them free: see `ray status`.",
            ) from None
        except RayError as error:
            raise Refused(f"Ray could not place the load processes: {error}", _SAME) from error
        for place in self._places:
            if place["version"] != (ours := version("headrace")):
                raise Refused(f"node {place['host']} has headrace {place['version']}, we are {ours}", _SAME)

    async def _relay(self, slice: int, files: Any, plan: Any) -> None:
        """From the start of a load process to its files in the run directory."""
        actor, last, code = self._actors[slice], [], None
        try:
            await actor.begin.remote(self._jobs[slice], self._logs[slice], files, plan)
            while (line := await actor.line.remote()) is not None:
                event = json.loads(line)
                if event["event"] in _AT_ONCE:
                    self._say({"slice": slice, **event})
                else:
                    last.append(event)
            await self._read_clock(slice, self._end)
            await self._fetch(actor)
            code = await actor.ended.remote()
        except RayError as error:
            last = [{"event": "error", "message": self._lost(slice, error)}]
        for event in [*last, {"event": "end", "code": code}]:
            self._say({"slice": slice, **event})

    def _lost(self, slice: int, error: RayError) -> str:
        place, why = self._places[slice], (str(error).splitlines() or [""])[0]
        return (
            f"load process {slice} was lost with its Ray actor ({type(error).__name__}: {why}); what it "
            f"recorded may still be on {place['host']} in {place['folder']}"
        )

    async def _fetch(self, actor: Any) -> None:
        for name in await actor.files.remote():
            with (self._folder / name).open("wb") as file:
                while piece := await actor.piece.remote(name, file.tell(), _PIECE):
                    file.write(piece)

    async def _obey(self, end: Callable[[], object]) -> None:
        commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        listening = asyncio.create_task(listen(commands))
        try:
            while True:
                command = await commands.get()
                if "start" in command:
                    await self._tell_start(command["start"])
                elif "end" in command:
                    end()
                else:
                    for slice in [command.pop("slice")] if "slice" in command else range(len(self._actors)):
                        self._actors[slice].tell.remote(command)
        finally:
            listening.cancel()

    async def _tell_start(self, t0: int) -> None:
        """t0 of each host by its own clock. An actor that does not answer is lost, as its relay will say."""
        slices = range(len(self._actors))
        await asyncio.gather(
            *(self._read_clock(slice, self._start) for slice in slices), return_exceptions=True
        )
        for actor, place in zip(self._actors, self._places, strict=True):
            if (reading := self._start.get(place["clock"])) is not None:
                actor.tell.remote({"start": t0 + reading.offset})

    async def _read_clock(self, slice: int, readings: dict[str, Reading]) -> None:
        """Keep the tightest reading of the host's clock. Raises RayError."""
        clock, actor = self._places[slice]["clock"], self._actors[slice]
        if clock == self._clock:
            readings[clock] = OURS
            return
        for _ in range(_QUESTIONS):
            here, before = sample_clock(), monotonic()
            there = ClockSample(*await actor.clock.remote())
            reading = Reading.of(before, here, there, monotonic())
            readings[clock] = min(reading, readings.get(clock, reading), key=lambda one: one.width)

    def _clocks(self) -> dict[str, Any]:
        """By host, and by its node where a host has several (time namespaces); none if lost before t0."""
        names: dict[str, str] = {}
        for place in self._places:
            host, node = place["host"], place["node"][:8]
            taken = place["clock"] not in names and host in names.values()
            names.setdefault(place["clock"], f"{host}/{node}" if taken else host)
        return {names[clock]: host_clock(start, self._end.get(clock)) for clock, start in self._start.items()}

    async def _close(self) -> None:
        """End the load processes. An actor that does not do it in time is killed."""
        closing = asyncio.gather(*(actor.close.remote() for actor in self._actors), return_exceptions=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(closing, CLOSE_LIMIT_S)
        for actor in self._actors:
            ray.kill(actor)

    def _say(self, event: dict[str, Any]) -> None:
        self._out.write(json.dumps(event) + "\n")
        self._out.flush()


@contextmanager
def connected(address: str, processes: int) -> Iterator[None]:
    """Be a driver of the cluster; of one of our own, which ends with us, for ``local``. Raises Refused."""
    with ExitStack() as stack:
        own: dict[str, Any] = {}
        if address == "local":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-ray-"))
            stack.enter_context(_outliving_orphans())
            own = {"num_cpus": processes, "include_dashboard": False, "_temp_dir": folder}
            os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        elif address != "auto":
            _look(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise Refused(f"there is no Ray cluster to be had at {address}: {error}", _START) from error
        stack.callback(ray.shutdown)
        yield


@contextmanager
def _outliving_orphans() -> Iterator[None]:
    """Leave only when all that was started within is gone: Ray does not wait for what it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    yield
    end = monotonic() + round(CLOSE_LIMIT_S * 1e9)
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
                if monotonic() > end:
                    _kill_children()


def _kill_children() -> None:
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _look(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 5.0).close()
    except OSError as error:
        raise Refused(f"no Ray cluster answers at {address}: {error}", _START) from error


def main(order_file: str) -> int:
    """Entry point. What libraries print goes to stderr; stdout is for bench alone."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        order = json.loads(Path(order_file).read_text())
        try:
            with connected(order["address"], len(order["jobs"])):
                asyncio.run(Driver(order, out).run())
        except Refused as refused:
            out.write(json.dumps({"event": "refused", "lines": refused.args}) + "\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
