r"""The short way for reads of the usual kind: nearly all of a stream takes it.

```
a3 \r\n  data: {"id":"chatcmpl-..  ...}\n\n  \r\n
size     begins as the first event did        one line, one blank line, one chunk
```
What looks so, once or several times and with nothing else, needs no scanner of chunks and no watch for the
stream's end: it is kept as it is. So is a head that is the same, byte for byte, as the one before, and a read
of whole chunks that closes the body with the last event that most streams end with. Everything else goes the
long way, to the same result.
"""

from __future__ import annotations

from loadgen import native
from loadgen.bodies import CHUNK_SIZES, LAST_CHUNK
from loadgen.log import Log

LAST_EVENT = b"\n\ndata: [DONE]\n\n"
"""How most streams end; with the blank line before it, it can be nothing else."""


class Lane:
    """Of one stream that is between two chunks and between two events, or that has not begun and is expected
    to do so with ``head``. ``usual``: how its events begin; ``hints``: words that the first events which it
    takes must not hold, unless they end the stream.

    ``took``: it has taken events; ``over``: the last read too; ``headers_at``, ``headers_real``: the stamps
    of the head, if it took that.
    """

    __slots__ = ("_begin", "_head", "_hints", "_keep", "headers_at", "headers_real", "over", "took")

    def __init__(self, usual: bytes, hints: tuple[bytes, ...], log: Log, head: bytes = b"") -> None:
        self._begin, self._hints, self._head = b"\r\n" + usual, hints, head
        self._keep = log.add
        self.took = self.over = False
        self.headers_at = self.headers_real = 0

    def take(self, t: int, data: bytes, real: int) -> bool:
        """Keep the read if there is nothing unusual in it; False leaves it to the long way."""
        at = len(self._head)
        if not data.startswith(self._head):
            return False
        if at == len(data):
            body = b""
            if not at:
                return False
        elif (events := self._events(data, at)) is not None:
            body = events
        elif (end := _ending(data, at)) is not None:
            body, self.over = end, True
        else:
            return False
        if self._head:
            self.headers_at, self.headers_real, self._head = t, real, b""
        if body:
            self._keep(t, real, body)
            self.took = True
        return True

    def _events(self, data: bytes, at: int) -> bytes | None:
        """What stands there from ``at`` on, if it is events of the usual kind."""
        if not self.took and any(data.find(hint, at) >= 0 for hint in self._hints):
            return None
        body = b""
        while at < len(data):
            begin = at + (4 if data[at + 2 : at + 3] == b"\r" else 5)  # a size has two digits or three
            line = data.find(b"\n", begin)
            if not (
                data.startswith(self._begin, begin - 2)
                and data.startswith(b"\n\n\r\n", line)
                and CHUNK_SIZES.get(data[at : begin - 2]) == line + 2 - begin
            ):
                return None
            body += data[begin : line + 2]
            at = line + 4
        return body


def _ending(data: bytes, at: int) -> bytes | None:
    """What stands there from ``at`` on, if it is whole chunks, the last one of the body among them, and ends
    with the last event."""
    body = b""
    while not data.startswith(LAST_CHUNK, at):
        end = data.find(b"\r\n", at, at + 5)
        size = CHUNK_SIZES.get(data[at:end]) if end > 0 else None
        if size is None or data[end + 2 + size : end + 4 + size] != b"\r\n":
            return None
        body += data[end + 2 : end + 2 + size]
        at = end + 4 + size
    whole = at + len(LAST_CHUNK) == len(data)
    return body if whole and (body.endswith(LAST_EVENT) or body == LAST_EVENT[2:]) else None


def make_lane(usual: bytes, hints: tuple[bytes, ...], log: Log, head: bytes = b"") -> Lane:
    """Of the kind that ``log`` is of."""
    if native.extension is not None and isinstance(log, native.extension.Log):
        lane: Lane = native.extension.Lane(usual, hints, log, head)
        return lane
    return Lane(usual, hints, log, head)
