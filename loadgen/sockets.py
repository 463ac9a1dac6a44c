"""Non-blocking TCP sockets whose reads carry the kernel's receive stamp (MEASUREMENT C3).

A read is stamped at once, by the client's clock and, where it can, by the kernel; then its bytes go to
the `Owner`. Nothing is parsed, retried or timed out here.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
import ssl
import sys
import time
from typing import Protocol

from loadgen.clock import Clock
from loadgen.harvest import ANCILLARY, Read, make_receive
from loadgen.lane import Lane
from loadgen.readiness import READ, WRITE, make_watch
from loadgen.route import Endpoint, Route, connect_error

SO_TIMESTAMPNS = 35
"""Linux; the socket module has no name for it."""

_PROBES = 20
_SEEN_BY_READING = (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED)
"""After these the answer so far, and then the end, can still be read."""


class Owner(Protocol):
    """Who is told what happens on a channel. ``t``: ns on the client's clock."""

    def opened(self, t: int) -> None: ...

    def received(self, t: int, data: bytes, real: int) -> None:
        """One read; ``real``: kernel stamp of its last byte, ns on CLOCK_REALTIME, 0 = none."""

    def ended(self, t: int) -> None:
        """Its lane has taken the last read of the answer."""

    def drained(self, t: int) -> None:
        """All that was written has been handed to the kernel."""

    def lost(self, t: int, error: OSError | None) -> None:
        """Last, unless it was closed from this side. None: the other side closed it in due form."""


class Channel(Protocol):
    """A connection to be, then one, bare or in TLS. Its owner is told from the event loop only, except of
    what `write` could hand over at once and of what `look` finds."""

    def write(self, data: bytes) -> None:
        """Once it is open. What the kernel does not take now follows when it does."""

    def use(self, lane: Lane | None) -> None:
        """What ``lane`` takes from now on is not told."""

    def look(self) -> None:
        """Tell the owner now if there is news that the event loop has not told yet."""

    def close(self) -> None:
        """Idempotent; the owner hears no more."""


class _Nobody:
    """The Owner of what is closed."""

    def opened(self, t: int) -> None: ...

    def received(self, t: int, data: bytes, real: int) -> None: ...

    def ended(self, t: int) -> None: ...

    def drained(self, t: int) -> None: ...

    def lost(self, t: int, error: OSError | None) -> None: ...


_NOBODY = _Nobody()


class Sockets:
    """What the sockets of one client share: the running event loop's watch over them, clock and stamps."""

    def __init__(self, clock: Clock, kernel_stamps: bool) -> None:
        self.clock = clock
        self.receive = make_receive(clock)
        self.kernel_stamps = kernel_stamps
        # Without the kernel's stamps a gathered read would be a late one.
        self.watch = make_watch(clock, gather=kernel_stamps)
        # The kernel stamps while somebody wants it, and takes a while to begin again.
        self._wanting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._ask_for_stamps(self._wanting)

    def make(self, family: int) -> socket.socket:
        """Raises OSError."""
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask_for_stamps(made)
        return made

    def close(self) -> None:
        """After its sockets."""
        self._wanting.close()
        self.watch.close()

    def _ask_for_stamps(self, of: socket.socket) -> None:
        if self.kernel_stamps:
            of.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class Socket:
    """The Channel over plain TCP; begins to connect at once."""

    __slots__ = (
        "_at",
        "_broken",
        "_clock",
        "_closed",
        "_connected",
        "_failures",
        "_gather",
        "_lane",
        "_left",
        "_owner",
        "_route",
        "_sock",
        "_sockets",
        "_unsent",
        "_watch",
    )

    def __init__(self, sockets: Sockets, route: Route, owner: Owner, gather: bool = True) -> None:
        """``gather``: its reads may wait a little for others; if not, see `settle`."""
        self._lane: Lane | None = None
        self._sockets, self._route, self._owner, self._gather = sockets, route, owner, gather
        self._clock, self._watch = sockets.clock, sockets.watch
        self._left = list(route.endpoints)
        self._failures: list[OSError] = []
        self._at = self._left[0]
        self._sock: socket.socket | None = None
        self._closed = self._connected = False
        self._unsent: memoryview | None = None
        self._broken: OSError | None = None
        self._dial()

    def write(self, data: bytes) -> None:
        if self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
        elif self._sock is not None and self._broken is None:
            self._send(self._sock, data)

    def use(self, lane: Lane | None) -> None:
        if lane is not self._lane and self._sock is not None:
            self._watch.use(self._sock, lane)
        self._lane = lane

    def look(self) -> None:
        if self._connected:
            self.readable()

    def close(self) -> None:
        self._closed = True
        self._connected, self._unsent = False, None
        self._owner = _NOBODY  # who holds this
        self._let_go()

    def settle(self) -> None:
        """From now on its reads may wait for others."""
        self._gather = True
        self._show_interest()

    # --- told by the watch

    def readable(self) -> None:
        if self._sock is None or (read := self._sockets.receive(self._sock)) is None:
            return
        t, real, data = read
        lane = self._lane
        if lane is None or not isinstance(data, bytes) or not lane.take(t, data, real):
            self.told(read)
        elif lane.over:
            self._owner.ended(t)

    def told(self, read: Read) -> None:
        t, real, data = read
        if data is None:
            self._owner.ended(t)
        elif isinstance(data, OSError):
            self._lose(data)
        elif data:
            self._owner.received(t, data, real)
        else:
            self._lose(self._broken)

    def writable(self) -> None:
        if self._sock is None:
            return
        if not self._connected:
            self._finish_dialling(self._sock)
        elif self._unsent is not None:
            self._send(self._sock, self._unsent)

    # --- inside

    def _send(self, sock: socket.socket, data: bytes | memoryview) -> None:
        waited, count = self._unsent is not None, 0
        try:
            count = sock.send(data)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._cannot_send(error)
            return
        self._unsent = memoryview(data)[count:] if count < len(data) else None
        if waited != (self._unsent is not None):
            self._show_interest()
        if self._unsent is None:
            self._owner.drained(self._clock())

    def _cannot_send(self, error: OSError) -> None:
        self._broken, self._unsent = error.with_traceback(None), None
        self._show_interest()
        if error.errno not in _SEEN_BY_READING:
            asyncio.get_running_loop().call_soon(self._lose, error)

    def _dial(self) -> None:
        """Begin to connect to the next address; that none is left is told from the event loop."""
        while self._left:
            self._at = self._left.pop(0)
            code = self._begin(self._at)
            if code == errno.EINPROGRESS:
                return
            self._failed(code)
        asyncio.get_running_loop().call_soon(self._lose, connect_error(self._failures))

    def _begin(self, at: Endpoint) -> int:
        try:
            self._sock = self._sockets.make(at.family)
            code = self._sock.connect_ex(at.address)
            if code in (0, errno.EINPROGRESS):
                self._show_interest()
                return errno.EINPROGRESS
            return code
        except OSError as error:
            return error.errno or errno.EIO

    def _failed(self, code: int) -> None:
        self._let_go()
        self._failures.append(OSError(code, f"connect to {self._at}: {os.strerror(code)}"))
        if self._route.is_own_limit(self._at, code):
            self._left.clear()  # trying elsewhere would hide it

    def _finish_dialling(self, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and sock.getsockname() == self._at.address:
            # To a port nobody listens at, a connection from that very port meets itself.
            code = errno.ECONNREFUSED
        if code:
            self._failed(code)
            self._dial()
            return
        self._connected = True
        self._route.worked(self._at)
        self._show_interest()
        self._owner.opened(self._clock())

    def _show_interest(self) -> None:
        if self._sock is None:
            return
        urgent = WRITE if self._unsent is not None or not self._connected else 0
        if self._connected and not self._gather:
            urgent |= READ
        self._watch.interest(self._sock, self, urgent, calm=self._connected and self._gather)

    def _let_go(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._watch.drop(sock)

    def _lose(self, error: OSError | None) -> None:
        if not self._closed:
            owner = self._owner
            self.close()
            owner.lost(self._clock(), error)


@functools.cache
def kernel_stamps_here() -> bool:
    """Whether this machine's kernel stamps what a TCP socket receives; tried out on loopback."""
    if sys.platform != "linux":
        return False
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=1.0) as reader,
            server.accept()[0] as writer,
        ):
            reader.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            return any(_is_stamped(reader, writer) for _ in range(_PROBES))
    except OSError:
        return False


def _is_stamped(reader: socket.socket, writer: socket.socket) -> bool:
    writer.send(b"?")
    _, ancillary, _, _ = reader.recvmsg(1, ANCILLARY)
    if not ancillary:
        time.sleep(0.001)  # the kernel begins to stamp a little after it was first asked to
    return bool(ancillary)


def named(error: Exception) -> str:
    """Like ``ECONNREFUSED: connect to ..``: the name tells the client's own limits apart. What comes from
    TLS or the resolver has numbers of its own that are no errno."""
    if isinstance(error, ssl.SSLError | socket.gaierror) or not isinstance(error, OSError):
        text = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
        return f"{type(error).__name__}: {text}"
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return f"{name}: {error.strerror or error}"
