"""Sockets with stamps, against real ones on loopback."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

import loadgen.sockets
from loadgen import native
from loadgen.alarm import TimerfdAlarm
from loadgen.clock import monotonic
from loadgen.readiness import BATCH, EpollWatch, SelectorWatch
from loadgen.route import Endpoint, Route, connect_error
from loadgen.sockets import Channel, Socket, Sockets, kernel_stamps_here, named
from loadgen.stamps import ClockBridge, sample_clock

LIMIT_S = 10.0


class Seen:
    """An Owner that keeps what it is told."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes, int]] = []
        self.openings: list[int] = []
        self.drains: list[int] = []
        self.ends: list[OSError | None] = []
        self.changed = asyncio.Event()

    def opened(self, t: int) -> None:
        self.openings.append(t)
        self.changed.set()

    def received(self, t: int, data: bytes, real: int) -> None:
        self.reads.append((t, data, real))
        self.changed.set()

    def drained(self, t: int) -> None:
        self.drains.append(t)
        self.changed.set()

    def lost(self, t: int, error: OSError | None) -> None:
        self.ends.append(error)
        self.changed.set()

    @property
    def data(self) -> bytes:
        return b"".join(data for _, data, _ in self.reads)

    async def until(self, done: Callable[[Seen], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not done(self):
                self.changed.clear()
                await self.changed.wait()


class Rig:
    """A listening socket and sockets of ours that connect to it."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.server.setblocking(False)
        self.sockets = Sockets(monotonic, kernel_stamps_here())
        self.opened: list[Channel] = []
        self.accepted: list[socket.socket] = []

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(socket.AF_INET, self.server.getsockname())

    def connect(self, owner: Any, *endpoints: Endpoint, gather: bool = True) -> Socket:
        made = Socket(self.sockets, Route(endpoints or [self.endpoint]), owner, gather)
        self.opened.append(made)
        return made

    async def accept(self) -> socket.socket:
        end, _ = await asyncio.get_running_loop().sock_accept(self.server)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.accepted.append(end)
        return end

    async def pair(self, owner: Seen | None = None) -> tuple[Seen, Socket, socket.socket]:
        seen = owner or Seen()
        channel = self.connect(seen)
        end = await self.accept()
        await seen.until(lambda seen: seen.openings)
        return seen, channel, end

    def close(self) -> None:
        for channel in self.opened:
            channel.close()
        self.sockets.close()
        for end in (self.server, *self.accepted):
            end.close()


Body = Callable[[Rig], Awaitable[None]]


def run(body: Body) -> None:
    async def main() -> None:
        rig = Rig()
        try:
            await body(rig)
        finally:
            rig.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.fixture(params=["gathering", "gathering, in Python", "epoll", "epoll, in Python", "selector"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to learn of readiness, and to read."""
    name, _, python = request.param.partition(", ")
    if name != "selector" and sys.platform != "linux":
        pytest.skip("this platform has no epoll")
    if python:
        monkeypatch.setattr(native, "extension", None)
    elif name != "selector" and native.extension is None:
        pytest.skip("loadgen._harvest is not built here")
    makers = {
        "gathering": lambda clock, gather: EpollWatch(clock, True),
        "epoll": lambda clock, gather: EpollWatch(clock, False),
        "selector": lambda clock, gather: SelectorWatch(),
    }
    monkeypatch.setattr(loadgen.sockets, "make_watch", makers[name])
    return str(request.param)


needs_stamps = pytest.mark.skipif(
    not kernel_stamps_here(), reason="this machine's kernel does not stamp what TCP sockets receive"
)


async def until_stamped(seen: Seen, end: socket.socket) -> None:
    """The kernel begins to stamp a little after it was first asked to."""
    async with asyncio.timeout(LIMIT_S):
        while not (seen.reads and seen.reads[-1][2]):
            seen.reads.clear()
            end.send(b"?")
            await seen.until(lambda seen: seen.reads)
            await asyncio.sleep(0.001)
    seen.reads.clear()


def reset(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def test_bytes_go_both_ways_and_the_end_is_told(watch: str) -> None:
    """Opened, sent, read with a stamp after the write, and closed by the other side."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        channel.write(b"ask")
        assert len(seen.drains) == 1
        assert end.recv(10) == b"ask"
        before = monotonic()
        end.send(b"answer")
        await seen.until(lambda seen: seen.data == b"answer")
        assert seen.reads[0][0] > before > seen.drains[0] > seen.openings[0]
        end.close()
        await seen.until(lambda seen: seen.ends)
        assert seen.ends == [None]

    run(body)


def test_a_reset_is_told_with_its_name(watch: str) -> None:
    """What was received before it is not lost."""

    async def body(rig: Rig) -> None:
        seen, _, end = await rig.pair()
        end.send(b"part")
        reset(end)
        await seen.until(lambda seen: seen.ends)
        assert seen.data == b"part"
        (error,) = seen.ends
        assert error is not None
        assert named(error).startswith("ECONNRESET: ")

    run(body)


def test_what_the_kernel_does_not_take_follows_later(watch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body larger than all buffers arrives whole; drained means that its last byte was handed over."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        payload = os.urandom(1 << 20) * 12
        channel.write(payload[:-5])
        channel.write(payload[-5:])
        assert seen.drains == []
        end.setblocking(False)
        got = bytearray()
        while len(got) < len(payload):
            got += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1 << 20), LIMIT_S)
        assert bytes(got) == payload
        await seen.until(lambda seen: seen.drains)
        assert len(seen.drains) == 1
        told: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(Socket, "writable", lambda self: told.append(1))
            end.send(b"ok")
            await seen.until(lambda seen: seen.data == b"ok")
            await asyncio.sleep(0.005)
        assert told == [], "who has nothing to send does not care"

    run(body)


def test_an_answer_that_comes_before_all_is_sent_is_read(watch: str) -> None:
    """A server may refuse a large body early and hang up; what it said counts."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        channel.write(bytes(12 << 20))
        end.send(b"too large")
        await seen.until(lambda seen: seen.data == b"too large")
        end.close()  # with bytes unread, which resets the connection
        await seen.until(lambda seen: seen.ends)
        assert seen.drains == []
        (error,) = seen.ends
        assert isinstance(error, ConnectionResetError | BrokenPipeError)

    run(body)


def test_writing_to_a_dead_connection_is_a_loss_not_an_exception(watch: str) -> None:
    """Also if the end was there before the write."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        reset(end)
        channel.write(b"a")
        channel.write(b"b")
        await seen.until(lambda seen: seen.ends)
        assert seen.drains == []
        (error,) = seen.ends
        assert isinstance(error, ConnectionResetError | BrokenPipeError)

    run(body)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def nobody() -> Endpoint:
    return Endpoint(socket.AF_INET, ("127.0.0.1", free_port()))


def test_every_address_is_tried_and_the_good_one_remembered(watch: str) -> None:
    """The first that works is tried first from then on."""

    async def body(rig: Rig) -> None:
        route, seen = Route([nobody(), nobody(), rig.endpoint]), Seen()
        rig.opened.append(Socket(rig.sockets, route, seen))
        await rig.accept()
        await seen.until(lambda seen: seen.openings)
        assert route.endpoints[0] == rig.endpoint
        assert len(route.endpoints) == 3

    run(body)


def test_where_nobody_listens_is_told_with_name_and_address(watch: str) -> None:
    """Never from inside the call."""

    async def body(rig: Rig) -> None:
        seen, at = Seen(), nobody()
        rig.connect(seen, at)
        assert seen.ends == []
        await seen.until(lambda seen: seen.ends)
        (error,) = seen.ends
        assert error is not None
        assert named(error) == f"ECONNREFUSED: connect to {at}: Connection refused"

    run(body)


def test_the_failure_that_tells_most_is_reported() -> None:
    """An address this machine has no way to says nothing of the target, unless there is no other."""
    no_way, refused = OSError(errno.EADDRNOTAVAIL, "a"), OSError(errno.ECONNREFUSED, "b")
    assert connect_error([no_way, refused]) is refused
    assert connect_error([refused, no_way]) is refused
    assert connect_error([no_way, no_way]) is no_way


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EADDRNOTAVAIL])
def test_the_clients_own_limit_is_not_hidden_by_another_address(
    watch: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors, or of ports to the address that works: that is the error, though another address
    would do."""

    async def body(rig: Rig) -> None:
        other = socket.create_server(("127.0.0.1", 0))
        route = Route([rig.endpoint, Endpoint(socket.AF_INET, other.getsockname())])
        first, second = Seen(), Seen()
        rig.opened.append(Socket(rig.sockets, route, first))
        await first.until(lambda seen: seen.openings)
        make = rig.sockets.make

        def fail_once(family: int) -> socket.socket:
            monkeypatch.setattr(rig.sockets, "make", make)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(rig.sockets, "make", fail_once)
        rig.opened.append(Socket(rig.sockets, route, second))
        await second.until(lambda seen: seen.ends or seen.openings)
        other.close()
        assert second.openings == []
        (error,) = second.ends
        assert error is not None
        assert named(error).startswith(f"{errno.errorcode[code]}: connect to {rig.endpoint}")

    run(body)


def test_a_connection_to_itself_is_no_connection(watch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens, a socket that happens to have that port meets itself: refused all the same."""

    async def body(rig: Rig) -> None:
        at, make = nobody(), rig.sockets.make

        def bound(family: int) -> socket.socket:
            made = make(family)
            made.bind(at.address)
            return made

        monkeypatch.setattr(rig.sockets, "make", bound)
        seen = Seen()
        rig.connect(seen, at)
        await seen.until(lambda seen: seen.ends or seen.openings)
        assert seen.openings == []
        assert isinstance(seen.ends[0], ConnectionRefusedError)

    run(body)


def test_closing_while_connecting_is_silent(watch: str) -> None:
    """Nothing is told afterwards, of a connection that would have failed as of one that hangs."""

    async def body(rig: Rig) -> None:
        seen, other = Seen(), Seen()
        refused, hanging = rig.connect(seen, nobody()), rig.connect(other)
        refused.close()
        hanging.close()
        hanging.close()
        await rig.accept()
        alive, _, end = await rig.pair()
        end.send(b"x")
        await alive.until(lambda seen: seen.data)
        assert (seen.ends, seen.openings, other.ends, other.openings) == ([], [], [], [])

    run(body)


def test_news_can_be_asked_for(watch: str) -> None:
    """`look` tells at once what the loop would tell later: an end, bytes, or nothing."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        channel.look()
        assert (seen.reads, seen.ends) == ([], [])
        end.send(b"x")
        channel.look()
        assert seen.data == b"x"
        end.close()
        channel.look()
        assert seen.ends == [None]
        channel.look()
        assert seen.ends == [None]

    run(body)


def test_a_closed_number_is_not_taken_for_the_new_one(watch: str) -> None:
    """An owner closes all others in the middle of a batch and opens new ones: no event goes astray."""

    async def body(rig: Rig) -> None:
        seens: list[Seen] = []
        ends: list[socket.socket] = []
        new = [Seen() for _ in range(8)]
        at = nobody()

        class Closing(Seen):
            def received(self, t: int, data: bytes, real: int) -> None:
                super().received(t, data, real)
                for channel in rig.opened[:8]:
                    channel.close()
                for one in new:
                    rig.connect(one, at)

        for _ in range(8):
            seen, _, end = await rig.pair(Closing())
            seens.append(seen)
            ends.append(end)
        for end in ends:
            end.send(b"x")
        for one in new:
            await one.until(lambda seen: seen.ends)
        assert sum(len(seen.reads) for seen in seens) == 1
        # A stray event would have had them read, and the error of connecting taken for one of reading.
        assert {str(one.ends[0]) for one in new} == {
            f"[Errno {errno.ECONNREFUSED}] connect to {at}: Connection refused"
        }

    run(body)


def test_an_owner_that_fails_does_not_stop_the_others(watch: str) -> None:
    """The error goes to the event loop's handler; every other socket is read."""

    async def body(rig: Rig) -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        class Failing(Seen):
            def received(self, t: int, data: bytes, real: int) -> None:
                raise RuntimeError("owner")

        pairs = [await rig.pair(Failing() if k % 2 else None) for k in range(40)]
        for round in (b"a", b"b", b"c"):
            for _, _, end in pairs:
                end.send(round)
            await asyncio.sleep(0)
        for seen, _, _ in pairs[::2]:
            await seen.until(lambda seen: seen.data == b"abc")
        assert errors
        assert all("owner" in str(context.get("exception")) for context in errors)

    run(body)


def test_many_reads_are_gathered_and_none_is_lost(watch: str) -> None:
    """More sockets than a batch, written to from another thread for a while: all bytes in order, and the
    event loop has its turns meanwhile."""

    async def body(rig: Rig) -> None:
        pairs = [await rig.pair() for _ in range(BATCH + 20)]
        ends = [end for _, _, end in pairs]
        ready = threading.Event()

        def write() -> None:
            ready.wait(LIMIT_S)
            for k in range(60):
                for end in ends:
                    end.send(struct.pack("!i", k))

        thread = threading.Thread(target=write)
        thread.start()
        ready.set()
        whole = b"".join(struct.pack("!i", k) for k in range(60))
        turns = 0
        while any(len(seen.data) < len(whole) for seen, _, _ in pairs):
            turns += 1
            await asyncio.sleep(0.001)
        thread.join()
        assert all(seen.data == whole for seen, _, _ in pairs)
        assert turns > 0
        for seen, _, end in pairs:  # and after it is quiet again
            end.send(b"?")
            await seen.until(lambda seen: seen.data.endswith(b"?"))

    run(body)


def test_reads_give_way_to_what_is_due(watch: str) -> None:
    """An alarm that was to ring while many sockets are ready rings after the first is read and told, and each
    time that it is set again; then the others are read."""
    if watch == "selector":
        pytest.skip("it reads all in one go")

    async def body(rig: Rig) -> None:
        pairs = [await rig.pair() for _ in range(40)]
        rung: list[tuple[int, int]] = []

        def unread(end: Socket) -> bool:
            assert end._sock is not None
            with suppress(BlockingIOError):
                return bool(end._sock.recv(1, socket.MSG_PEEK))
            return False

        def ring() -> None:
            told, left = (len(seen.data) for seen, _, _ in pairs), (unread(own) for _, own, _ in pairs)
            rung.append((sum(told), sum(left)))
            if len(rung) < 4:
                alarm.set(monotonic() - 10**9)

        alarm = TimerfdAlarm(ring)
        rig.sockets.watch.give_way(alarm)
        for _, _, end in pairs:
            end.send(b"x")
        alarm.due = monotonic() - 10**9  # the event loop does not know of it
        async with asyncio.timeout(LIMIT_S):
            while any(not seen.data for seen, _, _ in pairs):
                await asyncio.sleep(0.001)
        assert rung[:4] == [(1, 39), (2, 38), (3, 37), (4, 36)]
        assert rung[4:] in ([], [(40, 0)])  # the event loop's own word for the last time, which came too late
        alarm.close()

    run(body)


def test_who_is_always_behind_leaves_the_event_loop_its_turns(watch: str) -> None:
    """An alarm that is to ring again as soon as it has rung, and works each time for as long as a whole batch
    gives way: it rings once in a batch, and all is read. One that fails keeps nobody from anything."""
    if watch == "selector":
        pytest.skip("it does not give way")

    async def body(rig: Rig) -> None:
        pairs = [await rig.pair() for _ in range(40)]
        rung = 0

        def ring() -> None:
            nonlocal rung
            rung += 1
            alarm.due = monotonic() - 10**9
            time.sleep(0.006)
            raise RuntimeError("it failed")

        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        alarm = TimerfdAlarm(ring)
        rig.sockets.watch.give_way(alarm)
        alarm.due = monotonic() - 10**9
        for _, _, end in pairs:
            end.send(b"x")
        async with asyncio.timeout(LIMIT_S):
            while any(not seen.data for seen, _, _ in pairs):
                await asyncio.sleep(0.001)
        assert 1 <= rung == len(errors) < 10
        alarm.close()

    run(body)


@pytest.mark.skipif(sys.platform != "linux", reason="epoll and timerfd are of Linux")
def test_reads_that_come_thick_wait_for_each_other_and_thin_ones_do_not() -> None:
    """Under a stream of single reads the event loop is woken by the alarm; when it ends, by each read. An
    owner that fails now and then changes nothing."""

    class Failing(Seen):
        def received(self, t: int, data: bytes, real: int) -> None:
            super().received(t, data, real)
            if len(self.reads) % 5 == 0:
                raise RuntimeError("owner")

    async def body(rig: Rig) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        watch = EpollWatch(monotonic, True)
        rig.sockets.watch.close()
        rig.sockets.watch = watch
        seen, _, end = await rig.pair(Failing())
        wakes: list[int] = []
        real = watch._alarm
        assert real is not None
        alarm_set = real.set
        real.set = lambda due: (wakes.append(due), alarm_set(due))  # type: ignore[method-assign, assignment, func-returns-value]
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                end.send(b"x")

        thread = threading.Thread(target=write)
        thread.start()
        await seen.until(lambda seen: len(wakes) > 12)
        stop.set()
        thread.join()
        async with asyncio.timeout(LIMIT_S):
            while True:
                count = len(wakes)
                await asyncio.sleep(0.01)
                if len(wakes) == count:
                    break
        before = len(seen.reads)
        end.send(b"y")
        await seen.until(lambda seen: len(seen.reads) > before)
        assert len(wakes) == count

    run(body)


@needs_stamps
def test_the_kernels_stamp_tells_the_arrival_though_the_loop_was_blocked() -> None:
    """Written while the loop stands still for 20 ms: the read is late, its converted stamp is not."""

    async def body(rig: Rig) -> None:
        bridge = ClockBridge()
        bridge.add(sample_clock())
        seen, _, end = await rig.pair()
        await until_stamped(seen, end)
        errors, delays = [], []
        for k in range(9):
            written: list[int] = []

            def write(written: list[int] = written, data: bytes = bytes([k])) -> None:
                time.sleep(0.002)
                written.append(monotonic())
                end.send(data)

            thread = threading.Thread(target=write)
            thread.start()
            time.sleep(0.02)  # the loop, blocked on purpose
            thread.join()
            await seen.until(lambda seen, k=k: len(seen.reads) > k)  # type: ignore[misc]
            bridge.add(sample_clock())
            user, _, real = seen.reads[k]
            t, bound, kernel = bridge.arrival(user, real)
            assert kernel
            assert t + bound >= written[0]
            errors.append(t - written[0])
            delays.append(user - written[0])
        assert statistics.median(delays) > 10_000_000
        assert statistics.median(errors) < 1_000_000

    run(body)


@needs_stamps
def test_a_read_of_several_writes_has_the_stamp_of_the_last() -> None:
    """It is an upper bound for those before it."""

    async def body(rig: Rig) -> None:
        bridge = ClockBridge()
        bridge.add(sample_clock())
        seen, _, end = await rig.pair()
        await until_stamped(seen, end)
        late = []
        for k in range(5):
            end.send(b"first")
            time.sleep(0.003)
            before_last = monotonic()
            end.send(b"last")
            await seen.until(lambda seen, k=k: len(seen.reads) > k)  # type: ignore[misc]
            bridge.add(sample_clock())
            user, data, real = seen.reads[k]
            assert data == b"firstlast"
            t, bound, kernel = bridge.arrival(user, real)
            assert kernel
            assert t + bound >= before_last
            late.append(t - before_last)
        assert statistics.median(late) < 1_000_000

    run(body)


@needs_stamps
def test_the_kernel_goes_on_stamping_between_connections() -> None:
    """Though none is open for a while, the first read of the next one has its stamp."""

    async def body(rig: Rig) -> None:
        seen, channel, end = await rig.pair()
        await until_stamped(seen, end)
        for _ in range(20):
            channel.close()
            await asyncio.sleep(0.003)
            seen, channel, end = await rig.pair()
            end.send(b"x")
            await seen.until(lambda seen: seen.reads)
            assert seen.reads[0][2]

    run(body)


@pytest.mark.parametrize("on", [True, False])
def test_stamps_are_asked_for_or_not(on: bool) -> None:
    """Without them a read has none, and says so."""
    if on and not kernel_stamps_here():
        pytest.skip("this machine's kernel does not stamp what TCP sockets receive")

    async def body(rig: Rig) -> None:
        rig.sockets.kernel_stamps = on
        stamped, _, own = await rig.pair()
        if on:
            await until_stamped(stamped, own)
        seen, _, end = await rig.pair()
        for k in range(3):
            end.send(b"x")
            await seen.until(lambda seen, k=k: len(seen.reads) > k)  # type: ignore[misc]
        assert all(bool(real) == on for _, _, real in seen.reads)

    run(body)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open descriptors are not listed here")
def test_no_descriptor_is_left_over(watch: str) -> None:
    """Whatever way a connection ends, and after many."""
    seen_counts = []

    async def body(rig: Rig) -> None:
        for _ in range(5):
            seen, channel, end = await rig.pair()
            channel.close()
            end.close()
            seen, _, end = await rig.pair()
            reset(end)
            await seen.until(lambda seen: seen.ends)
            seen = Seen()
            rig.connect(seen, nobody())
            await seen.until(lambda seen: seen.ends)
            rig.connect(Seen()).close()
            await rig.accept()

    for _ in range(3):
        run(body)
        seen_counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(seen_counts)) == 1


def test_names_are_of_the_errors_own_kind() -> None:
    """Numbers of TLS and of the resolver are no errno."""
    import ssl

    assert named(OSError(errno.EMFILE, "out")) == "EMFILE: out"
    assert named(socket.gaierror(socket.EAI_NONAME, "no such name")).startswith("gaierror: ")
    assert named(ssl.SSLError(1, "broken")) == "SSLError: broken"
    assert named(ValueError("x")) == "ValueError: x"


def test_a_literal_address_needs_no_resolver() -> None:
    """A name does."""
    route = Route.literal("127.0.0.1", 80)
    assert route is not None
    assert [str(at) for at in route.endpoints] == ["127.0.0.1:80"]
    six = Route.literal("::1", 80)
    assert six is None or str(six.endpoints[0]) == "[::1]:80"
    assert Route.literal("localhost", 80) is None
