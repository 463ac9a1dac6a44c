"""Our load generator against the reference server, certified token by token (MEASUREMENT C42).

    python -m benchmarks.client [--rates 100,500,1000,2000] [--window 5] [--processes 1]
    python -m benchmarks.client --block      # its event loop held up 20 ms every 100 ms, 500 streams/s
    python -m benchmarks.client --million    # memory: 1,000,000 requests of 50 tokens

Server and load process are pinned to cores of their own. Prints a table, then one JSON line. Run it on an
idle machine: load average, CPU steal and the cores that others used stand in the line, and what bare C needs
for the same reads and writes at the highest rate (benchmarks/floor.py), if there is a C compiler.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.floor import Floor, floor
from headrace.capacity import Step, judge
from headrace.doctor import placed
from headrace.machine import machine
from headrace.probe import Probed, as_dict, prevented, probe
from headrace.probed import Order
from loadgen.arrivals import Constant, Poisson
from loadgen.owncores import kept_awake
from loadgen.reference.group import ReferenceServer
from loadgen.reference.log import LogTail
from loadgen.reference.script import Framing, Script

RATES = "100,200,500,1000,1500,2000"
BLOCK = (0.02, 0.1)
"""s, every s."""
BLOCK_RATE = 500.0
MILLION = 1_000_000
COLUMNS = (
    ("asked/s", "rate", 8, "{:,.0f}"),
    ("delivered", "delivered", 10, "{:,.1f}"),
    ("ttft p50", "ttft_p50", 9, "{:.3f}"),
    ("p99 ms", "ttft_p99", 8, "{:.3f}"),
    ("token p50", "token_p50", 10, "{:.3f}"),
    ("p99 ms", "token_p99", 8, "{:.3f}"),
    ("1-event p99", "one_event_p99", 12, "{:.3f}"),
    ("alone", "one_event_share", 7, "{:.1%}"),
    ("late p99", "lateness_p99", 9, "{:.3f}"),
    ("us/event", "us_per_event", 9, "{:.2f}"),
    ("client", "client_cpu", 7, "{:.0%}"),
    ("server", "server_cpu", 7, "{:.0%}"),
    ("srv late", "server_late_p99", 9, "{:.3f}"),
    ("lost", "lost", 6, "{}"),
)


def main() -> None:
    asked = _arguments()
    server_cpus, client_cpus = _cores(asked)
    script = _script(asked)
    server = ReferenceServer(
        script, processes=asked.server_processes, cpus=server_cpus, keep_log=not asked.million
    )
    load = os.getloadavg()
    orders = _orders(asked, script, client_cpus)
    with kept_awake():  # as load processes do
        bare = _floor(max(orders, key=lambda order: order.rate), client_cpus[0], server_cpus[0])
    print("  ".join(f"{title:>{width}}" for title, _, width, _ in COLUMNS))
    with server:
        cost = server.us_per_write
        tail = None if asked.million else server.tail()
        probed = [_step(order, server, tail) for order in orders]
        summaries = server.stop()
    print(
        json.dumps(
            {
                "benchmark": "client",
                "blocked": BLOCK if asked.block else None,
                "processes": asked.processes,
                "arrival": asked.arrival,
                "head": asked.head,
                "steps": [as_dict(one) for one in probed],
                "floor": bare,
                "server": {"us_per_write": cost, "processes": summaries},
                "cores": {"server": server_cpus, "client": client_cpus},
                "machine": machine().as_dict(),
                "python": platform.python_version(),
                "load_average": [round(load[0], 2), round(os.getloadavg()[0], 2)],
            }
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rates", help=f"streams/s, one after the other [{RATES}; {BLOCK_RATE:g} with --block]"
    )
    parser.add_argument("--window", type=float, default=5.0, help="s that count, after 1 s of warm-up")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--arrival", choices=("poisson", "constant"), default="poisson")
    parser.add_argument(
        "--head",
        choices=("at once", "with the first"),
        default="at once",
        help="when the server writes the HTTP head; if 40 ms pass before the first event, as they do here,\n"
        "Linux acknowledges each event when it is read, else every second one [at once]",
    )
    parser.add_argument("--processes", type=int, default=1, help="load processes")
    parser.add_argument("--server-processes", type=int, default=1)
    parser.add_argument("--server-cpus", help="such as 1 [the last cores]")
    parser.add_argument("--client-cpus", help="such as 0 [the first cores, one a load process]")
    parser.add_argument("--clerk-cpus", help="of the processes beside the load processes [as theirs]")
    parser.add_argument("--block", action="store_true", help="hold the event loop up on purpose")
    parser.add_argument("--million", action="store_true", help="one long step at the first of --rates [1500]")
    return parser.parse_args()


def _script(asked: argparse.Namespace) -> Script:
    return Script(ttft=0.05, itl=0.01, framing=Framing(head=asked.head))


def _cores(asked: argparse.Namespace) -> tuple[tuple[int, ...], tuple[int, ...]]:
    server, client = placed(machine().usable_cores, asked.server_processes)
    client = client[: asked.processes]
    return _numbers(asked.server_cpus) or server, _numbers(asked.client_cpus) or client


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",")) if text else ()


def _orders(asked: argparse.Namespace, script: Script, cpus: tuple[int, ...]) -> list[Order]:
    usual = f"{BLOCK_RATE:g}" if asked.block else "1500" if asked.million else RATES
    rates = [float(word) for word in (asked.rates or usual).split(",")]
    arrival = Poisson if asked.arrival == "poisson" else Constant
    orders = [
        Order(
            arrival(rate),
            rate,
            script,
            window=asked.window,
            warmup=1.0,
            tokens=asked.tokens,
            processes=asked.processes,
            cpus=cpus,
            clerk_cpus=_numbers(asked.clerk_cpus),
            lead=4.0,
            block=BLOCK if asked.block else None,
        )
        for rate in rates
    ]
    # A little longer than the mean asks for, so that chance does not make it fewer.
    return [replace(orders[0], window=1.005 * MILLION / rates[0])] if asked.million else orders


def _floor(order: Order, client_cpu: int, server_cpu: int) -> Floor | None:
    """For as many streams at once, and as many events."""
    script, tokens = order.script, order.tokens
    streams = round(order.rate * (script.ttft + (tokens - 1) * script.itl))
    try:
        found = floor(streams, order.rate * tokens, client_cpu, server_cpu)
    except OSError as error:
        print(f"no figure of bare C: {error}")
        return None
    event, write = found["us_per_event"], found["us_per_write"]
    print(f"bare C on these cores: {event:.2f} us to read an event, {write:.2f} to write one")
    return found


def _step(order: Order, server: ReferenceServer, tail: LogTail | None) -> Probed:
    if (step := prevented(order, machine())) is not None:
        raise SystemExit(f"{order.rate:g} streams/s cannot be tried: {step.why}")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        probed = asyncio.run(probe(order, server, tail, Path(folder)))
    print(row(probed.step), flush=True)
    for reason in judge(probed.step, 1.0).reasons:
        print(f"{'':10}{reason}")
    if tail is None:
        peak = probed.peak_bytes or 0
        print(f"{'':10}{probed.step.planned:,} requests, load process at most {peak / 1e9:.2f} GB")
    return probed


def row(step: Step) -> str:
    return "  ".join(_cell(getattr(step, name), width, form) for _, name, width, form in COLUMNS)


def _cell(value: Any, width: int, form: str) -> str:
    return f"{'–' if value is None else form.format(value):>{width}}"


if __name__ == "__main__":
    main()
