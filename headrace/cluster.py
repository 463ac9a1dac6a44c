"""The load of a live run on several machines: Ray places the load processes and carries their words and
files; requests and answers never go through it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import UsageFailed
from headrace.hostclocks import clock_id
from headrace.live_load import LiveLoad, jobs, log_of
from headrace.prepare import is_local
from headrace.processes import Child
from headrace.site import LoadEnd, LoadOrder, OnTick
from loadgen.job import TargetJob

LOG = "cluster.log"
"""In the run directory: stderr of the process that speaks to Ray."""
PLACE_LIMIT_S = 60.0
"""How long Ray may take to start an actor for each load process."""
_JOIN_LIMIT_S = 60.0
"""How long it may take to become part of the cluster, or to make one."""
_CLOSE_LIMIT_S = 30.0


def check_ray() -> None:
    """Raises UsageFailed where Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageFailed("client.launcher: ray needs Ray: pip install 'headrace[cluster]'")


class FarProcess:
    """A load process (live_load.LoadProcess) that the Ray driver speaks for."""

    def __init__(self, slice: int, driver: Child) -> None:
        self._slice, self._driver = slice, driver
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._code: int | None = None
        self.over = False

    def heard(self, event: dict[str, Any]) -> None:
        """From the driver: one of its events, ``end`` after the last."""
        self.over = self.over or event["event"] == "end"
        if event["event"] == "end":
            self._code = event["code"]
        self._lines.put_nowait(b"" if self.over else json.dumps(event).encode() + b"\n")

    async def read_line(self) -> bytes:
        return await self._lines.get()

    def tell(self, message: dict[str, Any]) -> None:
        self._driver.tell({"slice": self._slice, **message})

    async def ended(self, limit: float) -> int | None:
        return self._code

    async def end(self, limit: float) -> int | None:
        """Nothing: the driver ends all of them."""
        return self._code


class RayLoad(LiveLoad):
    """Load processes that Ray has placed. One that is lost with its actor or node is lost load."""

    def __init__(
        self, driver: Child, order: LoadOrder, on_tick: OnTick, places: list[dict[str, Any]]
    ) -> None:
        self._far = [FarProcess(slice, driver) for slice in range(order.processes)]
        super().__init__(self._far, order, on_tick)
        self._driver = driver
        self._facts: dict[str, Any] = {}
        self.places = places
        """By slice: host, node, pid of the actor (headrace.cluster_actor.LoadActor.about)."""
        self._hearing = asyncio.create_task(self._hear_driver())

    @staticmethod
    async def begin(target: TargetJob, order: LoadOrder, on_tick: OnTick) -> RayLoad:
        """Place the processes and wait until their connections are warm. Raises UsageFailed, TargetFailed."""
        check_ray()
        with tempfile.TemporaryDirectory(prefix="headrace-jobs-") as folder:
            file = Path(folder) / "order.json"
            file.write_text(json.dumps(_driver_order(target, order)))
            driver = await Child.start(["-m", "headrace.cluster_driver", str(file)], order.folder / LOG)
            try:
                places = await _joined(driver, target, order)
            except BaseException:
                await driver.end(_CLOSE_LIMIT_S)
                raise
        load = RayLoad(driver, order, on_tick, places)
        await load.until_ready()
        return load

    def start(self, t0: int) -> None:
        """The driver makes t0 of it by each host's clock."""
        self._driver.tell({"start": t0})

    async def finished(self) -> LoadEnd:
        end = await super().finished()
        await self._hearing
        shown = [{key: place[key] for key in ("host", "node", "niceness")} for place in self.places]
        return replace(end, facts={**self._facts, "placement": shown})

    async def close(self) -> None:
        self._hearing.cancel()
        self._driver.tell({"end": True})  # a signal would cut Ray short where it ends its processes
        await self._driver.ended(_CLOSE_LIMIT_S)

    async def _hear_driver(self) -> None:
        """Until it has told the facts. What it did not see the end of is lost if it dies."""
        while (line := await self._driver.read_line()).endswith(b"\n"):
            event = json.loads(line)
            if event["event"] == "facts":
                del event["event"]
                self._facts = event
                return
            self._far[event.pop("slice")].heard(event)
        code = await self._driver.ended(5.0)
        log = self._order.folder / LOG
        why = f"the process that speaks to Ray died (exit code {code}); see {log}"
        for far in self._far:
            if not far.over:
                far.heard({"event": "error", "message": why})
                far.heard({"event": "end", "code": code})


def _driver_order(target: TargetJob, order: LoadOrder) -> dict[str, Any]:
    return {
        "address": order.ray_address,
        "folder": str(order.folder),
        "clock": clock_id(),
        "limit_s": PLACE_LIMIT_S,
        "jobs": [job.as_dict() for job in jobs(target, order)],
        "logs": [log_of(order, slice).name for slice in range(order.processes)],
    }


async def _joined(driver: Child, target: TargetJob, order: LoadOrder) -> list[dict[str, Any]]:
    """Where the load processes are. Raises UsageFailed if they cannot be had or not reach the target."""
    log, limit = order.folder / LOG, _JOIN_LIMIT_S + PLACE_LIMIT_S
    try:
        line = await asyncio.wait_for(driver.read_line(), limit)
    except TimeoutError:
        where = f"Ray ({order.ray_address})"
        raise UsageFailed(f"{where} has not answered within {limit:g} s", f"see {log}") from None
    if not line.endswith(b"\n"):
        code = await driver.ended(5.0)
        raise UsageFailed(f"the process that speaks to Ray died (exit code {code})", f"see {log}")
    event = json.loads(line)
    if event["event"] == "refused":
        raise UsageFailed(*event["lines"])
    ours = clock_id()
    for slice, place in enumerate(event["places"]):
        if is_local(target.url) and place["clock"] != ours:
            raise UsageFailed(
                f"load process {slice} is on {place['host']}, which cannot reach {target.url}: that is an "
                "address of this machine alone",
                "Give the target as a URL that every node reaches, or use `client: {ray_address: local}`.",
            )
    places: list[dict[str, Any]] = event["places"]
    return places
