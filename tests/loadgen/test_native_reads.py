"""What the extension does with reads is what the Python does: the same tests, and one against the other."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import native
from loadgen.alarm import NEVER
from loadgen.clock import monotonic
from loadgen.harvest import EDGES, READ_BYTES, Harvest, Read, make_harvest, make_receive, receive
from loadgen.lane import Lane, make_lane
from loadgen.log import Log, log_of, make_log
from loadgen.sockets import SO_TIMESTAMPNS, kernel_stamps_here

KINDS = ("native", "python")
USUAL = b'data: {"id": "ch'
STAMP = st.integers(-(2**63), 2**63 - 1)
SIZE = st.integers(0, 4100)

pytestmark = pytest.mark.skipif(
    native.extension is None or sys.platform != "linux", reason="loadgen._harvest is not built here"
)


@contextmanager
def kept(kind: str) -> Iterator[None]:
    """Reads are kept natively or in Python meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "python":
            patch.setattr(native, "extension", None)
        yield


def both(do: Callable[[], object]) -> tuple[object, object]:
    results = []
    for kind in KINDS:
        with kept(kind):
            results.append(do())
    return results[0], results[1]


def test_the_two_kinds_are_two() -> None:
    """Or all that follows compares a thing with itself."""
    a, b = both(make_log)
    assert type(a) is not Log
    assert type(b) is Log


# --- logs


@given(st.lists(st.tuples(STAMP, STAMP, st.binary(max_size=300)), max_size=40))
def test_a_log_gives_back_what_it_got(reads: list[tuple[int, int, bytes]]) -> None:
    """Column by column, packed and unpacked, by itself and by the other kind."""
    columns = [[read[k] for read in reads] for k in range(3)]

    def packed() -> bytes:
        log = log_of(*columns)  # type: ignore[arg-type]
        assert [log.users, log.reals, log.chunks] == columns
        assert len(log) == len(reads)
        copy = make_log()
        copy.unpack(log.packed())
        assert copy == log
        copy.add(1, 2, b"more")
        assert copy != log
        assert copy.chunks == [*columns[2], b"more"]
        return log.packed()

    a, b = both(packed)
    assert a == b


@given(st.binary(max_size=60), st.lists(st.binary(max_size=30), max_size=3))
def test_what_is_no_log_is_refused(odd: bytes, chunks: list[bytes]) -> None:
    """Cut anywhere, or any bytes at all: both take it, or neither does and both stay as they were."""
    whole = log_of([1] * len(chunks), [2] * len(chunks), chunks).packed() + odd

    def taken() -> object:
        log = make_log()
        try:
            log.unpack(whole)
        except ValueError as error:
            assert (len(log), log.packed()) == (0, b"")
            return str(error)
        return log.chunks

    a, b = both(taken)
    assert a == b


# --- lanes


def event(text: bytes) -> bytes:
    return USUAL + text + b"\n\n"


def chunk(body: bytes, size: int | None = None, form: str = "%x") -> bytes:
    return (form % (len(body) if size is None else size)).encode() + b"\r\n" + body + b"\r\n"


PIECE = st.one_of(
    st.binary(max_size=300).map(lambda text: chunk(event(text))),
    st.integers(0, 4200).map(lambda n: chunk(event(b"x" * n))),
    st.integers(0, 300).map(lambda n: chunk(event(b"x" * n), form="%X")),
    st.builds(
        lambda n, off, form: chunk(event(b"x" * n), max(0, len(event(b"x" * n)) + off), form),
        st.integers(0, 300),
        st.integers(-2, 2),
        st.sampled_from(["%x", "%X", "0%x", "%04x", "+%x", " %x"]),
    ),
    st.sampled_from(
        [b"0\r\n\r\n", b"\r", b"\n", b"aB\r\n" + event(b"x" * 0x98) + b"\r\n", chunk(b"data: [DONE]\n\n")]
    ),
    st.binary(max_size=12),
)


HINTS = st.lists(st.sampled_from([b"xxx", b"error", b"ch"]), max_size=2).map(tuple)


@given(
    st.lists(PIECE, max_size=5),
    st.integers(0, 99),
    st.sampled_from([USUAL, b"", b"d", b"\n\n\n"]),
    st.booleans(),
    HINTS,
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n\r\n"]),
    st.booleans(),
)
def test_both_lanes_take_the_same(
    pieces: list[bytes],
    drop: int,
    usual: bytes,
    first: bool,
    hints: tuple[bytes, ...],
    head: bytes,
    ends: bool,
) -> None:
    """Usual chunks, one or many, sizes that are wrong or oddly written, cut ends, and any bytes; the first
    read of a lane, or a later one, which may hold a hint; heads, and whole answers with their end."""
    if ends:
        pieces = [head, *pieces, chunk(b"x\n\ndata: [DONE]\n\n"), b"0\r\n\r\n"]
    whole = b"".join(pieces)
    data = whole[: len(whole) - drop] if drop < 20 else whole

    def taken() -> object:
        lane = make_lane(usual, hints, log := make_log(), head)
        if not first:
            lane.take(1, head + chunk(usual + b"?\n\n"), 0)
        took = lane.take(5, data, 7), lane.took, lane.over, lane.headers_at, lane.headers_real
        return took, log.users, log.reals, log.chunks

    a, b = both(taken)
    assert a == b


@pytest.mark.parametrize("kind", KINDS)
def test_several_usual_events_of_one_read_are_kept_as_one_read(kind: str) -> None:
    """As the long way would: they share the stamp. One odd byte, and none of them is taken."""
    with kept(kind):
        log = make_log()
        lane = make_lane(USUAL, (), log)
        bodies = [event(b"x" * n) for n in (0, 5, 300)]
        data = b"".join(map(chunk, bodies))
        assert lane.take(3, data, 4)
        assert (log.users, log.reals, log.chunks) == ([3], [4], [b"".join(bodies)])
        for odd in (data + b"0", data + b"0\r\n\r\n", data[:-1], b"0" + data):
            assert not lane.take(5, odd, 6)
        assert len(log) == 1


# --- harvests


class Field:
    """Sockets of which a harvest reads one end; what came of each, in order."""

    def __init__(self, count: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.epoll = select.epoll()
        self.harvest: Harvest = make_harvest(self.epoll, monotonic)
        self.logs: dict[int, Log] = {}
        self.told: dict[int, list[bytes | OSError]] = {}
        for own, _ in self.pairs:
            own.setblocking(False)
            self.harvest.know(own)
            self.epoll.register(own.fileno(), EDGES)
            self.logs[own.fileno()] = log = make_log()
            self.harvest.use(own, make_lane(USUAL, (), log))
            self.told[own.fileno()] = []

    def read(self, limit: int = 64, until: int = NEVER) -> int:
        before = monotonic()
        count, news = self.harvest.read(limit, until)
        for fd, (t, _, data) in news:
            assert before <= t <= monotonic()
            self.told[fd].append(data)
        return count

    def read_all(self) -> None:
        for _ in range(1000):
            if not self.read(3) and not self.harvest.left:
                return
        raise AssertionError("it never ends")

    def close(self) -> None:
        self.epoll.close()
        for end in chain(*self.pairs):
            end.close()


@contextmanager
def field(count: int, kind: str) -> Iterator[Field]:
    with kept(kind):
        made = Field(count)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_one_read_of_one_socket_gives_bytes_an_end_an_error_or_nothing(kind: str) -> None:
    """With its time and, where the socket asked for it, the kernel's stamp; a second read finds nothing."""
    with kept(kind), socket.create_server(("127.0.0.1", 0)) as server:
        read, given = make_receive(monotonic), []
        for end in (b"", b"reset"):
            with socket.create_connection(server.getsockname()) as own:
                other, _ = server.accept()
                own.setblocking(False)
                own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                if kernel_stamps_here():
                    wait_for_stamps(own, other)
                assert read(own) is None
                for data, reads in ((b"hello", 1), (b"x" * (READ_BYTES + 1), 2)):
                    before = monotonic(), time.time_ns()
                    other.sendall(data)
                    given += [arrived(own, read, before) for _ in range(reads)]
                if end:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                other.close()
                given.append(arrived(own, read, None))
        assert given[:3] == given[4:7] == [b"hello", b"x" * READ_BYTES, b"x"]
        assert given[3] == b""
        assert isinstance(given[7], OSError)
        assert given[7].errno == errno.ECONNRESET


def wait_for_stamps(own: socket.socket, other: socket.socket) -> None:
    """The kernel begins to stamp a little after it was first asked to."""
    for _ in range(1000):
        other.send(b"?")
        while (one := receive(own, monotonic)) is None:
            pass
        if one[1]:
            return
        time.sleep(0.001)
    raise AssertionError("no stamps")


def arrived(
    own: socket.socket, read: Callable[[socket.socket], Read | None], sent: tuple[int, int] | None
) -> bytes | OSError:
    """What ``own`` gets; its stamps lie between ``sent`` and now."""
    while (one := read(own)) is None:
        pass
    t, real, data = one
    if sent is not None and kernel_stamps_here():
        assert sent[0] <= t <= monotonic()
        assert sent[1] - 1_000_000 <= real <= time.time_ns() + 1_000_000
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_full_buffer_leaves_and_an_end_behind_it_are_read(kind: str) -> None:
    """Edge-triggered: more than a buffer, and the end that came with it, bring no edge of their own."""
    with field(1, kind) as here:
        own, other = here.pairs[0]
        told = here.told[own.fileno()]
        for size in (3 * READ_BYTES - 5, 2 * READ_BYTES, 1):
            other.sendall(b"x" * size)
            here.read_all()
            assert sum(len(data) for data in told if isinstance(data, bytes)) == size
            assert all(told)
            told.clear()
        other.sendall(b"last")
        other.close()
        here.read_all()
        assert told[:2] == [b"last", b""]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [b"", b"bytes"])
def test_a_reset_is_told_whatever_came_before(kind: str, before: bytes) -> None:
    """By its errno."""
    with kept(kind), socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        epoll = select.epoll()
        harvest = make_harvest(epoll, monotonic)
        harvest.know(own)
        own.setblocking(False)
        epoll.register(own.fileno(), EDGES)
        other.sendall(before)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        told: list[object] = []
        for _ in range(100):
            told += [data for _, (_, _, data) in harvest.read(8, NEVER)[1]]
            if told and isinstance(told[-1], OSError):
                break
        assert isinstance(told[-1], ConnectionResetError)
        epoll.close()
        own.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_harvest_that_ends_early_goes_on_with_the_others(kind: str) -> None:
    """Never more than was asked for, each socket once, and those that are forgotten no more."""
    with field(10, kind) as here:
        for _, other in here.pairs:
            other.send(b"x")
        assert [here.read(4) for _ in range(4)] == [4, 4, 2, 0]
        assert all(told == [b"x"] for told in here.told.values())
        gone, other = here.pairs[3]
        other.send(chunk(event(b"y")))
        here.epoll.unregister(gone.fileno())
        here.harvest.forget(gone)
        assert here.read() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_harvest_stops_at_a_time_and_goes_on_where_it_stopped(kind: str) -> None:
    """One is read whatever the time is; what was forgotten in between is not read any more, not even if
    another socket bears its number by then; what became ready meanwhile comes after the rest."""
    with field(10, kind) as here:
        for _, other in here.pairs:
            other.send(b"x")
        assert not here.harvest.left
        assert (here.read(6, monotonic() - 1), here.harvest.left) == (1, True)
        waiting = [own for own, _ in here.pairs if not here.told[own.fileno()]]
        gone = waiting[0]
        for own, other in here.pairs:
            if own not in waiting:
                other.send(b"later")
        number = gone.fileno()
        here.epoll.unregister(number)
        here.harvest.forget(gone)
        gone.close()
        new, peer = socket.socketpair()
        assert new.fileno() == number
        here.harvest.know(new)
        peer.send(b"not watched")
        rest = 0
        while here.harvest.left:
            rest += here.read(2, monotonic() + 10**12)
        assert rest <= 5  # of the six, without the first, with or without the one that is gone
        assert not any(b"later" in told for told in here.told.values())
        here.read_all()
        assert [len(told) for told in here.told.values()].count(0) == 1
        assert here.told[number] == []
        assert sorted(map(len, here.told.values()))[-1] == 2
        new.close()
        peer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_epoll_is_an_error(kind: str) -> None:
    """And not a wait for ever, nor nothing."""
    with field(1, kind) as here:
        fd = here.epoll.fileno()
        other = os.dup(2)
        os.dup2(other, fd)  # a number that is no epoll any more
        with pytest.raises(OSError, match="Invalid argument"):
            here.harvest.read(8, NEVER)
        os.close(other)


STEP = st.one_of(
    st.binary(max_size=400).map(lambda text: chunk(event(text))),
    st.binary(max_size=50),
    st.integers(1, 40_000).map(lambda n: b"z" * n),
    st.sampled_from([0, NEVER]),
)


@given(st.lists(st.tuples(st.integers(0, 2), STEP), max_size=25), st.booleans())
def test_every_byte_is_read_once_in_order(steps: list[tuple[int, bytes | int]], close: bool) -> None:
    """Bytes of any kind on some sockets, harvests until some time in between: the log and the news of each
    socket together are what was sent, and the same for both kinds."""

    def seen(kind: str) -> list[tuple[list[bytes], list[bytes | OSError]]]:
        with field(3, kind) as here:
            for number, data in steps:
                if isinstance(data, int):
                    here.read(until=data)
                else:
                    here.pairs[number][1].sendall(data)
                    if len(data) > 1000:
                        here.read_all()  # or the next one might wait for room
            if close:
                for _, other in here.pairs:
                    other.close()
            here.read_all()
            return [(here.logs[own.fileno()].chunks, here.told[own.fileno()]) for own, _ in here.pairs]

    found = seen("native")
    assert found == seen("python")
    for number, (chunks, told) in enumerate(found):
        sent = b"".join(data for at, data in steps if at == number and isinstance(data, bytes))
        size = sum(len(data) for data in told if isinstance(data, bytes)) + sum(map(len, chunks))
        framing = len(sent) - size  # what lanes took off
        assert framing == 0 if not chunks else framing > 0
        assert (told.count(b""), told[-1:] == [b""]) == ((1, True) if close else (0, False))


def test_it_holds_on_to_nothing() -> None:
    """Logs, lanes and harvests come and go, with reads taken and told: memory and references do not grow."""
    extension = native.extension
    assert extension is not None
    data, odd = chunk(event(b"x" * 150)), b"odd" * 50

    def round() -> None:
        for _ in range(40):
            log = extension.Log()
            lane: Lane = extension.Lane(USUAL, (), log)
            for _ in range(200):
                assert lane.take(1, data, 2)
                lane.take(1, odd, 2)
            log.unpack(log.packed())
            assert len(log.chunks) == 400
        with field(4, "native") as here:
            for _ in range(50):
                for _, other in here.pairs:
                    other.send(data)
                    here.read()
                    other.send(odd)
                here.read()

    def references() -> int:
        return sum(map(sys.getrefcount, (data, odd, extension.Log, extension.Lane, extension.Harvest)))

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(5):
        round()
    before, counted = resident(), references()
    for _ in range(30):
        round()
    assert abs(references() - counted) < 10
    assert resident() - before < 4_000_000  # one round makes 5 MB


@pytest.mark.parametrize(("value", "kind"), [("0", "python"), ("1", "native")])
def test_it_can_be_left_out(value: str, kind: str) -> None:
    """By the environment, before the start."""
    code = "import json; from loadgen import native; print(json.dumps(native.reads()))"
    env = {**os.environ, "HEADRACE_NATIVE": value}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert json.loads(said.stdout) == kind


def test_a_module_that_is_there_and_cannot_be_imported_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old build must not pass for none."""
    (tmp_path / "stale_reads.py").write_text("import loadgen.long_gone")
    monkeypatch.syspath_prepend(tmp_path)
    assert native.find("loadgen.never_built") is None
    with pytest.raises(ImportError, match="long_gone"):
        native.find("stale_reads")


def test_an_extension_of_other_sources_is_refused() -> None:
    """When it is imported, not in the middle of a run."""
    code = """
import sys, types
sys.modules["loadgen._harvest"] = types.ModuleType("loadgen._harvest")
try:
    import loadgen.native
except ImportError as error:
    assert "build it again" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
