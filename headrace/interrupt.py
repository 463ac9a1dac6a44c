"""Ctrl-C, and what runs beside a load until it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.site import Load
from headrace.watching import Watcher

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Stop:
    """Whether somebody asked for the end."""

    asked: bool = False


@contextmanager
def stopped_by_ctrl_c(load: Load, watcher: Watcher) -> Iterator[Stop]:
    """The first Ctrl-C ends the load, so that faults are healed and records kept; the second ends the run."""
    loop = asyncio.get_running_loop()
    whole = asyncio.current_task()
    stop = Stop()

    def on_signal() -> None:
        if not stop.asked:
            stop.asked = True
            watcher.say("interrupted: healing what is broken and keeping the records (again: stop at once)")
            load.stop()
        elif whole is not None:
            whole.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``jobs`` as long as the block does. One that failed raises at the block's end."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
