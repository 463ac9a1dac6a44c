"""Answers under way: one at a time on each connection, and all of them on one line of time.

The loop in `Timeline.run_due` is the hot path: at 100,000 writes a second each may cost 9 µs in all, of
which the kernel takes four or five. A stamp is the only thing that comes between deciding to write and
writing.
"""

from __future__ import annotations

import heapq
import socket
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from loadgen import native
from loadgen.clock import Clock
from loadgen.reference.answers import Answer, End

_MOST_LATE = (1 << 32) - 1

Finished = Callable[["Stream", End], None]


class Stream:
    """One answer on its way out. ``stamps`` has one for each piece that was written."""

    __slots__ = (
        "answer",
        "base",
        "blocked",
        "connection",
        "index",
        "last",
        "number",
        "offsets",
        "pieces",
        "rest",
        "send",
        "stamps",
    )

    def __init__(
        self, number: int, base: int, answer: Answer, sock: socket.socket, connection: object
    ) -> None:
        self.number = number
        self.base = base
        """When the last byte of the request was read, ns."""
        self.answer = answer
        self.pieces = answer.pieces
        self.offsets = answer.offsets
        self.send: Callable[[bytes], int] = sock.send
        self.connection = connection
        self.last = len(answer.pieces) - 1
        self.index = 0
        self.stamps: list[int] = []
        self.rest = b""
        """What the kernel did not take of the piece written last."""
        self.blocked = False

    def drop(self) -> None:
        """The client is gone: the next write finds that out."""
        self.send = _gone

    @property
    def first(self) -> int:
        """The first of the stamps; -1 without one."""
        return self.stamps[0] if self.stamps else -1

    def written(self) -> tuple[bytes, bytes]:
        """The stamp of each token event whose last byte was written, and how late it was against the script,
        in ns, as the bytes of int64 and uint32; a lateness of 4.29 s and more is 4.29 s."""
        count = len(self.stamps) - bool(self.rest)  # a piece that did not go out in full does not count
        stamps = np.array(self.stamps[:count], np.int64)
        late = np.minimum(stamps - np.array(self.offsets[:count], np.int64) - self.base, _MOST_LATE)
        tokens = self.answer.tokens[:count]
        return np.repeat(stamps, tokens).tobytes(), np.repeat(late.astype(np.uint32), tokens).tobytes()


class Timeline:
    """The pieces of all streams in order of their due times. ``blocked`` hears of a stream whose socket is
    full; it is off the line until `resume`.

    A piece that follows the one before it by ``gap`` ns, the usual distance, goes to the end of a queue,
    which stays in order by itself; all others wait in a heap.
    """

    def __init__(self, clock: Clock, gap: int, finished: Finished, blocked: Callable[[Stream], None]) -> None:
        self._clock = clock
        self._gap = gap
        self._finished = finished
        self._blocked = blocked
        self._queue: deque[tuple[int, Stream]] = deque()
        self._heap: list[tuple[int, int, Stream]] = []
        self.writes = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._heap)

    @property
    def next_due(self) -> int | None:
        """ns on the clock."""
        queue, heap = self._queue, self._heap
        if not queue:
            return heap[0][0] if heap else None
        return min(queue[0][0], heap[0][0]) if heap else queue[0][0]

    def add(self, stream: Stream) -> None:
        heapq.heappush(self._heap, (stream.base + stream.offsets[stream.index], stream.number, stream))

    def run_due(self, most: int) -> int:
        """Write what is due by now, at most ``most`` pieces; returns how many it were."""
        queue, heap, clock, gap = self._queue, self._heap, self._clock, self._gap
        done = 0
        while done < most:
            queued = bool(queue) and (not heap or queue[0][0] <= heap[0][0])
            if queued:
                due, stream = queue[0]
            elif heap:
                due, _, stream = heap[0]
            else:
                break
            index = stream.index
            data = stream.pieces[index]
            t = clock()
            if t < due:
                break
            try:
                sent = stream.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = -1
            queue.popleft() if queued else heapq.heappop(heap)
            if sent == len(data) and index < stream.last:
                stream.stamps.append(t)
                stream.index = index = index + 1
                after = stream.base + stream.offsets[index]
                if after - due == gap and (not queue or after >= queue[-1][0]):
                    queue.append((after, stream))
                else:
                    heapq.heappush(heap, (after, stream.number, stream))
            else:
                self._leave(stream, t, data, sent)
            done += 1
        self.writes += done
        return done

    def _leave(self, stream: Stream, t: int, data: bytes, sent: int) -> None:
        """The piece was the last one, or the kernel did not take all of it; -1 = the client is gone."""
        if sent < 0:
            self._finished(stream, End.HUNG_UP)
            return
        stream.stamps.append(t)
        if sent == len(data):
            self._finished(stream, stream.answer.end)
        else:
            stream.rest, stream.blocked = data[sent:], True
            self._blocked(stream)

    def resume(self, stream: Stream) -> bool:
        """The socket of a blocked stream takes bytes again; False while it is still full."""
        stream.stamps[-1] = self._clock()  # the write that completes the piece is the one that counts
        try:
            sent = stream.send(stream.rest)
        except BlockingIOError:
            return False
        except OSError:
            self._finished(stream, End.HUNG_UP)
            return True
        stream.rest = stream.rest[sent:]
        if stream.rest:
            return False
        if stream.index < stream.last:
            stream.index += 1
            self.add(stream)
        else:
            self._finished(stream, stream.answer.end)
        return True


def _gone(data: bytes) -> NoReturn:
    raise BrokenPipeError("the client hung up")


def kinds() -> tuple[type[Stream], type[Timeline]]:
    """The quicker two that there are; they go together."""
    compiled = native.find("loadgen.reference._streams")
    return (Stream, Timeline) if compiled is None else (compiled.Stream, compiled.Timeline)
