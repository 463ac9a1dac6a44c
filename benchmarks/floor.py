"""What the kernel alone asks for an event: the same sockets, read and written by bare C (floor.c).

    python -m benchmarks.floor [--streams 1080] [--rate 100000] [--client-cpu 0] [--server-cpu 1]

A figure of CPU time an event belongs to its machine; that of bare C on the same machine in the same minute
says what of it is the machine. Needs a C compiler (``cc``, or what CC names). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

from loadgen.foresight import raise_descriptor_limit

SOURCE = Path(__file__).with_suffix(".c")


class Floor(TypedDict):
    us_per_event: float
    us_per_write: float
    events_per_s: float


def floor(streams: int, rate: float, client_cpu: int, server_cpu: int, seconds: float = 2.0) -> Floor:
    """``rate``: events/s of all ``streams``. Raises OSError with what the compiler or the loop says."""
    if streams < 1 or rate * seconds < streams:
        raise OSError(f"{rate:g} events/s of {streams} streams are too few to measure")
    raise_descriptor_limit()
    numbers = (streams, rate, seconds, client_cpu, server_cpu)
    with tempfile.TemporaryDirectory(prefix="headrace-floor-") as folder:
        program = Path(folder) / "floor"
        _run([os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(SOURCE)])
        said: Floor = json.loads(_run([str(program), *map(str, numbers)]))
    return said


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"{command[0]}: {error.stderr.strip()}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=1080, help="open at once [1080]")
    parser.add_argument("--rate", type=float, default=100_000.0, help="events/s of all of them [100000]")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--client-cpu", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--server-cpu", type=int, default=max(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    try:
        said = floor(asked.streams, asked.rate, asked.client_cpu, asked.server_cpu, asked.seconds)
    except OSError as error:
        print(f"no figure of bare C: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"benchmark": "floor", **said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
