"""One read of each socket that is ready: what a lane takes is done with, the rest is news.

A read is stamped by the client's clock at once, and by the kernel where it does (MEASUREMENT C3).

The sockets are watched edge-triggered, which spares the kernel to look at each a second time. Nothing is
missed: a read that does not fill the buffer has emptied the socket, and what comes after it is a new edge. A
full buffer, or an end or error that came with the bytes, is no edge any more; then the socket is armed anew.
"""

from __future__ import annotations

import functools
import select
import socket
import struct
from collections import deque
from collections.abc import Callable

from loadgen import native
from loadgen.clock import Clock, monotonic
from loadgen.lane import Lane

READ_BYTES = 16_384
"""A read gives so much at most; what is more comes with the next one."""
MOST_NEWS = 4
"""News that come together; telling them takes longer than reading all the others of a batch."""
EDGES = 0 if not hasattr(select, "EPOLLET") else select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""What the sockets of a harvest are watched for."""

_TIMESPEC = struct.Struct("@ll")
ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)

Read = tuple[int, int, bytes | OSError | None]
"""When it was on the client's clock, the kernel's stamp of its last byte (0 = none), and what it gave: bytes,
none at the end, or why the connection is broken. None: a lane has taken it, and it was the answer's last."""


def receive(own: socket.socket, clock: Clock) -> Read | None:
    """One read; None if there is nothing to read."""
    try:
        data, ancillary, _, _ = own.recvmsg(READ_BYTES, ANCILLARY)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        return clock(), 0, error.with_traceback(None)  # which holds the frames that hold the error
    t = clock()  # before anything else: this is the time of the read
    if not ancillary:
        return t, 0, data
    seconds, ns = _TIMESPEC.unpack(ancillary[0][2])  # nothing else was asked for
    return t, seconds * 1_000_000_000 + ns, data


def make_receive(clock: Clock) -> Callable[[socket.socket], Read | None]:
    """`receive`, the quicker one of the two; the native one knows one clock only."""
    if native.extension is not None and clock is monotonic:
        read: Callable[[socket.socket], Read | None] = native.extension.receive
        return read
    return functools.partial(receive, clock=clock)


class Harvest:
    """Of the sockets that ``epoll`` watches for `EDGES`. They are not closed, nor others watched in their
    place, before it was told to `forget` them."""

    def __init__(self, epoll: select.epoll, clock: Clock) -> None:
        self._epoll, self._clock = epoll, clock
        self._sockets: dict[int, socket.socket] = {}
        self._lanes: dict[int, Lane] = {}
        self._left: deque[tuple[int, int]] = deque()

    def know(self, own: socket.socket) -> None:
        """``own`` may be ready from now on."""
        self._sockets[own.fileno()] = own

    def forget(self, own: socket.socket) -> None:
        self._sockets.pop(own.fileno(), None)
        self._lanes.pop(own.fileno(), None)
        self._left = deque(event for event in self._left if event[0] != own.fileno())

    def use(self, own: socket.socket, lane: Lane | None) -> None:
        """``lane`` may take the reads of ``own`` from now on."""
        if lane is None:
            self._lanes.pop(own.fileno(), None)
        else:
            self._lanes[own.fileno()] = lane

    @property
    def left(self) -> bool:
        """Whether some are known to be ready and were not read yet."""
        return bool(self._left)

    def read(self, limit: int, until: int) -> tuple[int, list[tuple[int, Read]]]:
        """Reads ``limit`` sockets at most, and stops before the next one once the clock has reached ``until``
        or `MOST_NEWS` are there; one is always read. How many were read, and (file descriptor, read) of those
        that no lane took, in the order in which they were read. What is `left` comes first the next time."""
        left, news, count = self._left, list[tuple[int, Read]](), 0
        if not left:
            left.extend(self._epoll.poll(0, limit))
        while left and count < limit and len(news) < MOST_NEWS and (count == 0 or self._clock() < until):
            self._one(*left.popleft(), news)
            count += 1
        return count, news

    def _one(self, fd: int, bits: int, news: list[tuple[int, Read]]) -> None:
        if (own := self._sockets.get(fd)) is None or (read := receive(own, self._clock)) is None:
            return
        t, real, data = read
        if isinstance(data, bytes) and data:
            if bits != select.EPOLLIN or len(data) == READ_BYTES:
                self._epoll.modify(fd, EDGES)
            lane = self._lanes.get(fd)
            if lane is not None and lane.take(t, data, real):
                if not lane.over:
                    return
                read = t, real, None
        news.append((fd, read))


def make_harvest(epoll: select.epoll, clock: Clock) -> Harvest:
    """The quicker one of the two kinds; the native one knows one clock only."""
    if native.extension is not None and clock is monotonic:
        harvest: Harvest = native.extension.Harvest(epoll, clock)
        return harvest
    return Harvest(epoll, clock)
