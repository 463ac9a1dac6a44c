"""The client's connections: pool, limit, aborts and ends, over loopback sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadgen.alarm import NEVER, TimerfdAlarm
from loadgen.client import WARM_BATCH, Address, Client
from loadgen.clock import monotonic
from loadgen.route import Route
from loadgen.sockets import kernel_stamps_here
from loadgen.transport import Ending, HttpRequest

pytestmark = pytest.mark.usefixtures("reads_kind")

LIMIT_S = 15.0
MS = 1_000_000
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REQUEST = HttpRequest("POST", "/v1/x", (), b"{}")
(C19,) = Path(__file__).parents[1].glob("cases/loadgen/C-19.json")


class Heard:
    """A Sink that keeps what it is told."""

    def __init__(self) -> None:
        self.start = monotonic()
        self.stamps: dict[str, int] = {}
        self.new: bool | None = None
        self.reads: list[tuple[int, bytes, int]] = []
        self.status = 0
        self.real = 0
        self.endings: list[tuple[Ending, str]] = []
        self.over = asyncio.Event()

    def connected(self, t: int, new: bool) -> None:
        self.stamps["connected"], self.new = t, new

    def sent(self, t: int) -> None:
        self.stamps["sent"] = t

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        self.stamps["headers"], self.status, self.real = t, status, real

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        self.reads.append((t, chunk, real))

    def closed(self, t: int, how: Ending, detail: str) -> None:
        self.stamps["closed"] = t
        self.endings.append((how, detail))
        self.over.set()

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk, _ in self.reads)

    @property
    def wait(self) -> int:
        """ns from the send to the connection in hand."""
        return self.stamps["connected"] - self.start

    async def end(self) -> tuple[Ending, str]:
        await asyncio.wait_for(self.over.wait(), LIMIT_S)
        (ending,) = self.endings
        return ending


class Target:
    """A server whose connections the test holds in its hands."""

    def __init__(self, backlog: int = 500) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self._server.setblocking(False)
        self.address = Address("127.0.0.1", self._server.getsockname()[1])
        self.ends: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        end, _ = await asyncio.wait_for(loop.sock_accept(self._server), LIMIT_S)
        self.ends.append(end)
        return end

    async def request(self, end: socket.socket) -> bytes:
        """One whole request; b"" if the client has closed."""
        loop, data = asyncio.get_running_loop(), b""
        while not data.endswith(b"{}"):
            part = await asyncio.wait_for(loop.sock_recv(end, 65_536), LIMIT_S)
            if not part:
                return b""
            data += part
        return data

    def close(self) -> None:
        for end in (self._server, *self.ends):
            end.close()


Body = Callable[[Target, Client], Awaitable[None]]


def run(body: Body, limit: int | None = None, **more: Any) -> None:
    async def main() -> None:
        target = Target()
        client = Client(target.address, monotonic, limit=limit, **more)
        try:
            await body(target, client)
        finally:
            await client.close()
            target.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def send(client: Client, request: HttpRequest = REQUEST) -> Heard:
    heard = Heard()
    heard.abort = client.send(request, heard)  # type: ignore[attr-defined]
    return heard


def abort(heard: Heard) -> None:
    heard.abort()  # type: ignore[attr-defined]


async def answered(target: Target, client: Client, heard: Heard | None = None) -> socket.socket:
    """One exchange to its end; the server's end of its connection, which is idle now."""
    heard = heard or Heard()
    client.send(REQUEST, heard)
    end = await target.accept()
    await target.request(end)
    end.send(OK)
    assert await heard.end() == ("complete", "")
    return end


def reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


async def served(
    target: Target, client: Client, requests: int, at_once: int, hold: float
) -> tuple[list[Heard], int]:
    """Send all at once to a server that answers no request before ``at_once`` (or all that are left) are
    there and ``hold`` s have passed; also the most that it ever had at a time."""
    held: list[socket.socket] = []
    most, left = 0, requests

    async def serve(end: socket.socket) -> None:
        nonlocal held, most, left
        while await target.request(end):
            held.append(end)
            most = max(most, len(held))
            if len(held) == min(at_once, left):
                await asyncio.sleep(hold)
                left -= len(held)
                answered, held = held, []
                for one in answered:
                    one.send(OK)

    async def accept() -> None:
        while True:
            tasks.append(asyncio.create_task(serve(await target.accept())))

    tasks = [asyncio.create_task(accept())]
    heard = [send(client) for _ in range(requests)]
    assert [await one.end() for one in heard] == [("complete", "")] * requests
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return heard, most


def test_case_c19_no_hidden_limit() -> None:
    """C-19: that many simultaneous requests are with the server at once, each on a connection of its own;
    none waits for another one's answer."""
    inputs = json.loads(C19.read_text())["inputs"]
    count = inputs["simultaneous"]

    async def body(target: Target, client: Client) -> None:
        heard, most = await served(target, client, count, count, 0.0)
        assert most == count
        assert client.pool_limit is inputs["client_limit"] is None
        assert all(one.new for one in heard)
        # No answer left before all requests were there, so a wait for an answer would be seen here.
        assert max(one.stamps["connected"] for one in heard) < min(one.stamps["headers"] for one in heard)

    run(body)


def test_case_c19_a_limit_is_seen_as_pool_wait() -> None:
    """C-19/limit-100: the rounds that a limit makes stand in the time to the connection, in order of the
    sends."""
    (case,) = (one for one in json.loads(C19.read_text())["variants"] if one["id"] == "C-19/limit-100")
    count, limit = case["inputs"]["simultaneous"], case["inputs"]["client_limit"]
    hold = 0.1  # a third of the case's service time

    async def body(target: Target, client: Client) -> None:
        heard, most = await served(target, client, count, limit, hold)
        assert client.pool_limit == limit
        assert most == limit
        assert [one.new for one in heard] == [True] * limit + [False] * (count - limit)
        connected = [one.stamps["connected"] for one in heard]
        assert connected[limit:] == sorted(connected[limit:])
        rounds = [heard[k : k + limit] for k in range(0, count, limit)]
        for number, round in enumerate(rounds):
            assert min(one.wait for one in round) >= number * hold * 1e9 * 0.98
        pooled = sorted(one.wait for one in heard)
        assert pooled[count // 2] >= hold * 1e9 * 0.98

    run(body, limit=limit)


def test_a_limit_of_nothing_is_refused() -> None:
    """It would send nothing, ever."""
    with pytest.raises(ValueError, match="a pool of 0 connections"):
        Client(Address("127.0.0.1", 1), monotonic, limit=0)


def test_warm_connections_are_used_last_in_first_out() -> None:
    """They are opened in batches before the load, up to the limit; a request finds them there."""

    async def body(target: Target, client: Client) -> None:
        await client.warm(WARM_BATCH + 10)
        ends = [await target.accept() for _ in range(WARM_BATCH + 5)]
        heard = send(client)
        (ready,) = [end for end in ends if await _readable(end)]
        await target.request(ready)
        ready.send(OK)
        await heard.end()
        assert heard.new is False
        again = send(client)
        await target.request(ready)
        ready.send(OK)
        assert await again.end() == ("complete", "")

    run(body, limit=WARM_BATCH + 5)


async def _readable(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return bool(end.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_warming_up_towards_nobody_fails_with_the_reason() -> None:
    """The run must not begin."""

    async def body(target: Target, client: Client) -> None:
        target.close()
        with pytest.raises(ConnectionRefusedError, match=r"connect to 127\.0\.0\.1"):
            await client.warm(3)

    run(body)


def test_a_name_is_looked_up_once_and_a_bad_one_is_a_connect_error() -> None:
    """Requests meanwhile wait for the answer; the error has its own name."""

    async def body(target: Target, client: Client) -> None:
        named = Client(Address("localhost", target.address.port), monotonic)
        heard = [send(named) for _ in range(3)]
        for _ in heard:
            end = await target.accept()
            await target.request(end)
            end.send(OK)
        assert [await one.end() for one in heard] == [("complete", "")] * 3
        await named.close()
        lost = Client(Address("no-such-host.invalid", 80), monotonic)
        first, second = send(lost), send(lost)
        abort(second)
        assert await second.end() == ("aborted", "closed by the client while connecting")
        how, detail = await first.end()
        assert how == "connect_error"
        assert detail.startswith("gaierror: ")
        with pytest.raises(OSError, match=r".+"):
            await lost.warm(1)
        await lost.close()

    run(body)


def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    """Whether the event loop has told of it yet or not; the request gets a new one."""

    async def body(target: Target, client: Client) -> None:
        for told in (False, True):
            end = await answered(target, client)
            end.close()
            if told:
                await asyncio.sleep(0.01)
            heard = send(client)
            fresh = await target.accept()
            await target.request(fresh)
            fresh.send(OK)
            assert await heard.end() == ("complete", "")
            assert heard.new is True
            fresh.close()
            await asyncio.sleep(0.01)

    run(body)


def test_who_waits_for_a_connection_does_not_get_one_that_the_server_closed() -> None:
    """Under a limit: the answer, and at once the end without a word of it in the head."""

    async def body(target: Target, client: Client) -> None:
        first, second = send(client), send(client)
        end = await target.accept()
        await target.request(end)
        end.send(OK)
        end.close()
        fresh = await target.accept()
        await target.request(fresh)
        fresh.send(OK)
        assert await first.end() == await second.end() == ("complete", "")
        assert second.new is True

    run(body, limit=1)


def test_an_idle_connection_that_speaks_unasked_is_not_used() -> None:
    """As a proxy's 408 before it hangs up: that is no answer to the next request."""

    async def body(target: Target, client: Client) -> None:
        end = await answered(target, client)
        end.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        heard = send(client)
        fresh = await target.accept()
        await target.request(fresh)
        fresh.send(OK)
        assert await heard.end() == ("complete", "")
        assert (heard.status, heard.new) == (200, True)

    run(body)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_reused_connection_that_dies_without_a_word_is_a_reset(how: str) -> None:
    """Nothing is tried again here."""

    async def body(target: Target, client: Client) -> None:
        end = await answered(target, client)
        heard = send(client)
        await target.request(end)
        end.close() if how == "fin" else reset(end)
        ending, detail = await heard.end()
        assert (ending, heard.new) == ("reset", False)
        assert "used before" in detail or detail.startswith("ECONNRESET")

    run(body)


@pytest.mark.parametrize(
    ("part", "ending"),
    [
        (b"", "eof"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "eof"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "eof"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "eof"),
        (b"HTTP/1.1 200 OK\r\n\r\nab", "complete"),
    ],
)
def test_a_half_closed_connection_ends_the_answer(part: bytes, ending: str) -> None:
    """The server says it has no more: the end, proper or not, is told at once and the connection goes."""

    async def body(target: Target, client: Client) -> None:
        heard = send(client)
        end = await target.accept()
        await target.request(end)
        end.send(part)
        end.shutdown(socket.SHUT_WR)
        assert (await heard.end())[0] == ending
        assert heard.body == (b"ab" if b"ab" in part else b"")
        assert await target.request(end) == b""  # closed from this side too

    run(body)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n", b"!"])
def test_bytes_after_the_answer_end_the_connection(more: bytes) -> None:
    """They would be taken for the beginning of the next answer."""

    async def body(target: Target, client: Client) -> None:
        heard = send(client)
        end = await target.accept()
        await target.request(end)
        end.send(OK + more)
        assert await heard.end() == ("complete", "")
        assert heard.body == b"ok"
        assert await target.request(end) == b""

    run(body)


def test_an_answer_then_a_reset_is_complete() -> None:
    """What happens to the connection after the end of the answer is not the request's."""

    async def body(target: Target, client: Client) -> None:
        end = await answered(target, client)
        reset(end)
        await asyncio.sleep(0.01)
        await answered(target, client)

    run(body)


def test_an_abort_closes_the_connection_and_the_others_go_on() -> None:
    """The server sees the client leave; the sink hears so once, at once."""

    async def body(target: Target, client: Client) -> None:
        first, second = send(client), send(client)
        ends = [await target.accept(), await target.accept()]
        for end in ends:
            await target.request(end)
        abort(first)
        abort(first)
        assert first.endings == [("aborted", "closed by the client")]
        assert await target.request(ends[0]) == b""
        ends[1].send(OK)
        assert await second.end() == ("complete", "")
        abort(second)
        again = send(client)
        await target.request(ends[1])
        ends[1].send(OK)
        assert await again.end() == ("complete", "")

    run(body)


@pytest.mark.parametrize("at", ["connected", "sent", "headers", "data"])
@pytest.mark.parametrize("reused", [False, True])
def test_an_abort_from_within_a_call_is_the_last_word(at: str, reused: bool) -> None:
    """A sink that has seen enough gets nothing more, though more was in that read; the pool goes on."""

    async def body(target: Target, client: Client) -> None:
        heard = Heard()

        def leave(*_: Any) -> None:
            # In the midst of `send` there is nothing yet to abort with.
            asyncio.get_running_loop().call_soon(abort, heard) if not hasattr(heard, "abort") else abort(
                heard
            )

        setattr(heard, at, leave)
        if reused:
            end = await answered(target, client)
        heard.abort = client.send(REQUEST, heard)  # type: ignore[attr-defined]
        if not reused:
            end = await target.accept()
        if at in ("headers", "data"):
            await target.request(end)
            end.send(OK)
        how, _ = await heard.end()
        assert how == "aborted"
        assert heard.body == b""
        await asyncio.sleep(0.01)
        assert len(heard.endings) == 1
        while await target.request(end):
            pass  # until the server sees it leave
        await answered(target, client)

    run(body)


def test_an_abort_while_connecting_or_waiting() -> None:
    """Also of a connection that never comes about; whoever waits next has its turn."""

    async def body(target: Target, client: Client) -> None:
        full = Target(backlog=0)
        fillers = []
        for _ in range(3):  # until the kernel lets nobody in any more
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", full.address.port))
            fillers.append(filler)
        hanging = Client(full.address, monotonic, limit=1)
        first, second, third = (send(hanging) for _ in range(3))
        await asyncio.sleep(0.02)
        assert (first.stamps, second.stamps, third.stamps) == ({}, {}, {})
        abort(second)
        assert second.endings == [("aborted", "closed by the client while waiting for a connection")]
        abort(first)
        assert first.endings == [("aborted", "closed by the client while connecting")]
        await hanging.close()
        assert third.endings == [("aborted", "the client was closed while connecting")]
        full.close()
        for filler in fillers:
            filler.close()

    run(body)


def test_a_failed_connection_makes_room_for_the_next_in_line() -> None:
    """Under a limit every waiting request gets its own outcome."""

    async def body(target: Target, client: Client) -> None:
        target.close()
        heard = [send(client) for _ in range(5)]
        assert [(await one.end())[0] for one in heard] == ["connect_error"] * 5
        assert all(one.endings[0][1].startswith("ECONNREFUSED: ") for one in heard)

    run(body, limit=2)


def test_closing_the_client_ends_everything() -> None:
    """In the air, connecting, waiting, idle: each has its end, and the server sees it; later sends too."""

    async def body(target: Target, client: Client) -> None:
        idle = await answered(target, client)
        busy = send(client)
        await target.request(idle)
        fresh = send(client)
        waiting = send(client)
        await client.close()
        await client.close()
        assert {one.endings[0][0] for one in (busy, fresh, waiting)} == {"aborted"}
        assert await target.request(idle) == b""
        assert (await send(client).end()) == ("aborted", "the client is closed")

    run(body, limit=2)


def test_sent_is_when_the_last_byte_was_handed_over() -> None:
    """A body that fills all buffers is sent when the server has taken enough of it, not before."""

    async def body(target: Target, client: Client) -> None:
        payload = bytes(12 << 20) + b"{}"
        heard = send(client, HttpRequest("POST", "/", (), payload))
        end = await target.accept()
        await asyncio.sleep(0.02)
        assert "sent" not in heard.stamps
        begun = monotonic()
        got = len(await target.request(end))
        assert got > len(payload)
        end.send(OK)
        assert await heard.end() == ("complete", "")
        assert begun < heard.stamps["sent"] < heard.stamps["headers"]

    run(body)


def test_an_answer_before_the_whole_request_was_sent_counts_but_ends_the_connection() -> None:
    """A refusal of a large body; the connection is full of the rest of it."""

    async def body(target: Target, client: Client) -> None:
        heard = send(client, HttpRequest("POST", "/", (), bytes(12 << 20)))
        end = await target.accept()
        end.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        assert await heard.end() == ("complete", "")
        assert (heard.status, heard.body, "sent" in heard.stamps) == (413, b"no", False)
        await answered(target, client)

    run(body)


@pytest.mark.skipif(
    not kernel_stamps_here(), reason="this machine's kernel does not stamp what TCP sockets receive"
)
def test_head_and_body_of_one_read_share_its_stamps() -> None:
    """And several events of one read arrive as one piece with one stamp."""

    async def body(target: Target, client: Client) -> None:
        heard = Heard()
        while not heard.real:  # the kernel begins to stamp a little after it was first asked to
            await asyncio.sleep(0.001)
            (await answered(target, client, heard := Heard())).close()
        heard = send(client)
        end = await target.accept()
        await target.request(end)
        end.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        while not heard.reads:
            await asyncio.sleep(0)
        for part in (b"1\r\nb\r\n", b"1\r\nc\r\n"):
            end.send(part)
        time.sleep(0.002)  # both are there before the loop goes on
        while len(heard.reads) < 2:
            await asyncio.sleep(0)
        end.send(b"0\r\n\r\n")
        await heard.end()
        (t, first, real), (_, both, other) = heard.reads
        assert (first, t, real) == (b"a", heard.stamps["headers"], heard.real)
        assert both == b"bc"
        assert 0 < real < other
        assert abs(time.clock_gettime_ns(time.CLOCK_REALTIME) - other) < 10_000 * MS

    run(body)


def test_without_kernel_stamps_reads_say_so() -> None:
    """They can be turned off."""

    async def body(target: Target, client: Client) -> None:
        assert client.kernel_stamps is False
        heard = send(client)
        end = await target.accept()
        await target.request(end)
        end.send(OK)
        await heard.end()
        assert [real for _, _, real in heard.reads] == [0]

    run(body, kernel_stamps=False)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open descriptors are not listed here")
def test_a_client_leaves_no_descriptor_behind() -> None:
    """Complete, aborted, reset, refused, idle at the end."""
    counts = []

    async def body(target: Target, client: Client) -> None:
        await client.warm(3)
        aborted, cut = send(client), send(client)
        ends = [await target.accept() for _ in range(3)]
        abort(aborted)
        for end in ends:
            reset(end)
        await cut.end()
        refused = Client(Address("127.0.0.1", 1), monotonic)
        await send(refused).end()
        await refused.close()
        await answered(target, client)

    for _ in range(3):
        run(body)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1


def test_nothing_is_left_to_the_garbage_collector() -> None:
    """It is off while the load runs: what an exchange or a connection took is given back without it,
    however they end."""

    async def body(target: Target, client: Client) -> None:
        async def all_ways() -> None:
            end = await answered(target, client)  # complete
            cut = send(client)
            await target.request(end)
            reset(end)
            await cut.end()
            for part in (b"", b"HTTP/1.1 200 OK\r\n\r\nab", b"nonsense\r\n\r\n"):
                half = send(client)
                end = await target.accept()
                await target.request(end)
                end.send(part)
                end.close()
                await half.end()
            aborted = send(client)
            await target.accept()
            abort(aborted)
            await send(refused).end()

        refused = Client(Address("127.0.0.1", 1), monotonic)
        await all_ways()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await all_ways()
            gc.collect()
            circles = [one for one in gc.garbage if type(one).__module__.startswith(("loadgen", __name__))]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        await refused.close()
        assert circles == []

    run(body)


def test_both_kinds_of_event_loop_will_do() -> None:
    """asyncio's own as well as the fast one."""

    async def main() -> None:
        target = Target()
        client = Client(target.address, monotonic)
        await client.warm(2)
        heard = send(client)
        end = await target.accept()
        other = await target.accept()
        ready = end if await _readable(end) else other
        await target.request(ready)
        ready.send(OK)
        assert await heard.end() == ("complete", "")
        await client.close()
        target.close()

    asyncio.run(main())


def test_a_route_that_was_never_found_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One failed look-up does not spoil the client."""

    async def body(target: Target, client: Client) -> None:
        named, resolve = Client(Address("localhost", target.address.port), monotonic), Route.resolve

        async def fail(host: str, port: int) -> Route:
            raise OSError("the resolver is away")

        monkeypatch.setattr(Route, "resolve", fail)
        assert (await send(named).end())[0] == "connect_error"
        monkeypatch.setattr(Route, "resolve", resolve)
        await answered(target, named)
        await named.close()

    run(body)


# --- what is due goes first


@pytest.mark.skipif(sys.platform != "linux", reason="reads give way to the kernel's timer")
def test_what_is_due_is_sent_between_two_reads() -> None:
    """Answers have come for all that is in the air when the alarm is to ring: it rings after the first few
    are told, and the rest follows."""
    told: list[int] = []

    async def body(target: Target, client: Client) -> None:
        flying = [send(client) for _ in range(20)]
        ends = [await target.accept() for _ in flying]
        for end in ends:
            await target.request(end)
        alarm = client.alarm(monotonic, lambda: told.append(sum(one.over.is_set() for one in flying)))
        assert isinstance(alarm, TimerfdAlarm)
        for end in ends:
            end.send(OK)
        alarm.due = monotonic() - 10**9  # the event loop does not know of it
        for one in flying:
            assert await one.end() == ("complete", "")
        alarm.close()

    run(body)
    assert told == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads give way to the kernel's timer")
def test_a_request_never_gets_an_answer_that_was_read_before_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers say 408 on idle connections before they close them. The alarm is to ring when that was read
    from all of them, and told of none."""

    async def body(target: Target, client: Client) -> None:
        await client.warm(8)
        idle = [await target.accept() for _ in range(8)]
        heard: list[Heard] = []
        alarm = client.alarm(monotonic, lambda: heard.append(send(client)))
        assert isinstance(alarm, TimerfdAlarm)
        assert client._sockets is not None
        harvest = client._sockets.watch._harvest  # type: ignore[attr-defined]

        class Late:
            """A harvest that takes long."""

            def __getattr__(self, name: str) -> Any:
                return getattr(harvest, name)

            def read(self, limit: int, until: int) -> Any:
                read = harvest.read(limit, NEVER)
                if read[0] and not heard:
                    alarm.due = monotonic() - 10**9
                return read

        monkeypatch.setattr(client._sockets.watch, "_harvest", Late())
        for end in idle:
            end.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        end = await target.accept()
        await target.request(end)
        end.send(OK)
        (one,) = heard
        assert await one.end() == ("complete", "")
        assert (one.new, one.status) == (True, 200)
        assert one.start <= one.stamps["connected"] <= one.stamps["headers"]
        alarm.close()

    run(body)
