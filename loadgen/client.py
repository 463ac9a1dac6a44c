"""The live Transport: HTTP/1.1 over raw sockets, stamped at the read (MEASUREMENT C3, C8).

```
send ─> idle connection ─> written ─> head, body ─> back among the idle ones
     └> new connection ──┘              each read stamped by the kernel, then by the clock
     └> queue, only under a declared limit
```
Without a limit a request never waits for a connection. Idle connections are used last in, first out.
Nothing is retried and nothing times out here; the driver has the limits (C28).
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadgen.alarm import Alarm, TimerfdAlarm, live_alarm
from loadgen.clock import Clock
from loadgen.connection import Claim, Connection, Exchange
from loadgen.http1 import Head, encode
from loadgen.route import Route
from loadgen.sockets import Channel, Socket, Sockets, kernel_stamps_here
from loadgen.tls import TlsSocket, default_context
from loadgen.transport import HttpRequest, Request, Sink

WARM_BATCH = 64
"""Connections opened at once ahead of the load: a longer queue at the target drops what comes."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    prefix: str = ""
    """Goes before every path."""
    tls: bool = False

    @staticmethod
    def of(url: str) -> Address:
        """``http(s)://host[:port][/prefix]``; a closing ``/v1`` is taken for the API's own.

        Raises ValueError.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"target url {url!r} must look like http://host:port")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return Address(parts.hostname, parts.port or (443 if tls else 80), prefix, tls)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def encode(self, request: HttpRequest) -> bytes:
        """As it goes over the wire to there."""
        return encode(request, self.authority, self.prefix)


class Client:
    """A pool of connections to one address, on the running event loop."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        limit: int | None = None,
        kernel_stamps: bool | None = None,
    ) -> None:
        """``limit``: connections at most; more requests then wait for one, in the order of their sends.
        ``kernel_stamps``: None = if this machine gives them. Raises ValueError."""
        if limit is not None and limit < 1:
            raise ValueError(f"a pool of {limit} connections sends nothing; leave the limit out or make it 1")
        self.pool_limit = limit
        self.kernel_stamps = kernel_stamps_here() if kernel_stamps is None else kernel_stamps
        """Whether reads carry the kernel's receive stamp. A single read may still lack it."""
        self._address = address
        self._clock = clock
        self._tls = (tls or default_context()) if address.tls else None
        self._sockets: Sockets | None = None
        self._route = Route.literal(address.host, address.port)
        self._resolving: asyncio.Task[None] | None = None
        self._undialled: list[Connection] = []
        self._idle: dict[Connection, None] = {}  # the last one is the last to have been used
        self._open: set[Connection] = set()
        self._waiting: deque[Exchange] = deque()
        self._closed = False
        self.head: Head | None = None

    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        payload = request if isinstance(request, bytes) else self._address.encode(request)
        exchange = Exchange(payload, sink, self._clock)
        if self._closed:
            exchange.finish(self._clock(), "aborted", "the client is closed")
        elif (connection := self._take_idle()) is not None:
            exchange.granted(connection, self._clock(), False)
        elif self._full:
            self._waiting.append(exchange)
        else:
            self._open_for(exchange)
        return exchange.abort

    def alarm(self, clock: Clock, ring: Callable[[], None]) -> Alarm:
        """The most exact one of this machine, for the monotonic clock. Reads give way to it."""
        made = live_alarm(clock, ring)
        if isinstance(made, TimerfdAlarm):
            self._shared().watch.give_way(made)
        return made

    async def warm(self, connections: int) -> None:
        """Open that many connections ahead of the load, as far as the limit allows, so that it finds them
        ready. Raises OSError."""
        room = connections if self.pool_limit is None else self.pool_limit - len(self._open)
        left = min(connections, room)
        while left > 0:
            batch = [_Warming() for _ in range(min(left, WARM_BATCH))]
            for one in batch:
                self._open_for(one)
            left -= len(batch)
            results = await asyncio.gather(*(one.ready for one in batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def close(self) -> None:
        """Close every connection; whatever is under way ends as aborted. Idempotent."""
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for exchange in waiting:
            exchange.abort()
        for connection in list(self._open):
            connection.close("the client was closed")
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
        if self._sockets is not None:
            self._sockets.close()

    # --- from the connections

    def dial(self, connection: Connection, route: Route) -> Channel:
        if self._tls is not None:
            return TlsSocket(self._shared(), route, connection, self._tls, self._address.host)
        return Socket(self._shared(), route, connection)

    def released(self, connection: Connection) -> None:
        """It is free again: the longest waiting request gets it."""
        if self._waiting:
            connection.look()  # the server may have closed it
            if connection.closed:
                return  # which made room for another one
        waiter = self._next_waiting()
        if waiter is not None:
            waiter.granted(connection, self._clock(), False)
        else:
            self._idle[connection] = None

    def lost(self, connection: Connection) -> None:
        """It is closed, which makes room for another one."""
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if (waiter := self._next_waiting()) is not None:
            self._open_for(waiter)

    # --- inside

    def _shared(self) -> Sockets:
        """Made when the event loop runs, and with it the watch over them."""
        if self._sockets is None:
            self._sockets = Sockets(self._clock, self.kernel_stamps)
        return self._sockets

    @property
    def _full(self) -> bool:
        return self.pool_limit is not None and len(self._open) >= self.pool_limit

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            connection.look()  # the server may have closed it
            if not connection.closed:
                return connection
        return None

    def _next_waiting(self) -> Exchange | None:
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.over:
                return exchange
        return None

    def _open_for(self, claim: Claim) -> None:
        connection = Connection(self, self._clock, claim)
        self._open.add(connection)
        if isinstance(claim, Exchange):
            claim.connection = connection
        if self._route is not None:
            connection.dial(self._route)
            return
        self._undialled.append(connection)
        if self._resolving is None:
            self._resolving = asyncio.get_running_loop().create_task(self._resolve())

    async def _resolve(self) -> None:
        """Look the host up and dial what waited for it; the next request tries again if it failed."""
        try:
            self._route = await Route.resolve(self._address.host, self._address.port)
        except OSError as error:
            undialled, self._undialled = self._undialled, []
            for connection in undialled:
                connection.lost(self._clock(), error)
        else:
            for connection in self._undialled:
                connection.dial(self._route)
            self._undialled = []
        finally:
            self._resolving = None


class _Warming:
    """The Claim of a connection that is to be there before it is needed."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def granted(self, connection: Connection, t: int, new: bool) -> None:
        connection.spare()
        if not self.ready.done():
            self.ready.set_result(None)

    def refused(self, t: int, error: OSError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    def dropped(self, t: int, why: str) -> None:
        self.refused(t, ConnectionAbortedError(errno.ECONNABORTED, why))
