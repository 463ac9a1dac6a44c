"""The reference server over loopback: its stamps, its log, its ends, its processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import pytest

from loadgen.clock import monotonic
from loadgen.http1 import ResponseParser
from loadgen.reference.answers import End
from loadgen.reference.group import ReferenceServer, ServerFailed
from loadgen.reference.job import ServerJob
from loadgen.reference.log import Entry, LogFile, LogTail, read_log
from loadgen.reference.script import Failure, FailureKind, Framing, Script
from loadgen.reference.server import Counts, Server, new_listener

MS = 1_000_000
QUICK = Script(ttft=0.02, itl=0.005)
GENEROUS = 400 * MS
"""How late a write may be on a machine that does other things too."""


@dataclass
class Running:
    """A server in a thread of the test, and what its log says once it is over."""

    port: int
    counts: Counts
    entries: list[Entry] = field(default_factory=list)


@contextmanager
def serving(script: Script, folder: Path) -> Iterator[Running]:
    listener = new_listener("127.0.0.1", 0, shared=False)
    log = folder / "reference-0.log"
    server = Server(script, listener, LogFile(log))
    running = Running(listener.getsockname()[1], server.counts)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield running
    finally:
        server.stop()
        thread.join(10)
        running.entries = read_log(log)


def request(n: int, id: str = "r", *, stream: bool = True, more: str = "") -> bytes:
    body = json.dumps({"max_tokens": n, "stream": stream, "stream_options": {"include_usage": True}})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: {id}\r\n"
    head += f"Content-Length: {len(body)}\r\n{more}\r\n"
    return (head + body).encode()


@dataclass
class Answered:
    status: int | None = None
    body: bytes = b""
    ended: str = ""
    tokens: list[int] = field(default_factory=list)
    """When the reads came that brought each token, ns."""


_TOKEN = b'"content":" '


def answered(sock: socket.socket) -> Answered:
    """Read one answer to its end; a token is a ``content`` with text."""
    sock.settimeout(10)
    parser, got, parts, tail = ResponseParser(), Answered(), [], b""
    while not got.ended:
        try:
            data = sock.recv(65_536)
        except ConnectionResetError:
            got.ended = "reset"
            break
        t = monotonic()
        if not data:
            got.ended = "complete" if parser.eof() else "eof"
            break
        piece = parser.feed(data)
        got.status = piece.head.status if piece.head else got.status
        seen = tail + piece.body
        got.tokens += [t] * seen.count(_TOKEN)
        tail = seen[-len(_TOKEN) + 1 :]
        parts.append(piece.body)
        got.ended = "complete" if piece.complete else ""
    got.body = b"".join(parts)
    return got


def ask(port: int, data: bytes) -> Answered:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(data)
        return answered(sock)


def test_tokens_come_when_the_script_says_and_the_log_knows_when(tmp_path: Path) -> None:
    """Never early; each stamp lies before the client's; the read lies after the client's send."""
    with serving(QUICK, tmp_path) as server:
        before = monotonic()
        got = ask(server.port, request(5, "abc"))
        after = monotonic()
    (entry,) = server.entries
    assert (entry.request_id, entry.status, entry.end, entry.blocked) == ("abc", 200, End.WHOLE, False)
    assert before < entry.read < after
    due = [entry.read + 20 * MS + k * 5 * MS for k in range(5)]
    late = [stamp - at for stamp, at in zip(entry.stamps.tolist(), due, strict=True)]
    assert late == entry.late.tolist()
    assert min(late) >= 0
    assert max(late) < GENEROUS
    assert entry.head is not None
    assert entry.read <= entry.head < entry.stamps[0]
    assert all(stamp < seen for stamp, seen in zip(entry.stamps.tolist(), got.tokens, strict=True))


def test_a_connection_serves_one_request_after_the_other(tmp_path: Path) -> None:
    """Also requests that were sent before the last answer was over: they are answered in order."""
    with serving(QUICK, tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(request(2, "a") + request(3, "b")[:50])
        first = answered(sock)
        sock.sendall(request(3, "b")[50:])
        second = answered(sock)
    assert [first.ended, second.ended] == ["complete", "complete"]
    assert [(entry.request_id, len(entry.stamps)) for entry in server.entries] == [("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("kind", "ended", "end"),
    [
        ("in_band", "complete", End.FAILED),
        ("truncate", "eof", End.TRUNCATED),
        ("reset", "reset", End.RESET),
    ],
)
def test_failures_reach_the_client_and_the_log(
    kind: FailureKind, ended: str, end: End, tmp_path: Path
) -> None:
    """Two tokens, then what the script says."""
    script = Script(ttft=0.01, itl=0.01, failures=(Failure(kind, 1.0, after=2),))
    with serving(script, tmp_path) as server:
        got = ask(server.port, request(5))
    (entry,) = server.entries
    assert (got.ended, len(got.tokens)) == (ended, 2)
    assert (b"scripted failure" in got.body) is (kind == "in_band")
    assert (entry.end, len(entry.stamps)) == (end, 2)


def test_a_refusal_is_logged_with_its_status(tmp_path: Path) -> None:
    """No token, the status, and the connection stays."""
    with serving(Script(failures=(Failure("status", 1.0, status=429),)), tmp_path) as server:
        got = ask(server.port, request(5))
    (entry,) = server.entries
    assert (got.status, got.ended) == (429, "complete")
    assert (entry.status, entry.end, len(entry.stamps)) == (429, End.WHOLE, 0)


def test_silence_lasts_until_the_client_hangs_up(tmp_path: Path) -> None:
    """Nothing comes after the second token; the end is the client's."""
    script = Script(ttft=0.01, itl=0.01, failures=(Failure("silence", 1.0, after=2),))
    with serving(script, tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(request(5))
            sock.settimeout(10)
            body = b""
            while body.count(b'"content":" ') < 2:
                body += sock.recv(65_536)
            readable, _, _ = select.select([sock], [], [], 0.1)
        ask(server.port, b"GET /health HTTP/1.1\r\n\r\n")
    assert not readable
    assert [(entry.end, len(entry.stamps)) for entry in server.entries] == [(End.HUNG_UP, 2)]


def test_a_client_that_hangs_up_is_logged_with_what_was_written(tmp_path: Path) -> None:
    """The stream ends at its next write; the server goes on."""
    with serving(QUICK, tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(request(1000))
            sock.recv(10)
        got = ask(server.port, request(30))
    ends = {len(entry.stamps): entry.end for entry in server.entries}
    assert len(got.tokens) == 30
    assert ends.pop(30) is End.WHOLE
    ((written, end),) = ends.items()
    assert written < 1000
    assert end is End.HUNG_UP


def test_a_client_that_does_not_read_loses_nothing_and_is_told_apart(tmp_path: Path) -> None:
    """With a full window the stream waits; its lateness is marked as the client's doing."""
    script = Script(ttft=0.0, itl=0.0)
    with serving(script, tmp_path) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(request(50_000))
        until = time.monotonic() + 20
        while not server.counts.blocked and time.monotonic() < until:
            select.select([], [], [], 0.01)
        got = answered(sock)
    (entry,) = server.entries
    assert got.ended == "complete"
    assert len(got.tokens) == len(entry.stamps) == 50_000
    assert entry.blocked
    assert entry.stamps.tolist() == sorted(entry.stamps.tolist())


@pytest.mark.parametrize(
    "framing",
    [Framing(bytewise=True), Framing(cuts=(3, -1)), Framing(transfer="close"), Framing(transfer="length")],
)
def test_framings_arrive_as_they_were_written(framing: Framing, tmp_path: Path) -> None:
    """The tokens, whatever the writes."""
    with serving(Script(ttft=0.0, itl=0.001, framing=framing), tmp_path) as server:
        got = ask(server.port, request(5))
    assert (got.ended, len(got.tokens)) == ("complete", 5)
    assert len(server.entries[0].stamps) == 5


def test_what_is_no_request_for_tokens_is_answered_plainly(tmp_path: Path) -> None:
    """Health, models, unknown paths and methods, broken bodies; none of them stands in the log."""
    with serving(QUICK, tmp_path) as server:
        http = HTTPConnection("127.0.0.1", server.port, timeout=10)
        statuses = []
        for method, path, body in [
            ("GET", "/health", None),
            ("GET", "/v1/models", None),
            ("GET", "/nothing", None),
            ("GET", "/v1/completions", None),
            ("PUT", "/health", "x"),
            ("GET", "/reference/log", None),
        ]:
            http.request(method, path, body)
            response = http.getresponse()
            statuses.append(response.status)
            response.read()
        http.close()
        broken = ask(server.port, b"nonsense\r\n\r\n")
    assert statuses == [200, 200, 404, 405, 405, 404]
    assert (broken.status, broken.ended) == (400, "complete")
    assert server.entries == []


def test_expect_continue_is_answered(tmp_path: Path) -> None:
    """Clients that wait for a 100 before their body get it."""
    head, body = request(2, more="Expect: 100-continue\r\n").split(b"\r\n\r\n")
    with serving(QUICK, tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(head + b"\r\n\r\n")
        sock.settimeout(10)
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert answered(sock).ended == "complete"


def test_a_stop_in_the_middle_is_logged(tmp_path: Path) -> None:
    """An answer under way has an entry too."""
    with serving(Script(ttft=0.0, itl=60.0), tmp_path) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(request(5))
        body = b""
        while b'"content":" ' not in body:
            body += sock.recv(65_536)
    sock.close()
    assert [(entry.end, len(entry.stamps)) for entry in server.entries] == [(End.STOPPED, 1)]


# --- as processes


@pytest.mark.e2e
def test_two_processes_share_a_port_and_one_log(tmp_path: Path) -> None:
    """Connections go to either; the log over HTTP, the tail and the merged file all have every request."""
    with ReferenceServer(QUICK, processes=2, log=tmp_path / "all.log") as server:
        tail = server.tail()
        port = int(server.url.rsplit(":", 1)[1])
        for k in range(24):
            assert ask(port, request(2, f"r{k}")).ended == "complete"
        text = ask(port, b"GET /reference/log HTTP/1.1\r\n\r\n").body
        binary = ask(port, b"GET /reference/log?format=binary HTTP/1.1\r\n\r\n").body
        tailed = tail.new()
        assert tail.new() == []
        summaries = server.stop()
    expected = {f"r{k}" for k in range(24)}
    (tmp_path / "http.log").write_bytes(binary)
    assert {json.loads(line)["request_id"] for line in text.splitlines()} == expected
    assert {entry.request_id for entry in tailed} == expected
    assert {entry.request_id for entry in read_log(tmp_path / "http.log")} == expected
    merged = read_log(tmp_path / "all.log")
    assert {entry.request_id for entry in merged} == expected
    assert {entry.process for entry in merged} == {0, 1}
    assert sum(summary["tokens"] for summary in summaries) == 48
    assert all(summary["connections"] > 0 for summary in summaries)


@pytest.mark.e2e
def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    """Also where several processes would share it: nobody's connections are stolen."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for processes in (1, 2):
            with pytest.raises(ServerFailed, match="cannot listen"):
                ReferenceServer(QUICK, port=taken.getsockname()[1], processes=processes).start()


@pytest.mark.e2e
def test_a_process_that_dies_is_noticed() -> None:
    """Its death is said, and stopping raises instead of inventing a summary."""
    server = ReferenceServer(QUICK)
    server.start()
    assert server.died() is None
    os.kill(server.pids[0], signal.SIGKILL)
    until = time.monotonic() + 10
    while server.died() is None and time.monotonic() < until:
        select.select([], [], [], 0.01)
    assert "exit code -9" in str(server.died())
    with pytest.raises(ServerFailed):
        server.stop()


@pytest.mark.e2e
def test_a_process_ends_when_nobody_holds_its_stdin(tmp_path: Path) -> None:
    """Whoever started it is gone: no server stays behind."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps(ServerJob(QUICK, folder=str(tmp_path)).as_dict()))
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.reference.process", str(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        assert process.stdin is not None
        process.stdin.close()
        assert json.loads(process.stdout.readline())["event"] == "summary"
    assert process.returncode == 0


# --- the log's file


def test_half_an_entry_is_left_for_later(tmp_path: Path) -> None:
    """A tail takes whole entries only, and a file that is no log is refused."""
    with serving(QUICK, tmp_path) as server:
        ask(server.port, request(3, "a"))
        ask(server.port, request(3, "b"))
    data = (tmp_path / "reference-0.log").read_bytes()
    grown = tmp_path / "grown.log"
    grown.write_bytes(data[:-5])
    tail = LogTail([grown])
    assert [entry.request_id for entry in tail.new()] == ["a"]
    grown.write_bytes(data)
    assert [entry.request_id for entry in tail.new()] == ["b"]
    grown.write_bytes(b"something else")
    with pytest.raises(ValueError, match="no log of the reference server"):
        read_log(grown)
