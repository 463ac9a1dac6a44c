r"""The short way for reads of the usual kind: nearly all of a stream takes it.

```
a3 \r\n  data: {"id":"chatcmpl-..  ...}\n\n  \r\n
size     begins as the first event did        one line, one blank line, one chunk
```
What looks so, once or several times and with nothing else, needs no scanner of chunks and no watch for the
stream's end: it is kept as it is. Everything else goes the long way, to the same result.
"""

from __future__ import annotations

from loadgen import native
from loadgen.bodies import CHUNK_SIZES
from loadgen.log import Log


class Lane:
    """Of one stream that is between two chunks and between two events. ``usual``: how its events begin;
    ``hints``: words that the first read which it takes must not hold; ``took``: it has taken one."""

    __slots__ = ("_begin", "_hints", "_keep", "took")

    def __init__(self, usual: bytes, hints: tuple[bytes, ...], log: Log) -> None:
        self._begin, self._hints = b"\r\n" + usual, hints
        self._keep = log.add
        self.took = False

    def take(self, t: int, data: bytes, real: int) -> bool:
        """Keep the read if it is nothing but events of the usual kind; False leaves it to the long way."""
        if not self.took and any(hint in data for hint in self._hints):
            return False
        body, at = b"", 0
        while at < len(data):
            begin = at + (4 if data[at + 2 : at + 3] == b"\r" else 5)  # a size has two digits or three
            line = data.find(b"\n", begin)
            if not (
                data.startswith(self._begin, begin - 2)
                and data.startswith(b"\n\n\r\n", line)
                and CHUNK_SIZES.get(data[at : begin - 2]) == line + 2 - begin
            ):
                return False
            body += data[begin : line + 2]
            at = line + 4
        if body:
            self._keep(t, real, body)
            self.took = True
        return bool(body)


def make_lane(usual: bytes, hints: tuple[bytes, ...], log: Log) -> Lane:
    """Of the kind that ``log`` is of."""
    if native.extension is not None and isinstance(log, native.extension.Log):
        lane: Lane = native.extension.Lane(usual, hints, log)
        return lane
    return Lane(usual, hints, log)
