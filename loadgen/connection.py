"""One connection and the one exchange that it carries at a time."""

from __future__ import annotations

import ssl
from typing import Protocol

from loadgen.bodies import ChunkScanner, Framing
from loadgen.clock import Clock
from loadgen.http1 import Head, ResponseParser
from loadgen.lane import Lane
from loadgen.route import Route
from loadgen.sockets import Channel, named
from loadgen.transport import Ending, Sink


class Claim(Protocol):
    """What a connection is opened for."""

    def granted(self, connection: Connection, t: int, new: bool) -> None: ...

    def refused(self, t: int, error: OSError) -> None: ...

    def dropped(self, t: int, why: str) -> None:
        """From this side, before it was open."""


class Pool(Protocol):
    """Where a connection belongs. ``head``: of the last answer that came in chunks; the next one most likely
    begins with the same."""

    head: Head | None

    def dial(self, connection: Connection, route: Route) -> Channel: ...

    def released(self, connection: Connection) -> None:
        """Its exchange is complete and it can carry another one."""

    def lost(self, connection: Connection) -> None:
        """It is closed, or was never open. Once."""


class Exchange:
    """One request on its way, and the one place that tells its sink that it is over."""

    __slots__ = ("_clock", "connection", "payload", "sink")

    def __init__(self, payload: bytes, sink: Sink, clock: Clock) -> None:
        self.payload, self._clock = payload, clock
        self.sink: Sink | None = sink
        """None once it is over. Whoever may abort an exchange holds it, and it would hold him; the collector,
        which finds such circles, is off in the window."""
        self.connection: Connection | None = None

    @property
    def over(self) -> bool:
        return self.sink is None

    def abort(self) -> None:
        """Idempotent."""
        if self.over:
            return
        if self.connection is not None:
            self.connection.close("closed by the client")
        else:
            self.finish(self._clock(), "aborted", "closed by the client while waiting for a connection")

    def finish(self, t: int, how: Ending, detail: str) -> None:
        sink, self.sink, self.connection = self.sink, None, None
        if sink is not None:
            sink.closed(t, how, detail)

    # --- Claim

    def granted(self, connection: Connection, t: int, new: bool) -> None:
        if self.sink is not None:
            self.sink.connected(t, new)
        if self.over:  # that was too late for it
            connection.spare()
        else:
            connection.begin(self, new)

    def refused(self, t: int, error: OSError) -> None:
        self.finish(t, "connect_error", named(error))

    def dropped(self, t: int, why: str) -> None:
        self.finish(t, "aborted", f"{why} while connecting")


class Connection:
    """The Owner of a channel; its claim gets it once it is open. ``closed``: it is of no more use."""

    def __init__(self, pool: Pool, clock: Clock, claim: Claim) -> None:
        self._pool, self._clock = pool, clock
        self._claim: Claim | None = claim
        self._channel: Channel | None = None
        self._exchange: Exchange | None = None
        self._sink: Sink | None = None
        self._parser = ResponseParser()
        self._framing: Framing | None = None
        self._expected: Head | None = None
        self._lane: Lane | None = None
        """What may have taken a head that nobody has told of yet."""
        self._keep_alive = self._unsent = self._new = self.closed = False

    def dial(self, route: Route) -> None:
        if not self.closed:
            self._channel = self._pool.dial(self, route)

    def begin(self, exchange: Exchange, new: bool) -> None:
        """Write the request of ``exchange``; its answer goes to its sink."""
        assert self._channel is not None
        assert self._exchange is None
        exchange.connection = self
        self._claim = None
        self._exchange, self._sink, self._new = exchange, exchange.sink, new
        self._parser, self._framing, self._unsent = ResponseParser(), None, True
        self._expect(exchange.sink)
        payload, exchange.payload = exchange.payload, b""
        self._channel.write(payload)

    def spare(self) -> None:
        """Nobody needs it for now."""
        self._claim = None
        if not self.closed:
            self._pool.released(self)

    def look(self) -> None:
        """Hear now of what the event loop has not told yet."""
        if self._channel is not None:
            self._channel.look()

    def close(self, why: str) -> None:
        """From this side; what it carried or was to carry ends as aborted. Idempotent."""
        exchange, claim = self._exchange, self._claim
        if self._let_go():
            if exchange is not None:
                exchange.finish(self._clock(), "aborted", why)
            elif claim is not None:
                claim.dropped(self._clock(), why)

    # --- Owner of the channel

    def opened(self, t: int) -> None:
        assert self._claim is not None
        self._claim.granted(self, t, True)

    def received(self, t: int, data: bytes, real: int) -> None:
        self._catch_up()
        framing, sink = self._framing, self._sink
        if framing is None or sink is None:
            self._first(t, data, real)
            return
        body = framing.feed(data)
        if body:
            sink.data(t, body, real)
        if framing.over:
            self._ended(t, framing.broken)
        else:
            self._choose_lane(framing, sink)

    def ended(self, t: int) -> None:
        self._catch_up()
        if (last := getattr(self._sink, "last", None)) is not None:
            last(t)
        self._ended(t, "")

    def drained(self, t: int) -> None:
        if self._unsent and self._sink is not None:
            self._unsent = False
            self._sink.sent(t)

    def lost(self, t: int, error: OSError | None) -> None:
        self._catch_up()
        exchange, claim = self._exchange, self._claim
        if not self._let_go():
            return
        if exchange is not None:
            exchange.finish(t, *self._verdict(error))
        elif claim is not None:
            claim.refused(t, error or ConnectionError("closed as it was opened"))

    # --- inside

    def _expect(self, sink: Sink | None) -> None:
        """The answer may take the short way from its first byte on, if the sink has one."""
        head, expect = self._pool.head, getattr(sink, "expect", None)
        self._expected = head
        self._lane = None if head is None or expect is None else expect(head)
        if self._channel is not None and self._lane is not None:
            self._channel.use(self._lane)

    def _catch_up(self) -> None:
        """With a head that the lane took."""
        if self._framing is None and self._lane is not None and self._lane.headers_at:
            assert self._expected is not None
            self._keep_alive = self._expected.keep_alive
            self._framing = self._parser.framing = ChunkScanner()

    def _choose_lane(self, framing: Framing | None, sink: Sink) -> None:
        """The next reads may take the short way, if the sink has one and everything is between two events."""
        lane_of = getattr(sink, "lane", None)
        between = isinstance(framing, ChunkScanner) and framing.between
        if self._channel is not None and self._exchange is not None and lane_of is not None:
            self._channel.use(lane_of() if between else None)

    def _first(self, t: int, data: bytes, real: int) -> None:
        """A read before the end of the head, or one that nobody asked for."""
        exchange, sink = self._exchange, self._sink
        if exchange is None or sink is None:
            self.close("the server spoke unasked")
            return
        self._lane = None
        piece = self._parser.feed(data)
        self._framing = self._parser.framing
        if piece.head is not None:
            self._keep_alive = piece.head.keep_alive
            if isinstance(self._framing, ChunkScanner):
                self._pool.head = piece.head
            sink.headers(t, piece.head.status, piece.head.headers, real)
        if piece.body and self._exchange is exchange:
            sink.data(t, piece.body, real)
        if (piece.complete or piece.broken) and self._exchange is exchange:
            self._ended(t, piece.broken)
        else:
            self._choose_lane(self._framing, sink)

    def _ended(self, t: int, broken: str) -> None:
        """By its framing; the sink may have let go of it in its last read."""
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = self._sink = self._framing = self._lane = None
        if self._channel is not None:
            self._channel.use(None)
        reusable = self._keep_alive and not broken and not self._parser.surplus and not self._unsent
        if not reusable:
            self._let_go()
        if broken:
            exchange.finish(t, "reset", f"broken HTTP answer: {broken}")
        else:
            exchange.finish(t, "complete", "")
        if reusable and not self.closed:
            self._pool.released(self)

    def _verdict(self, error: OSError | None) -> tuple[Ending, str]:
        """What the loss of the connection makes of the answer so far."""
        torn = isinstance(error, ssl.SSLEOFError)  # the end of TCP without that of TLS proves no end
        if error is not None and not torn:
            return "reset", named(error)
        if self._parser.eof() and not torn:
            return "complete", ""
        if not self._new and self._parser.untouched:
            return "reset", "the server closed the connection, which had been used before, without an answer"
        return "eof", named(
            error
        ) if error else "the server closed the connection before the answer was complete"

    def _let_go(self) -> bool:
        """Close the channel and leave the pool; False if that was done before."""
        if self.closed:
            return False
        self.closed = True
        self._exchange = self._sink = self._framing = self._claim = self._lane = None
        if self._channel is not None:
            self._channel.close()
        self._pool.lost(self)
        return True
