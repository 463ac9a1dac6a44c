"""The load process's end of the desk: the clerk, a process beside it, does the thinking."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.desk import Body, Tell, Use
from loadgen.frames import Frame, Splitter, pack_closed, pack_unsent, unpacked
from loadgen.outbox import Outbox
from loadgen.progress import Heard
from loadgen.raw import Closed, Unsent
from loadgen.stamps import ClockSample, sample_clock
from loadgen.turns import Told

CLOCK_EVERY_S = 0.1
"""How often the offset between the kernel's clock and ours is taken (MEASUREMENT C3)."""
_MOST = 1 << 20


class ClerkLost(OSError):
    """The clerk process is gone, or said that it cannot go on."""


class ClerkDesk:
    """A `loadgen.desk.Desk` over a socket, on the running event loop. Never blocks."""

    def __init__(self, link: socket.socket, fail: Callable[[BaseException], None]) -> None:
        link.setblocking(False)
        self.heard: Mapping[str, Heard] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link, self._fail = link, fail
        self._loop = asyncio.get_running_loop()
        self._splitter = Splitter()
        self._buffer = memoryview(bytearray(_MOST))
        self._out = Outbox(link)
        self._full = False
        self._bodies: dict[tuple[int, int], Body] = {}
        self._wanted: dict[tuple[int, int], Use] = {}
        self._unwanted: set[tuple[int, int]] = set()
        self._tell: Tell | None = None
        self._done: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._clock: asyncio.TimerHandle | None = None
        self._loop.add_reader(link.fileno(), self._hear)

    @property
    def stock(self) -> int:
        """Bodies that are ready."""
        return len(self._bodies)

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a body."""
        return bool(self._wanted)

    @property
    def unsaid(self) -> int:
        """Frames that wait for the clerk to read."""
        return len(self._out)

    # --- Desk

    def begin(self, t0: int, tell: Tell) -> None:
        self._tell = tell
        self._say(("t0", t0))
        self._sample()

    def body(self, shot: int, attempt: int) -> Body | None:
        return self._bodies.pop((shot, attempt), None)

    def want(self, shot: int, attempt: int, use: Use) -> None:
        self._wanted[shot, attempt] = use

    def closed(self, closed: Closed, awaited: bool) -> None:
        self._say(pack_closed(closed))

    def unsent(self, unsent: Unsent) -> None:
        key = unsent.shot, unsent.attempt
        if self._bodies.pop(key, None) is None and unsent.due is not None:
            self._unwanted.add(key)  # it was due, so its body is on its way
        self._say(pack_unsent(unsent))

    # --- the end

    async def finish(self) -> dict[str, Any]:
        """Wait until the clerk has understood everything; what it says of it. Raises ClerkLost."""
        if self._clock is not None:
            self._clock.cancel()
        self._say_clock(sample_clock())
        self._say(("end",))
        return await self._done

    def close(self) -> None:
        """Idempotent."""
        if self._clock is not None:
            self._clock.cancel()
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
            self._loop.remove_writer(self._link.fileno())
            self._link.close()
        for future in (self.ready, self._done):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()  # looked at, so that nobody complains

    # --- the link

    def _sample(self) -> None:
        self._say_clock(sample_clock())
        self._clock = self._loop.call_later(CLOCK_EVERY_S, self._sample)

    def _say_clock(self, sample: ClockSample) -> None:
        self._say(("clock", sample.mono, sample.offset, sample.half))

    def _say(self, frame: Frame) -> None:
        """At once: what lies in the socket is the clerk's, whatever becomes of this process."""
        self._out.put(frame)
        if not self._full:
            self._flush()

    def _flush(self) -> None:
        try:
            self._out.flush()
        except OSError as error:
            self._lost(f"the clerk process is gone: {error}")
            return
        full = len(self._out) > 0
        if full and not self._full:
            self._loop.add_writer(self._link.fileno(), self._flush)
        elif self._full and not full:
            self._loop.remove_writer(self._link.fileno())
        self._full = full

    def _hear(self) -> None:
        try:
            size = self._link.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(f"the clerk process is gone: {error}")
            return
        if not size:
            self._lost("the clerk process is gone")
            return
        for body in self._splitter.feed(self._buffer[:size]):
            self._take(unpacked(body))

    def _take(self, frame: Frame) -> None:
        match frame:
            case ("body", shot, attempt, request, streamed):
                use = self._wanted.pop((shot, attempt), None)
                if use is not None:
                    use(request, streamed)
                elif (shot, attempt) in self._unwanted:
                    self._unwanted.remove((shot, attempt))
                else:
                    self._bodies[shot, attempt] = (request, streamed)
            case ("told", shot, completed, outcome, at, phase):
                if self._tell is not None:
                    self._tell(shot, Told(completed, outcome, at, phase))
            case ("heard", rows):
                self.heard = {name: Heard(*row) for name, row in rows.items()}
            case ("ready",):
                self.ready.set_result(None)
            case ("done", said):
                self._done.set_result(said)
            case ("error", message):
                self._lost(message)

    def _lost(self, why: str) -> None:
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
            self._loop.remove_writer(self._link.fileno())
        self._out.clear()
        error = ClerkLost(why)
        for future in (self.ready, self._done):
            if not future.done():
                future.set_exception(error)
        self._fail(error)
