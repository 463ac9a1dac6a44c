"""What benchmarks of our own Python share."""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def calls(function: Callable[[], object]) -> int:
    """Python and C calls that it makes."""
    count = 0

    def tally(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tally)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@contextmanager
def no_collection() -> Iterator[None]:
    """What an earlier measurement left behind is not collected on this one's time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def call_ns() -> float:
    """CPU time of an empty Python call now, in ns: what times of other moments can be compared by."""

    def nothing(argument: int) -> int:
        return argument

    best = float("inf")
    for _ in range(7):
        began = time.thread_time()
        for number in range(20_000):
            nothing(number)
        best = min(best, time.thread_time() - began)
    return best / 20_000 * 1e9


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}us"


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
