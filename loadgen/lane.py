r"""The short way for a read of the usual kind: nearly all of a stream takes it.

```
a3 \r\n  data: {"id":"chatcmpl-..  ...}\n\n  \r\n
size     begins as the first event did        one line, one blank line, one chunk, nothing else
```
What looks so needs no scanner of chunks and no watch for the stream's end: it is kept as it is. Everything
else goes the long way, to the same result.
"""

from __future__ import annotations

from loadgen.http1 import CHUNK_SIZES
from loadgen.raw import Raw


class Lane:
    """Of one stream that is between two chunks and between two events. ``usual``: how its events begin."""

    __slots__ = ("_begin", "_keep")

    def __init__(self, usual: bytes, raw: Raw) -> None:
        self._begin = b"\r\n" + usual
        self._keep = raw.reads.extend

    def take(self, t: int, data: bytes, real: int) -> bool:
        """Keep the read if it is of the usual kind; False leaves it to the long way."""
        skip = 4 if data[2:3] == b"\r" else 5  # the size of a chunk has two digits or three
        end = len(data) - 4
        if (
            data.startswith(self._begin, skip - 2)
            and data.find(b"\n", skip) == end
            and data.endswith(b"\n\n\r\n")
            and CHUNK_SIZES.get(data[: skip - 2]) == end + 2 - skip
        ):
            self._keep((t, real, data[skip:-2]))
            return True
        return False
