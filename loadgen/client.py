"""The live Transport: HTTP/1.1 over raw sockets, stamped at the read (MEASUREMENT C3, C8).

The pool is unlimited: a request never waits for a connection. Idle connections are used last in,
first out. Nothing is retried and nothing times out here; the driver has the limits (C28).
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from loadgen.clock import Clock
from loadgen.http1 import ProtocolError, ResponseParser, encode
from loadgen.transport import Ending, HttpRequest, Sink


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


class Client:
    """A pool of connections to one address, on the running event loop."""

    def __init__(self, address: Address, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._clock = clock
        self._tls = (tls or ssl.create_default_context()) if address.tls else None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    def send(self, request: HttpRequest, sink: Sink) -> Callable[[], None]:
        exchange = _Exchange(encode(request, self._address.authority, self._address.prefix), sink)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                sink.connected(self._clock(), False)
                connection.begin(exchange)
                return exchange.abort
        task = asyncio.get_running_loop().create_task(self._connect_for(exchange))
        exchange.connecting = task
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return exchange.abort

    async def warm(self, connections: int) -> None:
        """Open connections ahead of the load, so that it finds them ready. Raises OSError."""
        opened = await asyncio.gather(*(self._connect() for _ in range(connections)))
        self._idle += opened

    async def close(self) -> None:
        """Close every connection and wait until the loop has let go of them."""
        self._closed = True
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._open):
            connection.close()
        while self._open or self._connecting:
            await asyncio.sleep(0)

    async def _connect_for(self, exchange: _Exchange) -> None:
        try:
            connection = await self._connect()
        except asyncio.CancelledError:
            exchange.finish(self._clock(), "aborted", "aborted while connecting")
            raise
        except OSError as error:
            exchange.finish(self._clock(), "connect_error", _named(error))
            return
        if exchange.over:
            connection.close()
            return
        exchange.sink.connected(self._clock(), True)
        connection.begin(exchange)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        host, port = self._address.host, self._address.port
        _, connection = await loop.create_connection(lambda: _Connection(self), host, port, ssl=self._tls)
        return connection

    # --- from the connections

    def opened(self, connection: _Connection) -> None:
        self._open.add(connection)

    def lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def released(self, connection: _Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def now(self) -> int:
        return self._clock()


class _Exchange:
    """One request on its way, and the one place that tells its sink that it is over."""

    def __init__(self, payload: bytes, sink: Sink) -> None:
        self.payload = payload
        self.sink = sink
        self.over = False
        self.connection: _Connection | None = None
        self.connecting: asyncio.Task[None] | None = None

    def finish(self, t: int, how: Ending, detail: str) -> None:
        if not self.over:
            self.over = True
            self.sink.closed(t, how, detail)

    def abort(self) -> None:
        """Idempotent."""
        if self.over:
            return
        if self.connection is not None:
            self.connection.abort()
        elif self.connecting is not None:
            self.connecting.cancel()


class _Connection(asyncio.Protocol):
    """One socket, one exchange at a time."""

    def __init__(self, pool: Client) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None
        self._parser = ResponseParser()
        self._keep_alive = False
        self._unsent = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, exchange: _Exchange) -> None:
        """Write the request of ``exchange``; its answer goes to its sink."""
        assert self._transport is not None
        assert self._exchange is None
        exchange.connection = self
        self._exchange, self._parser, self._unsent = exchange, ResponseParser(), True
        self._transport.write(exchange.payload)
        exchange.payload = b""
        if self._transport.get_write_buffer_size() == 0:
            self.resume_writing()

    def abort(self) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.finish(self._pool.now(), "aborted", "closed by the client")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's class
        self._transport = own
        # With no buffer allowed, resume_writing tells when the last byte has been handed to the kernel.
        own.set_write_buffer_limits(high=0)
        self._pool.opened(self)

    def resume_writing(self) -> None:
        if self._unsent and self._exchange is not None:
            self._unsent = False
            self._exchange.sink.sent(self._pool.now())

    def data_received(self, data: bytes) -> None:
        t = self._pool.now()  # before anything else: this is the time of the read
        exchange = self._exchange
        if exchange is None:
            self.close()  # nobody asked
            return
        try:
            piece = self._parser.feed(data)
        except ProtocolError as error:
            self._over(t, "reset", f"broken HTTP answer: {error}")
            self.close()
            return
        if piece.head is not None:
            self._keep_alive = piece.head.keep_alive
            exchange.sink.headers(t, piece.head.status, piece.head.headers)
        if piece.body:
            exchange.sink.data(t, piece.body)
        if piece.complete and self._exchange is exchange:
            self._complete(t)

    def _complete(self, t: int) -> None:
        reusable = self._keep_alive and not self._parser.surplus and not self._unsent
        self._over(t, "complete", "")
        if reusable:
            self._pool.released(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self)
        t = self._pool.now()
        if exc is not None:
            self._over(t, "reset", _named(exc))
        elif self._parser.eof():
            self._over(t, "complete", "")
        else:
            self._over(t, "eof", "the server closed the connection before the answer was complete")

    def _over(self, t: int, how: Ending, detail: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish(t, how, detail)


def _named(error: Exception) -> str:
    """Like ``ECONNREFUSED: Connect call failed``: the name tells the client's own limits apart."""
    number = error.errno if isinstance(error, OSError) else None
    name = errno.errorcode.get(number) if number is not None else None
    return f"{name or type(error).__name__}: {error}"
