"""One incarnation of a worker process as the gateway's side holds it: its process and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import cast

from engine.messages import FromWorker, Hello, ToWorker
from engine.wire import Frames, WireError, encode

CUT_OFF_GRACE_S = 1.0
"""A process whose connection is lost is killed after so long; by itself it ends at once."""

OnMessage = Callable[[int, FromWorker], None]
OnLost = Callable[[int, str], None]


class Link(asyncio.Protocol):
    """One connection of a worker: a line that introduces it, then messages.

    ``introduced(line, link)`` says whose it is, None closes it.
    """

    def __init__(self, introduced: Callable[[bytes, Link], Life | None]) -> None:
        self._introduced = introduced
        self._frames = Frames()
        self._introduction = bytearray()
        self._life: Life | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if self._life is None:
            self._introduction += data
            line, newline, data = bytes(self._introduction).partition(b"\n")
            if not newline:
                return
            self._life = self._introduced(line, self)
            if self._life is None:
                self.transport.abort()
                return
        try:
            for message in self._frames.feed(data):
                self._life.heard(message)
        except WireError as error:
            self._life.over(str(error))
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._life is not None:
            self._life.over("connection closed" if error is None else f"connection lost: {error}")


class Life:
    """One incarnation of one worker, from the start of its process to its loss."""

    def __init__(
        self, worker: int, process: asyncio.subprocess.Process, on: tuple[OnMessage, OnLost]
    ) -> None:
        self.worker = worker
        self.process = process
        self.links: dict[str, Link] = {}
        self.hello: Hello | None = None
        self.ended: str | None = None
        self._on_message, self._on_lost = on

    def heard(self, message: FromWorker) -> None:
        if self.ended is not None:
            return
        if isinstance(message, Hello):
            self.hello = message
        self._on_message(self.worker, message)

    def send(self, message: ToWorker) -> None:
        link = self.links.get("main")
        if self.ended is None and link is not None and link.transport is not None:
            link.transport.write(encode(message))

    def over(self, reason: str) -> None:
        """Lost: tell once, close what is open. A process that lives on without us is killed."""
        if self.ended is not None:
            return
        self.ended = reason
        asyncio.get_running_loop().call_later(CUT_OFF_GRACE_S, self.signal, signal.SIGKILL)
        for link in self.links.values():
            if link.transport is not None:
                link.transport.abort()
        self._on_lost(self.worker, reason)

    def signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                # Not send_signal: it takes the exit code of one that has just ended away from the loop.
                os.kill(self.process.pid, number)

    def close(self) -> None:
        """Hang up without a word to anybody: a worker without a gateway ends."""
        self.ended = self.ended or "stopped"
        self.signal(signal.SIGCONT)  # a frozen one could not notice
        for link in self.links.values():
            if link.transport is not None:
                link.transport.close()
