"""TLS over our own sockets, against real TLS servers on loopback.

loopback.pem is a certificate for localhost and 127.0.0.1, signed by itself, with its key; only these tests
trust it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

import loadgen.tls
from loadgen.client import Address, Client
from loadgen.clock import monotonic
from loadgen.route import Route
from loadgen.sockets import Sockets, kernel_stamps_here
from loadgen.stamps import ClockBridge, sample_clock
from loadgen.tls import TlsSocket, default_context
from loadgen.transport import Ending, HttpRequest

PEM = Path(__file__).parent / "loopback.pem"
LIMIT_S = 10.0
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Serve = Callable[[ssl.SSLSocket], None]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(PEM))


def serving() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


class Server:
    """One TLS connection after the other, in a thread; what ``serve`` raises is kept."""

    def __init__(self, serve: Serve, tls: bool = True) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._serve, self._tls = serve, tls
        self.port: int = self._socket.getsockname()[1]
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                end, _ = self._socket.accept()
            except OSError:
                return
            end.settimeout(LIMIT_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                with end if not self._tls else serving().wrap_socket(end, server_side=True) as own:
                    self._serve(cast(ssl.SSLSocket, own))
            except (OSError, AssertionError) as error:
                self.raised.append(error)
            end.close()


class Heard:
    """A Sink that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.reads: list[tuple[int, bytes, int]] = []
        self.new: list[bool] = []
        self.over: asyncio.Future[tuple[Ending, str]] = asyncio.get_running_loop().create_future()

    def connected(self, t: int, new: bool) -> None:
        self.said.append("connected")
        self.new.append(new)

    def sent(self, t: int) -> None:
        self.said.append("sent")

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        self.said.append("headers")

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self.reads.append((t, chunk, real))

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.over.set_result((how, detail))

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk, _ in self.reads)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def ask(port: int, *bodies: bytes, context: ssl.SSLContext | None = None) -> list[Heard]:
    """One exchange after the other."""

    async def main() -> list[Heard]:
        client = Client(Address("127.0.0.1", port, tls=True), monotonic, context or trusting())
        heard = []
        try:
            for body in bodies or (b"",):
                heard.append(Heard())
                client.send(HttpRequest("POST", "/", (), body), heard[-1])
                await asyncio.wait_for(asyncio.shield(heard[-1].over), LIMIT_S)
        finally:
            await client.close()
        return heard

    return cast(list[Heard], run(main()))


def more(end: ssl.SSLSocket) -> bytes:
    """Raises ValueError if the client leaves instead."""
    data = end.recv(65_536)
    if not data:
        raise ValueError("the client left")
    return data


def request(end: ssl.SSLSocket) -> bytes:
    """Read one request; its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += more(end)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += more(end)
    return body


def echo(end: ssl.SSLSocket) -> None:
    """Answer each request with its body, in two chunks, until the client says goodbye."""
    while True:
        try:
            body = request(end)
        except ValueError:
            return
        end.sendall(HEAD + chunk(body[: len(body) // 2 + 1]))
        end.sendall(chunk(body[len(body) // 2 + 1 :] or b"."))
        end.sendall(END)


def test_an_exchange_over_tls_is_an_exchange() -> None:
    """Large and small bodies both ways, on one connection."""
    large = bytes(range(256)) * 40_000
    with Server(echo) as server:
        first, second = ask(server.port, large, b"hi")
    assert first.over.result() == second.over.result() == ("complete", "")
    assert first.body == large
    assert second.body == b"hi."
    assert (first.new, second.new) == ([True], [False])
    assert first.said == ["connected", "sent", "headers"]


def test_an_event_loops_own_tls_server_is_spoken_to() -> None:
    """The other common implementation, in the same process."""

    async def main() -> tuple[Ending, str, bytes]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for part in (HEAD, chunk(b"one"), chunk(b"two"), END):
                writer.write(part)
                await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving())
        address = Address("localhost", server.sockets[0].getsockname()[1], tls=True)
        client = Client(address, monotonic, trusting())
        await client.warm(2)
        heard = Heard()
        client.send(HttpRequest("GET", "/", (), b""), heard)
        how, detail = await asyncio.wait_for(asyncio.shield(heard.over), LIMIT_S)
        await client.close()
        server.close()
        await server.wait_closed()
        assert heard.new == [False]
        return how, detail, heard.body

    assert run(main()) == ("complete", "", b"onetwo")


def hang_up(end: ssl.SSLSocket) -> None:
    end.recv(65_536)


@pytest.mark.parametrize(
    ("serve", "tls", "context", "detail"),
    [
        (hang_up, True, default_context, "SSLCertVerificationError: self-signed certificate"),
        (hang_up, False, trusting, "SSLEOFError: the server closed the connection during the TLS handshake"),
        (lambda end: end.sendall(b"HTTP/1.1 400 Bad\r\n\r\n"), False, trusting, "SSLError: WRONG_VERSION"),
    ],
)
def test_a_handshake_that_fails_is_a_connect_error_with_its_name(
    serve: Serve, tls: bool, context: Callable[[], ssl.SSLContext], detail: str
) -> None:
    """An unknown certificate, a server that hangs up, one that speaks no TLS."""
    with Server(serve, tls) as server:
        (heard,) = ask(server.port, context=context())
    how, said = heard.over.result()
    assert how == "connect_error"
    assert said.startswith(detail)
    assert heard.said == []


def test_a_certificate_of_another_name_is_refused() -> None:
    """The target must be who the address says."""

    async def main(port: int) -> OSError | None:
        ends: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        class Owner:
            def opened(self, t: int) -> None:
                raise AssertionError("it must not open")

            def received(self, t: int, data: bytes, real: int) -> None: ...

            def drained(self, t: int) -> None: ...

            def lost(self, t: int, error: OSError | None) -> None:
                ends.set_result(error)

        sockets, route = Sockets(monotonic, False), Route.literal("127.0.0.1", port)
        assert route is not None
        TlsSocket(sockets, route, Owner(), trusting(), "other.example")
        try:
            return await asyncio.wait_for(ends, LIMIT_S)
        finally:
            sockets.close()

    with Server(hang_up) as server:
        error = run(main(server.port))
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "other.example" in str(error)


def until_close(end: ssl.SSLSocket) -> None:
    request(end)
    end.sendall(b"HTTP/1.1 200 OK\r\n\r\nall of it")


def goodbye(end: ssl.SSLSocket) -> None:
    until_close(end)
    end.unwrap()


def test_the_end_of_a_body_needs_the_goodbye_of_tls() -> None:
    """A body that its connection ends is complete after TLS's own end; after TCP's alone it may have been
    cut off."""
    with Server(goodbye) as server:
        (whole,) = ask(server.port)
    with Server(until_close) as server:
        (cut,) = ask(server.port)
    assert whole.body == cut.body == b"all of it"
    assert whole.over.result() == ("complete", "")
    assert cut.over.result() == (
        "eof",
        "SSLEOFError: the server closed the connection without a TLS goodbye",
    )


def test_the_client_says_goodbye() -> None:
    """A server that insists on it is content when the client closes."""
    ends: list[bytes] = []

    def serve(end: ssl.SSLSocket) -> None:
        end.suppress_ragged_eofs = False
        request(end)
        end.sendall(HEAD + END)
        ends.append(end.recv(10))

    with Server(serve) as server:
        (heard,) = ask(server.port)
    assert heard.over.result() == ("complete", "")
    assert ends == [b""]
    assert server.raised == []


@pytest.mark.skipif(
    not kernel_stamps_here(), reason="this machine's kernel does not stamp what TCP sockets receive"
)
def test_stamps_under_tls_are_the_kernels() -> None:
    """Two events written while the loop is blocked: both have the stamp of their read, which is that of
    the second one's arrival and not of the late read."""
    rounds = 7
    written: list[int] = []
    go = threading.Semaphore(0)

    def serve(end: ssl.SSLSocket) -> None:
        request(end)
        end.sendall(HEAD)
        for _ in range(rounds):
            assert go.acquire(timeout=LIMIT_S)
            end.sendall(chunk(b"one"))
            time.sleep(0.002)
            written.append(monotonic())
            end.sendall(chunk(b"two"))
        end.sendall(END)

    async def main(port: int) -> list[tuple[int, int]]:
        bridge = ClockBridge()
        bridge.add(sample_clock())
        client = Client(Address("127.0.0.1", port, tls=True), monotonic, trusting())
        assert client.kernel_stamps
        heard, found = Heard(), []
        client.send(HttpRequest("POST", "/", (), b"x"), heard)
        while "headers" not in heard.said:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # the kernel begins to stamp a little after it was first asked to
        for k in range(rounds):
            go.release()
            time.sleep(0.02)  # the loop, blocked on purpose
            while len(heard.reads) <= k:
                await asyncio.sleep(0)
            bridge.add(sample_clock())
            user, data, real = heard.reads[k]
            assert data == b"onetwo"
            t, bound, kernel = bridge.arrival(user, real)
            assert kernel
            assert t + bound >= written[k]
            found.append((t - written[k], user - written[k]))
        await client.close()
        return found

    with Server(serve) as server:
        found = run(main(server.port))
    assert statistics.median(user for _, user in found) > 10_000_000
    assert statistics.median(kernel for kernel, _ in found) < 1_000_000


class Loop:
    """A Socket that goes nowhere: what is written to it is kept."""

    def __init__(self, *_: object, **__: object) -> None:
        self.out = b""

    def write(self, data: bytes) -> None:
        self.out += data

    def settle(self) -> None: ...

    def close(self) -> None: ...


class Text:
    """An Owner that keeps plaintext."""

    def __init__(self) -> None:
        self.text, self.opens, self.ends = b"", 0, [0]

    def opened(self, t: int) -> None:
        self.opens += 1

    def received(self, t: int, data: bytes, real: int) -> None:
        assert data
        self.text += data

    def drained(self, t: int) -> None: ...

    def lost(self, t: int, error: OSError | None) -> None:
        assert error is None
        self.ends.append(t)


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5), st.lists(st.integers(0, 4000), max_size=20))
@settings(deadline=None, max_examples=40)
def test_any_cut_of_a_tls_stream_gives_the_same_text(texts: list[bytes], cuts: list[int]) -> None:
    """Records cut anywhere, also inside of the handshake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loadgen.tls, "Socket", Loop)
        theirs_in, theirs_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        theirs = serving().wrap_bio(theirs_in, theirs_out, server_side=True)
        owner = Text()
        ours = TlsSocket(
            cast(Sockets, type("S", (), {"clock": monotonic})), Route([]), owner, trusting(), "localhost"
        )
        line = cast(Loop, ours._socket)
        t = 0

        def deliver() -> None:
            nonlocal t
            data = theirs_out.read()
            edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
            for a, b in pairwise(edges):
                t += 1
                ours.received(t, data[a:b], 0)

        ours.opened(0)
        for _ in range(4):
            theirs_in.write(line.out)
            line.out = b""
            with suppress(ssl.SSLWantReadError):
                theirs.do_handshake()
            deliver()
        assert owner.opens == 1
        for text in texts:
            theirs.write(text)
        deliver()
        with pytest.raises(ssl.SSLWantReadError):
            theirs.unwrap()
        deliver()
        assert owner.text == b"".join(texts)
        assert owner.ends == [0, t]
