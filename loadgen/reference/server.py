"""The reference server of one process: an epoll loop over raw sockets, and a line of due writes."""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.clock import Clock, monotonic
from loadgen.reference import log
from loadgen.reference.answers import Answer, End
from loadgen.reference.lateness import Lateness
from loadgen.reference.log import LogFile
from loadgen.reference.requests import BadRequest, Request, RequestReader
from loadgen.reference.routes import Routes, bad_request
from loadgen.reference.script import Script
from loadgen.reference.streams import Stream, kinds
from loadgen.reference.wire import WIRES

BATCH = 32
"""Writes between two looks at what came in, so that a read is stamped soon."""
NOTED = 8
"""Ended answers that are noted together: the second finds all that it needs in the cache."""
FLUSH_NS = 100_000_000
"""How long an entry waits for its log at most."""
_READ = 65_536
"""Beyond 128 kB each read would map and unmap its memory."""
_BACKLOG = 4096
_NAP_NS = 100_000
"""The shortest sleep: where writes come thick, waking up for each costs as much as writing it."""
_NAMES = [end.name.lower() for end in End]
_HUNG_UP, _RESET, _SILENT = End.HUNG_UP, End.RESET, End.SILENT  # each look into an enum costs 0.1 µs
_NO_LINGER = struct.pack("ii", 1, 0)


class _Connection:
    __slots__ = ("reader", "request", "sock", "stream")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = RequestReader()
        self.stream: Stream | None = None
        self.request: Request | None = None


@dataclass(slots=True)
class Counts:
    """Of one process, since its start."""

    connections: int = 0
    requests: int = 0
    tokens: int = 0
    blocked: int = 0
    refused: int = 0
    """Connections that were not accepted for want of file descriptors."""
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_NAMES, 0))


class Server:
    """Serves ``script`` on ``listener`` until `stop`. ``log_data`` gives the bytes of the whole log, for
    ``GET /reference/log``; None = there is no log. It listens from the start, and answers in `run`."""

    def __init__(
        self,
        script: Script,
        listener: socket.socket,
        log_file: LogFile,
        *,
        process: int = 0,
        clock: Clock = monotonic,
        log_data: Callable[[], bytes] | None = None,
        stop_fd: int | None = None,
    ) -> None:
        self.counts = Counts()
        self.lateness = Lateness()
        self._routes = Routes(script, process, self._whole_log if log_data is not None else None)
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listener = listener
        self._log = log_file
        self._log_data = log_data
        self._process = process
        self._clock = clock
        self._stop_fd = stop_fd
        self._stopping = False
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._paused = False
        self._unnoted: list[tuple[Stream, Request | None, End]] = []
        self._stream, line = kinds()
        self.timeline = line(clock, round(script.itl * 1e9), self._finished, self._on_blocked)

    def stop(self) -> None:
        """`run` returns soon. May be called by a signal handler."""
        self._stopping = True

    def run(self) -> None:
        listener = self._listener.fileno()
        self._epoll.register(listener, select.EPOLLIN)
        if self._stop_fd is not None:
            self._epoll.register(self._stop_fd, select.EPOLLIN)
        try:
            self._loop(listener)
        finally:
            self._close()

    def _loop(self, listener: int) -> None:
        epoll, timeline, clock = self._epoll, self.timeline, self._clock
        watched = [epoll.fileno()]
        flush_at = clock() + FLUSH_NS
        while not self._stopping:
            if timeline.run_due(BATCH) < BATCH:
                now = clock()
                if now >= flush_at:
                    self._note()
                    self._log.flush()
                    flush_at = now + FLUSH_NS
                due = timeline.next_due
                wait = (flush_at if due is None or due > flush_at else due) - now
                # epoll itself waits in whole ms; select on it does not, and says whether to ask it at all
                if wait > 0 and not select.select(watched, (), (), max(wait, _NAP_NS) / 1e9)[0]:
                    continue
            for fd, mask in epoll.poll(0, 256):
                if fd == listener:
                    self._accept()
                elif fd == self._stop_fd:
                    return
                else:
                    self._ready(fd, mask)

    # --- connections

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._not_accepted(error)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.counts.connections += 1
            self._connections[sock.fileno()] = _Connection(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _not_accepted(self, error: OSError) -> None:
        """Without descriptors, no more are accepted until a connection closes: the listener stays readable,
        and looking at it again and again would make all writes late."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS) and self._connections:
            self.counts.refused += 1
            self._epoll.unregister(self._listener.fileno())
            self._paused = True
        elif error.errno not in (errno.ECONNABORTED, errno.EPROTO, errno.EINTR):
            raise error

    def _ready(self, fd: int, mask: int) -> None:
        connection = self._connections.get(fd)
        if connection is None:
            return
        if mask & select.EPOLLOUT and connection.stream is not None:
            self._epoll.modify(fd, select.EPOLLIN)
            if not self.timeline.resume(connection.stream):
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        if mask & ~select.EPOLLOUT and fd in self._connections:
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        t = self._clock()
        if not data:
            self._hung_up(connection)
        elif connection.stream is not None:
            connection.reader.keep(data)
        else:
            self._take(connection, data, t)

    def _hung_up(self, connection: _Connection) -> None:
        stream = connection.stream
        if stream is None:
            self._drop(connection)
            return
        if stream.rest or stream.index > stream.last:  # not on the line of due writes
            self._finished(stream, _HUNG_UP)
            return
        self._epoll.unregister(connection.sock.fileno())  # readable for ever; the next write ends it
        stream.drop()

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock.fileno(), None)
        connection.sock.close()
        if self._paused:
            self._paused = False
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    # --- requests

    def _take(self, connection: _Connection, data: bytes, t: int) -> None:
        try:
            request = connection.reader.feed(data)
        except BadRequest as error:
            self._answer(connection, None, bad_request(str(error)), t)
            return
        if request is not None:
            self._answer(connection, request, self._routes.answer(request), t)
        elif connection.reader.expects:
            connection.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _whole_log(self) -> bytes:
        assert self._log_data is not None
        self._note()
        self._log.flush()
        return self._log_data()

    def _answer(self, connection: _Connection, request: Request | None, answer: Answer, t: int) -> None:
        stream = self._stream(self.counts.requests, t, answer, connection.sock, connection)
        connection.stream, connection.request = stream, request
        self.counts.requests += 1
        self.timeline.add(stream)

    # --- ends

    def _on_blocked(self, stream: Stream) -> None:
        self.counts.blocked += 1
        connection = stream.connection
        assert isinstance(connection, _Connection)
        self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _finished(self, stream: Stream, end: End) -> None:
        connection = stream.connection
        assert isinstance(connection, _Connection)
        if end is _SILENT:
            stream.index = stream.last + 1  # over, but for the client's hanging up
            return
        request = connection.request
        self._ended(stream, request, end)
        connection.stream = connection.request = None
        keep = stream.answer.keep and end is not _HUNG_UP and request is not None and request.keep_alive
        if end is _RESET:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        if not keep:
            self._drop(connection)
        elif connection.reader.pending:
            self._take(connection, b"", self._clock())

    def _ended(self, stream: Stream, request: Request | None, end: End) -> None:
        self._unnoted.append((stream, request, end))
        if len(self._unnoted) >= NOTED:
            self._note()

    def _note(self) -> None:
        unnoted, self._unnoted = self._unnoted, []
        for stream, request, end in unnoted:
            self.counts.ends[_NAMES[end]] += 1
            if request is None or request.method != "POST" or request.path.partition("?")[0] not in WIRES:
                continue
            stamps, late = stream.written()
            self.counts.tokens += len(late) // 4
            if not stream.blocked:
                self.lateness.add(late)
            self._log.append(log.encode(self._process, request, stream, end, stamps, late))

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            if connection.stream is not None:
                self._ended(connection.stream, connection.request, End.STOPPED)
            connection.sock.close()
        self._connections.clear()
        self._note()
        self._log.close()
        self._epoll.close()
        self._listener.close()


def new_listener(host: str, port: int, shared: bool) -> socket.socket:
    """A bound socket; ``shared`` lets other processes of ours listen on the same port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        if not hasattr(socket, "SO_REUSEPORT"):
            raise OSError(f"{sys.platform} does not let several processes share a port")
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
