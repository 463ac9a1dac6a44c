"""The load of a live run: one load process or several, each with its slice of the plan."""

from __future__ import annotations

import asyncio
import heapq
import json
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from headrace.errors import TargetFailed
from headrace.processes import Child
from headrace.site import TEXTS, LoadEnd, LoadOrder, OnTick
from loadgen.health import merged as merged_signals
from loadgen.job import LoadJob, TargetJob
from loadgen.observed_io import read_observed
from loadgen.plan import Plan
from loadgen.progress import merged as merged_progress
from results.attribution.observed import Observed

_FEWEST_WARM, _MOST_WARM = 16, 1000


class LoadProcess(Protocol):
    """One load process, near or far, as `Child` is."""

    async def read_line(self) -> bytes: ...
    def tell(self, message: dict[str, Any]) -> None: ...
    async def ended(self, limit: float) -> int | None: ...
    async def end(self, limit: float) -> int | None: ...


class LiveLoad:
    """Load processes, told what to do over their stdin and heard over their stdout (loadgen.process)."""

    def __init__(self, children: Sequence[LoadProcess], order: LoadOrder, on_tick: OnTick) -> None:
        self._children = children
        self._order = order
        self._on_tick = on_tick
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._slices = {shot.id: shot.slice for shot in order.plan.shots}

    @staticmethod
    async def begin(target: TargetJob, order: LoadOrder, on_tick: OnTick) -> LiveLoad:
        """Start the processes and wait until their connections are warm. Raises TargetFailed."""
        children: list[Child] = []
        load = LiveLoad(children, order, on_tick)
        with tempfile.TemporaryDirectory(prefix="headrace-jobs-") as folder:
            try:
                for slice, job in enumerate(jobs(target, order)):
                    file = Path(folder) / f"{slice}.json"
                    file.write_text(json.dumps(job.as_dict()))
                    command = ["-m", "loadgen.process", str(file)]
                    children.append(await Child.start(command, log_of(order, slice)))
            except BaseException:
                await load.close()
                raise
            await load.until_ready()
        return load

    async def until_ready(self) -> None:
        """Wait until all are; else end them. Raises TargetFailed."""
        try:
            for slice, child in enumerate(self._children):
                await self._until_ready(slice, child)
        except BaseException:
            await self.close()
            raise

    async def _until_ready(self, slice: int, child: LoadProcess) -> None:
        event = await _next(child)
        if event is None or event["event"] != "ready":
            code = await child.ended(5.0)
            why = event["message"] if event is not None else f"it ended with exit code {code}"
            log = log_of(self._order, slice)
            raise TargetFailed(f"the load process could not begin: {why}", f"see {log}")

    def start(self, t0: int) -> None:
        for child in self._children:
            child.tell({"start": t0})

    async def finished(self) -> LoadEnd:
        """Until all of them are done. One that dies takes no other with it: their records count."""
        ends = await asyncio.gather(*(self._hear(slice) for slice in range(len(self._children))))
        lost = [end for end in ends if isinstance(end, str)]
        done = [end for end in ends if not isinstance(end, str)]
        signals = merged_signals([_signals(k, end) for k, end in enumerate(ends)])
        interrupted = any(end["interrupted"] for end in done)
        error = next((end["observe_error"] for end in done if end.get("observe_error")), None)
        self._join_texts()
        # Of a part of the load nothing could be said: what the rest left in the cache would be missing.
        observed = self._observed(whole=not lost and error is None)
        return LoadEnd(signals, interrupted, observed, error, "; ".join(lost) or None)

    async def _hear(self, slice: int) -> dict[str, Any] | str:
        """What a process says at its end, or why it never did."""
        child, why = self._children[slice], None
        while (event := await _next(child)) is not None:
            if event["event"] == "progress":
                self._snapshots[slice] = event
                self._on_tick(merged_progress(list(self._snapshots.values())))
            elif event["event"] == "done":
                return event
            elif event["event"] == "error":
                why = str(event["message"])
        code = await child.ended(5.0)
        return why or f"load process {slice} died (exit code {code})"

    def _observed(self, whole: bool) -> list[Observed] | None:
        """What all of them observed, in order of time; None if that is not the whole, or nothing."""
        found = self._parts(_observed_name)
        rows = (one for file in found for one in read_observed(file))
        observed = sorted(rows, key=lambda one: one.ts_start) if found and whole else None
        for file in found:
            file.unlink()
        return observed

    def _join_texts(self) -> None:
        """One file in order of id, as each part is, without the line that a kill cut off."""

        def id_of(line: bytes) -> int:
            return int(json.loads(line)["id"])

        found = self._parts(_texts_name)
        if not found:
            return
        with ExitStack() as stack:
            parts = [_whole_lines(stack.enter_context(file.open("rb"))) for file in found]
            lines: Iterator[bytes] = heapq.merge(*parts, key=id_of)
            stack.enter_context((self._order.folder / TEXTS).open("wb")).writelines(lines)
        for file in found:
            file.unlink()

    def _parts(self, name: Callable[[int], str]) -> list[Path]:
        files = [self._order.folder / name(slice) for slice in range(len(self._children))]
        return [file for file in files if file.exists()]

    def stop(self) -> None:
        for child in self._children:
            child.tell({"stop": True})

    async def close(self) -> None:
        await asyncio.gather(*(child.end(5.0) for child in self._children))

    def cancel(self, shot: int) -> None:
        self._children[self._slices[shot]].tell({"cancel": shot})

    def request_id(self, shot: int) -> str:
        return f"{self._order.tag}-{shot}"


def _signals(slice: int, end: dict[str, Any] | str) -> dict[str, Any]:
    """What a load process measured of itself, or why it is not known."""
    return {"process": slice} | ({"reason": end} if isinstance(end, str) else end["signals"])


def jobs(target: TargetJob, order: LoadOrder) -> list[LoadJob]:
    """What each load process is told."""
    salt = secrets.randbits(63)
    return [_job(target, order, slice, salt) for slice in range(order.processes)]


def _job(target: TargetJob, order: LoadOrder, slice: int, salt: int) -> LoadJob:
    folder = order.folder
    caps = {name: cap.share(slice, order.processes) for name, cap in order.rules.caps.items()}
    return LoadJob(
        plan=str(folder / "plan.parquet"),
        records=str(folder / f"records-{slice}.arrow"),
        attempts=str(folder / f"attempts-{slice}.arrow"),
        target=target,
        slice=slice,
        tag=order.tag,
        nonce=order.nonce,
        unit=order.unit,
        tokenizer=order.tokenizer,
        whole=order.whole,
        rules=order.rules.with_caps(caps),
        warm_connections=warm_connections(order.plan, slice, order.connections),
        connections=order.connections,
        observed=str(folder / _observed_name(slice)) if target.options.get("own") else None,
        texts=str(folder / _texts_name(slice)) if order.keep_text else None,
        salt=salt,
    )


def warm_connections(plan: Plan, slice: int, most: int | None) -> int:
    """Connections to open ahead: as many as requests of the slice are due in its busiest second."""
    seconds = Counter(
        shot.due_ns // 1_000_000_000 for shot in plan.shots if shot.slice == slice and shot.due_ns is not None
    )
    busiest = max(seconds.values(), default=0)
    return min(max(_FEWEST_WARM, busiest), _MOST_WARM, most or _MOST_WARM)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    return (line for line in file if line.endswith(b"\n"))


def _observed_name(slice: int) -> str:
    return f"observed-{slice}.arrow"


def _texts_name(slice: int) -> str:
    return f"texts-{slice}.jsonl"


def log_of(order: LoadOrder, slice: int) -> Path:
    return order.folder / ("load.log" if slice == 0 else f"load-{slice}.log")


async def _next(child: LoadProcess) -> dict[str, Any] | None:
    line = await child.read_line()
    if not line.endswith(b"\n"):  # its end, or half a line of one that was killed
        return None
    event: dict[str, Any] = json.loads(line)
    return event
