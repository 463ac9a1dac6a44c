"""Bodies are made ready before they are due (MEASUREMENT C38)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from loadgen.render import Rendered

Make = Callable[[], Rendered]
Use = Callable[[Rendered], None]


class Feeder(Protocol):
    def prepare(self, shot: int, make: Make) -> None:
        """The body of ``shot`` will be wanted soon."""

    def collect(self, shot: int, make: Make, use: Use, fail: Callable[[BaseException], None]) -> None:
        """``use`` the body: now if it is ready, else as soon as it is; ``fail`` if it cannot be made."""

    def close(self) -> None: ...


class InlineFeeder:
    """Makes each body when it is asked for: in virtual time work takes no time."""

    def prepare(self, shot: int, make: Make) -> None:
        pass

    def collect(self, shot: int, make: Make, use: Use, fail: Callable[[BaseException], None]) -> None:
        use(make())

    def close(self) -> None:
        pass


class ThreadFeeder:
    """Makes bodies in a thread beside the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "feeder")
        self._ready: dict[int, Future[Rendered]] = {}

    def prepare(self, shot: int, make: Make) -> None:
        self._ready[shot] = self._thread.submit(make)

    def collect(self, shot: int, make: Make, use: Use, fail: Callable[[BaseException], None]) -> None:
        future = self._ready.pop(shot, None) or self._thread.submit(make)

        def hand_over() -> None:
            if future.cancelled():
                return  # the run ended first
            error = future.exception()
            if error is not None:
                fail(error)
            else:
                use(future.result())

        if future.done():
            hand_over()
        else:
            future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(hand_over))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
