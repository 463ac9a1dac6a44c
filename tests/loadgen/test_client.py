"""The live client over loopback sockets, driven as in a run."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from loadgen.client import Address, Client
from loadgen.clock import monotonic
from loadgen.desk import InlineDesk
from loadgen.driver import Driver
from loadgen.observe import fetch
from loadgen.plan import Part, Phases, Plan, PlannedCancel, Shot
from loadgen.render import Renderer
from loadgen.rules import Rules, Timeouts
from loadgen.targets import OpenAIChat
from loadgen.text import Prompter, TextMaker
from loadgen.transport import HttpRequest
from results.record import Outcome, Record

pytestmark = pytest.mark.usefixtures("reads_kind")

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Serve = Callable[[Writer], Awaitable[None]]
SHORT = Timeouts(connect=1.0, first_token=0.15, between_tokens=0.15, total=2.0)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def sse(**payload: Any) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def token(text: str = "é ", **more: Any) -> bytes:
    return sse(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FINISH = sse(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
FIVE = b"".join(chunk(token()) for _ in range(5))


def reset(writer: Writer) -> None:
    """Close with RST instead of FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serving(serve: Serve, body: Callable[[str], Awaitable[Any]]) -> Any:
    """Run ``body(url)`` against a server that reads a request and lets ``serve`` answer it."""
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                await serve(writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        return await body(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def shot(id: int, due_ms: int = 0, **changes: Any) -> Shot:
    prompt = (Part("user", 8, f"u{id}"),)
    return Shot(id, "chat", "window", id, 0, prompt, 8, 5, due_ns=due_ms * 1_000_000, **changes)


async def fire(url: str, *shots: Shot, timeouts: Timeouts = SHORT, warm: int = 0) -> list[Record]:
    client = Client(Address.of(url), monotonic)
    await client.warm(warm)
    records: list[Record] = []
    plan, dialect = Plan(shots, Phases(window=1.0, drain=3.0), 1), OpenAIChat("m")
    desk = InlineDesk(
        plan.shots,
        plan.phases,
        Renderer(Prompter(TextMaker()), dialect),
        lambda exchange, _: records.append(exchange.record),
    )
    t0 = monotonic() + 20_000_000
    driver = Driver(plan.shots, plan.phases, desk, dialect, client, monotonic, t0, Rules(timeouts))
    await driver.run(client.alarm)
    await client.close()
    return sorted(records, key=lambda r: r.id)


async def split(writer: Writer) -> None:
    """Every byte of the body in a chunk of its own, some reads apart."""
    body = token() * 5 + FINISH + DONE
    writer.write(HEAD)
    for at, byte in enumerate(body):
        writer.write(chunk(bytes([byte])))
        if at % 40 == 0:
            await writer.drain()
            await asyncio.sleep(0)
    writer.write(END)


async def comments(writer: Writer) -> None:
    writer.write(HEAD)
    while True:
        writer.write(chunk(b": keep-alive\n\n"))
        await asyncio.sleep(0.01)


def answers(*parts: bytes, then: str = "keep") -> Serve:
    """Writes the parts; then keeps the connection, closes or resets it."""

    async def serve(writer: Writer) -> None:
        writer.write(b"".join(parts))
        await writer.drain()
        if then == "close":
            writer.close()
        elif then == "reset":
            await asyncio.sleep(0.02)  # the bytes must arrive before the reset takes them away
            reset(writer)

    return serve


USAGE = b"".join(
    chunk(token(usage={"prompt_tokens": 9, "completion_tokens": k + 1, "total_tokens": 10 + k}))
    for k in range(5)
)
ERROR = chunk(sse(error={"message": "worker lost", "code": "worker_lost"}))

C9 = {
    "tcp-reset": (answers(HEAD, FIVE, then="reset"), Outcome.RESET, []),
    "no-finish": (answers(HEAD, FIVE, END), Outcome.TRUNCATED, []),
    "no-done": (answers(HEAD, FIVE, chunk(FINISH), then="close"), Outcome.COMPLETED, ["missing_done"]),
    "no-finish-reason": (
        answers(HEAD, FIVE, chunk(DONE), END),
        Outcome.COMPLETED,
        ["missing_finish_reason"],
    ),
    "error-payload": (answers(HEAD, FIVE, ERROR, then="close"), Outcome.IN_BAND_ERROR, []),
    "usage-on-every-chunk": (answers(HEAD, USAGE, chunk(FINISH), chunk(DONE), END), Outcome.COMPLETED, []),
    "empty-body": (answers(HEAD, END), Outcome.TRUNCATED, []),
    "silence": (answers(HEAD, FIVE), Outcome.CLIENT_TIMEOUT, []),
    "split-anywhere": (split, Outcome.COMPLETED, []),
    "comments-only": (comments, Outcome.CLIENT_TIMEOUT, []),
}


@pytest.mark.parametrize("name", C9)
def test_a_stream_without_a_proper_end_is_never_taken_for_success(name: str) -> None:
    """Fleet case C9: each way a server can end a stream has its one outcome."""
    serve, outcome, warnings = C9[name]
    (record,) = run(serving(serve, lambda url: fire(url, shot(0))))
    assert (record.outcome, record.warnings) == (outcome, warnings), record
    assert record.n_out == (0 if name in ("empty-body", "comments-only") else 5)
    if name == "error-payload":
        assert record.error == "worker_lost: worker lost"


GOOD = answers(HEAD, FIVE, chunk(FINISH), chunk(DONE), END)


def test_a_connection_is_used_again_and_stamps_are_in_order() -> None:
    """Keep-alive works; no send is early; the times of an exchange follow each other."""
    first, second = run(serving(GOOD, lambda url: fire(url, shot(0), shot(1, 60))))
    assert (first.conn_new, second.conn_new) == (True, False)
    for r in (first, second):
        assert r.outcome is Outcome.COMPLETED
        order = [r.due, r.dequeued, r.start, r.conn, r.sent, r.headers, r.first_token, r.terminal, r.closed]
        assert None not in order
        assert order == sorted(t or 0 for t in order)


def test_simultaneous_requests_get_connections_of_their_own() -> None:
    """The pool has no hidden limit, and warm connections are there before the load."""
    records = run(serving(GOOD, lambda url: fire(url, *(shot(k) for k in range(20)), warm=20)))
    assert [r.outcome for r in records] == [Outcome.COMPLETED] * 20
    assert not any(r.conn_new for r in records)


def test_a_planned_cancel_closes_the_connection() -> None:
    """The server sees the client leave."""
    gone = asyncio.Event()

    async def serve(writer: Writer) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(chunk(token()))
            await asyncio.sleep(0.005)
        gone.set()

    async def main(url: str) -> Record:
        (record,) = await fire(url, shot(0, cancel=PlannedCancel("decode", 3)))
        await asyncio.wait_for(gone.wait(), 1)
        return record

    record = run(serving(serve, main))
    assert record.outcome is Outcome.CANCELLED_BY_PLAN
    assert record.n_out >= 3


def test_nobody_listening_is_a_connect_error_with_its_name() -> None:
    """The record names the errno, so that the client's own limits can be told apart."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (record,) = run(fire(f"http://127.0.0.1:{free.getsockname()[1]}", shot(0)))
    assert record.outcome is Outcome.CONNECT_ERROR
    assert record.error.startswith("ECONNREFUSED")


def test_what_is_no_http_is_a_failed_request() -> None:
    """A server that speaks something else does not hang the client."""
    (record,) = run(serving(answers(b"SSH-2.0-x\r\n\r\n"), lambda url: fire(url, shot(0))))
    assert record.outcome is Outcome.RESET
    assert "HTTP/1.1" in record.error


def test_a_whole_answer_has_an_end_but_no_token_times() -> None:
    """Non-streamed: e2e only; usage is read from the body."""
    body = json.dumps(
        {
            "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        }
    ).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    (record,) = run(serving(answers(head, body), lambda url: fire(url, shot(0))))
    assert (record.outcome, record.streamed, record.warnings) == (Outcome.COMPLETED, False, [])
    assert (record.first_token, record.n_out, record.finish) == (None, 2, "stop")
    assert record.last_token == record.terminal is not None


def test_fetch_gives_a_small_answer_or_says_why_not() -> None:
    """Control requests use the same client."""
    ok = answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def main(url: str) -> tuple[int, bytes]:
        client = Client(Address.of(url), monotonic)
        try:
            return await fetch(client, HttpRequest("GET", "/x", (), b""))
        finally:
            await client.close()

    assert run(serving(ok, main)) == (200, b"{}")
    with pytest.raises(OSError, match="eof"):
        run(serving(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", then="close"), main))


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://h:8000", Address("h", 8000), "h:8000"),
        ("http://h:8000/v1/", Address("h", 8000), "h:8000"),
        ("https://api.example/openai/v1", Address("api.example", 443, "/openai", True), "api.example"),
        ("http://[::1]:80", Address("::1", 80), "[::1]"),
    ],
)
def test_a_url_becomes_an_address(url: str, address: Address, authority: str) -> None:
    """The dialects' paths begin with /v1, so a closing /v1 of the URL is dropped."""
    assert Address.of(url) == address
    assert address.authority == authority


def test_a_url_that_is_none_is_refused() -> None:
    """With the form that it should have."""
    with pytest.raises(ValueError, match="must look like http://host:port"):
        Address.of("localhost:8000")
