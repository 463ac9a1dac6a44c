"""What one read costs the live client: sockets, stamps and HTTP framing, with a sink that only keeps.

    python benchmarks/client_reads.py [--rate 100000] [--streams 1000] [--seconds 3] [--user] [--free]

A process of its own writes one event at a time to each of many streams, evenly paced. Prints the CPU time
of this process per read (kernel included), then one JSON line; ``quiet_us_per_read`` is that of the
quietest tenth of the time, which is what to look at where the machine is not idle. ``--user`` does without
the kernel's stamps, and so without gathering reads. With two or more CPUs each side is pinned to one,
unless ``--free``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import uvloop

from loadgen import native
from loadgen.client import Address, Client
from loadgen.clock import monotonic
from loadgen.foresight import raise_descriptor_limit
from loadgen.lane import Lane, make_lane
from loadgen.log import Log, make_log
from loadgen.transport import Ending, HttpRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DELTA = {"index": 0, "delta": {"content": " token"}, "finish_reason": None}
EVENT = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [DELTA],
}
USUAL = b'data: {"id": "ch'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def write(streams: int, rate: float, seconds: float, free: bool) -> None:
    """The other side: waits until all streams have asked, then writes around until the time is over."""
    _pin(-1, free)
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(server.getsockname()[1], flush=True)
    ends = []
    for _ in range(streams):
        end, _ = server.accept()
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends.append(end)
    for end in ends:
        end.recv(65_536)
        end.send(HEAD)
    event = chunk(b"data: " + json.dumps(EVENT).encode() + b"\n\n")
    begin = time.monotonic_ns() + 200_000_000
    late = 0
    for k in range(int(rate * seconds)):
        due = begin + int(k / rate * 1e9)
        while (now := time.monotonic_ns()) < due:
            pass
        late = max(late, now - due)
        ends[k % streams].send(event)
    for end in ends:
        end.send(b"0\r\n\r\n")
    print(late, flush=True)


@dataclass
class Kept:
    """A Sink that keeps what it is given, as the driver does."""

    done: asyncio.Future[None]
    log: Log = field(default_factory=make_log)

    def connected(self, t: int, new: bool) -> None: ...

    def sent(self, t: int) -> None: ...

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None: ...

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self.log.add(t, real, chunk)

    def lane(self) -> Lane:
        """All events of this benchmark begin alike."""
        return make_lane(USUAL, (), self.log)

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.done.set_result(None)


async def watch(sinks: list[Kept], slices: list[tuple[int, int]]) -> None:
    """CPU time and reads so far, every 50 ms."""
    while True:
        await asyncio.sleep(0.05)
        slices.append((time.process_time_ns(), sum(len(sink.log) for sink in sinks)))


async def read(port: int, streams: int, user: bool) -> dict[str, object]:
    client = Client(Address("127.0.0.1", port), monotonic, kernel_stamps=False if user else None)
    await client.warm(streams)
    loop = asyncio.get_running_loop()
    sinks = [Kept(loop.create_future()) for _ in range(streams)]
    for sink in sinks:
        client.send(HttpRequest("POST", "/v1/chat/completions", (), b"{}"), sink)
    await asyncio.sleep(0.1)
    gc.collect()
    gc.freeze()
    gc.disable()
    cpu, wall, before = time.process_time_ns(), time.monotonic_ns(), os.times()
    slices: list[tuple[int, int]] = [(cpu, 0)]
    watching = asyncio.create_task(watch(sinks, slices))
    await asyncio.gather(*(sink.done for sink in sinks))
    cpu, wall = time.process_time_ns() - cpu, time.monotonic_ns() - wall
    system = os.times().system - before.system
    watching.cancel()
    await client.close()
    reads = sum(len(sink.log) for sink in sinks)
    costs = sorted((b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(slices) if b[1] - a[1] > 500)
    return {
        "quiet_us_per_read": round(costs[len(costs) // 10] / 1e3, 2) if costs else None,
        "reads": reads,
        "events": sum(chunk.count(b"\n\n") for sink in sinks for chunk in sink.log.chunks),
        "us_per_read": round(cpu / 1e3 / reads, 2),
        "system_us_per_read": round(system * 1e6 / reads, 2),
        "cpu_share": round(cpu / wall, 3),
        "kernel_stamps": client.kernel_stamps,
        "kept": native.reads(),
        "stamped": sum(sum(1 for real in sink.log.reals if real) for sink in sinks),
    }


def _pin(cpu: int, free: bool) -> None:
    if hasattr(os, "sched_setaffinity") and not free:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 1:
            os.sched_setaffinity(0, {cpus[cpu]})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=100_000.0, help="events per second")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--user", action="store_true", help="no kernel stamps")
    parser.add_argument("--free", action="store_true", help="pin nothing")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raise_descriptor_limit()
    if args.write:
        write(args.streams, args.rate, args.seconds, args.free)
        return
    sizes = ["--rate", str(args.rate), "--streams", str(args.streams), "--seconds", str(args.seconds)]
    command = [sys.executable, __file__, "--write", *sizes, *(["--free"] if args.free else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        _pin(0, args.free)
        port = int(writer.stdout.readline())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(read(port, args.streams, args.user))
        late = int(writer.stdout.readline())
    result |= {"rate": args.rate, "streams": args.streams, "writer_late_ms": round(late / 1e6, 2)}
    result["load_average"] = round(os.getloadavg()[0], 2)
    print(
        f"{result['us_per_read']} us of CPU per read, {result['quiet_us_per_read']} in the quietest tenth;"
        f" {result['reads']} reads at {args.rate:g}/s"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
