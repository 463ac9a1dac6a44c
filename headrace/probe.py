"""One step of load against the reference server, and what it says about both of them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.capacity import Limit, Step
from headrace.machine import Machine, busy_seconds, children_of, cpu_seconds, resident_peak, shares
from headrace.probed import DRAIN_S, Order, measured, records_of
from headrace.processes import Child
from loadgen.certify import Certificate
from loadgen.clock import monotonic, sleep_until
from loadgen.health import merged
from loadgen.job import LoadJob, TargetJob
from loadgen.plan_io import write_plan
from loadgen.reference.group import ReferenceServer
from loadgen.reference.log import LogTail

_LOG_NS = 250_000_000
"""Within this the server's log has what ended."""
_READY_S = 60.0
_RECORD_S = 1e-3
"""A record of 50 tokens takes a quarter of this, and at the client's limit most are made after the load."""
_SPARE_FDS = 64
_ROOM = 1.3
"""Connections for each stream that the script has at a time: one opened in the window costs as much as two
dozen events."""


class ProbeFailed(Exception):
    """A load process could not begin, or died; says why."""


def prevented(order: Order, machine: Machine) -> Step | None:
    """The step as it would fail for want of descriptors or ports; None if it may be tried."""
    each = order.in_flight / order.processes * _ROOM + _SPARE_FDS
    if each > machine.fds[1]:
        why = f"{each:,.0f} file descriptors are needed by a process, and at most {machine.fds[1]:,} allowed"
        return _not_run(order, "fds", why)
    if machine.ports is not None and order.in_flight * _ROOM > machine.ports[1] - machine.ports[0] + 1:
        count = machine.ports[1] - machine.ports[0] + 1
        return _not_run(
            order, "ports", f"{order.in_flight * _ROOM:,.0f} local ports are needed, there are {count:,}"
        )
    return None


def _not_run(order: Order, limit: Limit, why: str) -> Step:
    return Step(order.rate, order.tokens, prevented=limit, why=why)


@dataclass(frozen=True, slots=True)
class Probed:
    """A step and what stands behind it."""

    step: Step
    certificate: Certificate
    signals: dict[str, Any]
    peak_bytes: int | None
    """Most memory of a load process."""


async def probe(order: Order, server: ReferenceServer, tail: LogTail | None, folder: Path) -> Probed:
    """Run one step; ``folder`` is empty and keeps its files. Raises ProbeFailed."""
    plan = order.plan()
    write_plan(plan, folder / "plan.parquet")
    tag = secrets.token_hex(4)
    children: list[Child] = []
    try:
        for slice in range(order.processes):
            children.append(await _start(order, slice, server.url, tag, folder))
        for child in children:
            await _ready(child, folder)
            _place_clerk(child, order.clerk_cpus)
        t0 = monotonic() + round(order.lead * 1e9)
        used, ends, peak = await _load(order, children, server, folder, t0)
    except BaseException:
        for child in children:
            await child.end(2.0)
        raise
    finally:
        for child in children:
            await _closed(child)
    await sleep_until(monotonic() + _LOG_NS, monotonic)
    entries = [entry for entry in tail.new() if entry.request_id.startswith(tag)] if tail else []
    records = records_of(order, folder)
    signals = [end["signals"] for end in ends]
    step, certificate = measured(order, plan, records, entries, t0, signals)
    step = replace(
        step,
        client_cpu=used["client_cpu"],
        clerk_cpu=used["clerk_cpu"],
        server_cpu=used["server_cpu"],
        others_cpu=used.get("others_cpu"),
    )
    return Probed(step, certificate, merged(signals), peak)


async def _load(
    order: Order, children: Sequence[Child], server: ReferenceServer, folder: Path, t0: int
) -> tuple[dict[str, float | None], list[dict[str, Any]], int | None]:
    """The load itself: CPU that was used, what each process said at its end, the largest peak of memory."""
    for child in children:
        child.tell({"start": t0})
    watch = asyncio.create_task(_watch(order, children, server, t0))
    load = order.phases.load_ns / 1e9
    limit = order.lead + load + 2 * DRAIN_S + _READY_S + order.rate * load * _RECORD_S
    try:
        async with asyncio.timeout(limit):
            ends = await asyncio.gather(*(_finished(child, folder) for child in children))
            used = await watch
    except TimeoutError as error:
        raise ProbeFailed(f"the load did not end within {limit:.0f} s; {_log_of(folder)}") from error
    finally:
        watch.cancel()
    peaks = [size for child in children if (size := resident_peak(child.pid)) is not None]
    return used, ends, max(peaks, default=None)


async def _start(order: Order, slice: int, url: str, tag: str, folder: Path) -> Child:
    job = LoadJob(
        plan=str(folder / "plan.parquet"),
        records=str(folder / f"records-{slice}.arrow"),
        attempts=str(folder / f"attempts-{slice}.arrow"),
        target=TargetJob(url, "openai_chat", {"model": order.script.model}),
        slice=slice,
        tag=tag,
        warm_connections=round(order.in_flight / order.processes * _ROOM) + 16,
        block=order.block,
        own_cores=bool(order.cpus),
    )
    file = folder / f"job-{slice}.json"
    file.write_text(json.dumps(job.as_dict()))
    child = await Child.start(["-m", "loadgen.process", str(file)], folder / "load.log")
    if order.cpus and sys.platform == "linux":
        own = len(order.cpus) >= order.processes
        os.sched_setaffinity(child.pid, {order.cpus[slice]} if own else order.cpus)
    return child


def _place_clerk(child: Child, cpus: tuple[int, ...]) -> None:
    if cpus and sys.platform == "linux":
        for pid in children_of(child.pid):
            os.sched_setaffinity(pid, cpus)


async def _ready(child: Child, folder: Path) -> None:
    event = await asyncio.wait_for(_next(child), _READY_S)
    if event is None or event["event"] != "ready":
        why = event["message"] if event is not None else f"it ended with exit code {await child.ended(5.0)}"
        raise ProbeFailed(f"a load process could not begin: {why}; {_log_of(folder)}")


async def _finished(child: Child, folder: Path) -> dict[str, Any]:
    while (event := await _next(child)) is not None:
        if event["event"] == "done":
            return event
        if event["event"] == "error":
            raise ProbeFailed(f"a load process failed: {event['message']}; {_log_of(folder)}")
    raise ProbeFailed(f"a load process died (exit code {await child.ended(5.0)}); {_log_of(folder)}")


async def _closed(child: Child) -> None:
    """Until its records are complete: its clerk, which writes them, holds its stdout open that long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while await child.read_line():
                pass
    await child.end(2.0)


async def _next(child: Child) -> dict[str, Any] | None:
    line = await child.read_line()
    event: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
    return event


def _log_of(folder: Path) -> str:
    text = (folder / "load.log").read_text(errors="replace").strip()
    return f"it said: {text[-500:]}" if text else "it said nothing"


async def _watch(
    order: Order, children: Sequence[Child], server: ReferenceServer, t0: int
) -> dict[str, float | None]:
    """CPU of the processes over the window, as fields of a Step."""
    groups = {
        "client_cpu": [child.pid for child in children],
        "clerk_cpu": [pid for child in children for pid in children_of(child.pid)],
        "server_cpu": server.pids,
    }
    pids = [pid for group in groups.values() for pid in group]
    a, b = order.phases.window_ns
    await sleep_until(t0 + a, monotonic)
    before, busy_before = {pid: cpu_seconds(pid) for pid in pids}, busy_seconds()
    await sleep_until(t0 + b, monotonic)
    after, busy_after = {pid: cpu_seconds(pid) for pid in pids}, busy_seconds()
    span = (b - a) / 1e9
    used: dict[str, float | None] = {
        name: max(shares({pid: before[pid] for pid in group}, after, span), default=None)
        for name, group in groups.items()
    }
    if busy_before is not None and busy_after is not None:
        ours = sum(shares(before, after, span))
        used["others_cpu"] = max(0.0, (busy_after - busy_before) / span - ours)
    return used


def as_dict(probed: Probed) -> dict[str, Any]:
    """For JSON."""
    return {
        **asdict(probed.step),
        "certificate": probed.certificate.as_dict(),
        "signals": probed.signals,
        "peak_bytes": probed.peak_bytes,
    }
