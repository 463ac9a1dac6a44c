"""What the kernel alone asks for an event: the same sockets, read and written by bare C (floor.c).

    python -m benchmarks.floor [--rate 2000] [--seconds 3] [--client-cpu 0] [--server-cpu 1]

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
TOKENS, TTFT, ITL = 50, 0.05, 0.01
"""Of a stream, as benchmarks/client.py asks for them."""


class Floor(TypedDict):
    us_per_event: float
    us_per_write: float
    events_per_s: float


def floor(rate: float, seconds: float, client_cpu: int, server_cpu: int) -> Floor:
    """``rate``: streams/s. Raises OSError, or CalledProcessError with what the compiler or the loop says."""
    raise_descriptor_limit()
    streams = round(rate * (TTFT + (TOKENS - 1) * ITL))
    numbers = (streams, rate * TOKENS, seconds, client_cpu, server_cpu)
    with tempfile.TemporaryDirectory(prefix="headrace-floor-") as folder:
        program = Path(folder) / "floor"
        _run([os.environ.get("CC", "cc"), "-O2", "-o", str(program), str(SOURCE)])
        said: Floor = json.loads(_run([str(program), *map(str, numbers)]))
    return said


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=2000.0, help="streams/s [2000]")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--client-cpu", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--server-cpu", type=int, default=max(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    try:
        said = floor(asked.rate, asked.seconds, asked.client_cpu, asked.server_cpu)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no floor: {error}; {getattr(error, 'stderr', '')}".rstrip("; \n"), file=sys.stderr)
        return 1
    print(json.dumps({"benchmark": "floor", **said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
