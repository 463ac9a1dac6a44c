"""Who is told when a socket can be read or written: an epoll of our own under the event loop.

```
                      ┌─ urgent epoll: connecting, shaking hands, unsent bytes ── told at once
event loop ── add_reader
                      └─ calm epoll: answers ── one callback for all that are ready
                              └─ while reads come thick: every 500 µs by an alarm, not by each read
```
One wake-up of the event loop costs more than reading an event. Where the kernel stamps arrivals, waiting
a little and reading many at once moves no time; where it does not, nothing ever waits. A send that is due
does not wait long for reads either (`Watch.give_way`).
"""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
import sys
from collections.abc import Callable
from typing import ParamSpec, Protocol

from loadgen.alarm import NEVER, TimerfdAlarm
from loadgen.clock import Clock
from loadgen.harvest import EDGES, Read, make_harvest
from loadgen.lane import Lane

GATHER_NS = 500_000
"""How long reads may be gathered."""
BATCH = 64
"""Reads in a row before something else gets its turn; a send must not wait behind a thousand of them."""
READ, WRITE = 1, 4
"""Bits of interest; those of EPOLLIN and EPOLLOUT."""

_PATIENCE_NS = 300_000
"""How late a send may be before reads give way. Sends that go one by one, each between two reads, find little
of what they need in the cache: with no patience an event costs a tenth more."""
_GIVES_WAY_NS = 5_000_000
"""How long a batch gives way: a driver that is always behind must not keep the event loop from all others."""
_WAKES = 16
_EMPTY_TICKS = 8


P = ParamSpec("P")


class Ready(Protocol):
    """What is watched."""

    def readable(self) -> None:
        """Also after an error or the end: reading tells."""

    def told(self, read: Read) -> None:
        """What was read of it already, and no lane took."""

    def writable(self) -> None:
        """Also after an error."""


class Watch(Protocol):
    """Watches sockets on the running event loop."""

    def interest(self, own: socket.socket, ready: Ready, urgent: int, calm: bool) -> None:
        """``urgent``: bits to be told of at once; ``calm``: to be told of reads, a little later at most.
        Replaces the interest before."""

    def use(self, own: socket.socket, lane: Lane | None) -> None:
        """``lane`` may take its calm reads from now on; see `Ready.told`."""

    def drop(self, own: socket.socket) -> None:
        """Watch it no more and close it."""

    def give_way(self, alarm: TimerfdAlarm) -> None:
        """From now on reads stop soon after ``alarm`` was to ring, and go on when it has."""

    def close(self) -> None:
        """Everything was dropped before."""


class EpollWatch:
    """``gather``: let reads that come thick wait for each other."""

    def __init__(self, clock: Clock, gather: bool) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._urgent, self._calm = select.epoll(), select.epoll()
        self._harvest = make_harvest(self._calm, clock)
        self._ready: dict[int, Ready] = {}
        self._bits: dict[int, tuple[int, bool]] = {}
        self._batch = _Batch()
        self._alarm = TimerfdAlarm(self._tick) if gather else None
        self._first: TimerfdAlarm | None = None
        self._wakes, self._since, self._empty = 0, clock(), 0
        self._loop.add_reader(self._urgent.fileno(), self._hurry)
        self._loop.add_reader(self._calm.fileno(), self._wake)

    def interest(self, own: socket.socket, ready: Ready, urgent: int, calm: bool) -> None:
        fd = own.fileno()
        before, was_calm = self._bits.get(fd, (0, False))
        if calm and not was_calm:
            self._harvest.know(own)
        _change(self._urgent, fd, before, urgent)
        _change(self._calm, fd, EDGES * was_calm, EDGES * calm)
        self._ready[fd], self._bits[fd] = ready, (urgent, calm)

    def use(self, own: socket.socket, lane: Lane | None) -> None:
        self._harvest.use(own, lane)

    def drop(self, own: socket.socket) -> None:
        fd = own.fileno()
        if fd in self._bits:
            self.interest(own, self._ready[fd], 0, False)
            self._harvest.forget(own)
            del self._ready[fd], self._bits[fd]
        self._batch.close(own)

    def give_way(self, alarm: TimerfdAlarm) -> None:
        self._first = alarm

    def close(self) -> None:
        if self._calm.closed:
            return
        self._loop.remove_reader(self._urgent.fileno())
        self._loop.remove_reader(self._calm.fileno())
        if self._alarm is not None:
            self._alarm.close()
        self._urgent.close()
        self._calm.close()

    # --- told by the event loop

    def _hurry(self) -> None:
        events = self._urgent.poll(0, BATCH)
        with self._batch:
            for fd, bits in events:
                if bits & ~READ and (ready := self._ready.get(fd)) is not None:
                    ready.writable()
                if bits & READ and (ready := self._ready.get(fd)) is not None:
                    ready.readable()

    def _wake(self) -> None:
        try:
            self._read()
        finally:
            if self._harvest.left and not self._calm.closed:  # it failed, and their edges are used up
                self._loop.call_soon(self._wake)
        self._wakes += 1
        if self._alarm is not None and self._wakes == _WAKES:
            now = self._clock()
            if now - self._since < _WAKES * GATHER_NS:
                self._loop.remove_reader(self._calm.fileno())
                self._alarm.set(now + GATHER_NS)
            self._wakes, self._since = 0, now

    def _tick(self) -> None:
        count = BATCH
        if self._alarm is None or self._calm.closed:
            return
        try:
            count = self._read()
        finally:
            self._after_tick(self._alarm, count)

    def _after_tick(self, alarm: TimerfdAlarm, count: int) -> None:
        self._empty = 0 if count else self._empty + 1
        if self._calm.closed:
            return
        if count == BATCH:
            self._loop.call_soon(self._tick)  # more is there; what else is due comes first
        elif self._empty < _EMPTY_TICKS:
            alarm.set(self._clock() + GATHER_NS)
        else:
            self._empty, self._wakes, self._since = 0, 0, self._clock()
            self._loop.add_reader(self._calm.fileno(), self._wake)

    def _read(self) -> int:
        """A batch; what is due meanwhile goes first, but not before all that was read is told: a connection
        on which something came must not be taken for an idle one."""
        count, until = 0, self._clock() + _GIVES_WAY_NS
        while count < BATCH and not self._calm.closed:
            read, news = self._harvest.read(BATCH - count, self._due(until))
            count += read
            with self._batch:
                for fd, what in news:
                    if (ready := self._ready.get(fd)) is not None:
                        self._guarded(ready.told, what)
            if self._first is not None and self._due(until) <= self._clock():
                self._guarded(self._first.ring)
            if not self._harvest.left:
                break
        return count

    def _due(self, until: int) -> int:
        """When to give way, in a batch that does so until then."""
        return NEVER if self._first is None or self._clock() >= until else self._first.due + _PATIENCE_NS

    def _guarded(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """That one owner fails is no reason to keep from the others what was read for them."""
        try:
            do(*args, **kwargs)
        except Exception as error:
            what = {"message": f"{type(error).__name__} in an owner of a socket", "exception": error}
            self._loop.call_exception_handler(what)


class SelectorWatch:
    """Where there is no epoll: a selector of our own under the event loop. Nothing is gathered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._selector = selectors.DefaultSelector()
        self._batch = _Batch()
        self._file = self._selector.fileno()
        self._loop.add_reader(self._file, self._tell)

    def interest(self, own: socket.socket, ready: Ready, urgent: int, calm: bool) -> None:
        fd = own.fileno()
        bits = (READ if urgent & READ or calm else 0) | (urgent & WRITE)
        events = (selectors.EVENT_READ if bits & READ else 0) | (selectors.EVENT_WRITE if bits & WRITE else 0)
        known = fd in self._selector.get_map()
        if events and known:
            self._selector.modify(fd, events, ready)
        elif events:
            self._selector.register(fd, events, ready)
        elif known:
            self._selector.unregister(fd)

    def use(self, own: socket.socket, lane: Lane | None) -> None:
        """It reads nothing by itself."""

    def drop(self, own: socket.socket) -> None:
        if own.fileno() in self._selector.get_map():
            self._selector.unregister(own.fileno())
        self._batch.close(own)

    def give_way(self, alarm: TimerfdAlarm) -> None:
        """It does not: what is ready is read in one go."""

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            self._selector.close()
            self._file = -1

    def _tell(self) -> None:
        with self._batch:
            known = self._selector.get_map()
            for key, events in self._selector.select(0):
                if events & selectors.EVENT_WRITE and key.fd in known:
                    key.data.writable()
                if events & selectors.EVENT_READ and key.fd in known:
                    key.data.readable()


def make_watch(clock: Clock, gather: bool) -> Watch:
    """The cheapest one of this platform, on the running event loop."""
    return EpollWatch(clock, gather) if sys.platform == "linux" else SelectorWatch()


def _change(epoll: select.epoll, fd: int, before: int, after: int) -> None:
    if before == after:
        return
    if not before:
        epoll.register(fd, after)
    elif not after:
        epoll.unregister(fd)
    else:
        epoll.modify(fd, after)


class _Batch:
    """Closes sockets, those dropped within a batch after it: their numbers must not be used again while
    events of the batch may bear them."""

    def __init__(self) -> None:
        self._on = False
        self._dropped: list[socket.socket] = []

    def __enter__(self) -> None:
        self._on = True

    def __exit__(self, *_: object) -> None:
        self._on = False
        while self._dropped:
            self._dropped.pop().close()

    def close(self, own: socket.socket) -> None:
        if self._on:
            self._dropped.append(own)
        else:
            own.close()
