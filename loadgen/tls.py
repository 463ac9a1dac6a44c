"""TLS in memory over our own sockets, so that reads keep their stamps (MEASUREMENT C3).

All plaintext that one read of the socket completes shares that read's stamp.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from loadgen.lane import Lane
from loadgen.route import Route
from loadgen.sockets import Owner, Socket, Sockets

_PART = 65_536


def default_context(ca: str | None = None) -> ssl.SSLContext:
    """Verifies the target by the system's authorities, or by those in the PEM file ``ca`` alone; speaks
    HTTP/1.1. Raises OSError if there are none in it."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsSocket:
    """A Channel: the owner sees plaintext, and hears `opened` when the handshake is done."""

    def __init__(
        self, sockets: Sockets, route: Route, owner: Owner, context: ssl.SSLContext, host: str
    ) -> None:
        """``host``: the name that the target's certificate must bear."""
        self._lane: Lane | None = None
        self._owner, self._clock = owner, sockets.clock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._shaken = self._writing = self._over = False
        self._socket = Socket(sockets, route, self, gather=False)

    # --- Channel

    def write(self, data: bytes) -> None:
        self._writing = True
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            asyncio.get_running_loop().call_soon(self._fail, self._clock(), error)
            return
        self._flush()

    def use(self, lane: Lane | None) -> None:
        self._lane = lane

    def look(self) -> None:
        self._socket.look()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._say_goodbye()
            self._socket.close()

    # --- Owner of the socket

    def opened(self, t: int) -> None:
        self._shake(t)

    def ended(self, t: int) -> None:
        """The socket has no lane, only this has one."""

    def received(self, t: int, data: bytes, real: int) -> None:
        self._in.write(data)
        if not self._shaken and not self._shake(t):
            return
        text, end = self._plaintext()
        self._flush()  # TLS has things of its own to say, if only an alert
        if text and (self._lane is None or not self._lane.take(t, text, real)):
            self._owner.received(t, text, real)
        elif text and self._lane is not None and self._lane.over:
            self._owner.ended(t)
        if end is not None and not self._over:
            self.close()
            self._owner.lost(t, None if isinstance(end, ssl.SSLZeroReturnError) else end)

    def drained(self, t: int) -> None:
        if self._writing and not self._over:
            self._writing = False
            self._owner.drained(t)

    def lost(self, t: int, error: OSError | None) -> None:
        self._over = True
        if error is None:
            when = "without a TLS goodbye" if self._shaken else "during the TLS handshake"
            error = ssl.SSLEOFError(ssl.SSL_ERROR_EOF, f"the server closed the connection {when}")
        self._owner.lost(t, error)

    # --- inside

    def _shake(self, t: int) -> bool:
        """One more step of the handshake; True once it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(t, error)
            return False
        self._flush()
        self._shaken = True
        self._socket.settle()
        self._owner.opened(t)
        return not self._over

    def _plaintext(self) -> tuple[bytes, ssl.SSLError | None]:
        """What can be decrypted now, and what ended it, if something did."""
        parts: list[bytes] = []
        end: ssl.SSLError | None = None
        try:
            while end is None and (self._in.pending or self._tls.pending()):
                part = self._tls.read(_PART)
                parts.append(part)
                if not part:  # the other side has said goodbye
                    end = ssl.SSLZeroReturnError()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            end = error.with_traceback(None)  # which holds this frame, and that the error
        return b"".join(parts), end

    def _flush(self) -> None:
        if data := self._out.read():
            self._socket.write(data)

    def _fail(self, t: int, error: ssl.SSLError) -> None:
        if not self._over:
            self._over = True
            self._flush()  # the alert
            self._socket.close()
            self._owner.lost(t, error)

    def _say_goodbye(self) -> None:
        if self._shaken:
            with suppress(ssl.SSLError):  # it wants the other side's goodbye, which is not waited for
                self._tls.unwrap()
            self._flush()
