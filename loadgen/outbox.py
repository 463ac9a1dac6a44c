"""Frames on their way over a socket that does not block: a few go together, with one call."""

from __future__ import annotations

import socket
from collections import deque
from itertools import islice

from loadgen.frames import Frame, framed

TOGETHER = 16
"""Frames that are sent with one call. Each call wakes who reads, on a core that both may share."""


class Outbox:
    """What the socket does not take waits in memory, in order. Nothing is sent before `flush`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._waiting: deque[bytes | memoryview] = deque()
        self.total = 0
        """Bytes of all frames so far."""

    def __len__(self) -> int:
        """Frames that wait."""
        return len(self._waiting)

    def put(self, frame: Frame) -> None:
        data = framed(frame)
        self._waiting.append(data)
        self.total += len(data)

    def clear(self) -> None:
        self._waiting.clear()

    def flush(self) -> None:
        """As much as the socket takes. Raises OSError if nobody is at its other end."""
        waiting = self._waiting
        while waiting:
            try:
                sent = self._link.sendmsg(tuple(islice(waiting, TOGETHER)))
            except (BlockingIOError, InterruptedError):
                return
            while waiting and sent >= len(waiting[0]):
                sent -= len(waiting.popleft())
            if sent:
                waiting[0] = memoryview(waiting[0])[sent:]
