"""The seam under the client: one HTTP exchange at a time, as stamped callbacks.

Live it is a pool of raw sockets; in virtual time it is the engine's own HTTP layer in this process.
Both hand over the very bytes of the response body, so everything above parses the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


Request = HttpRequest | bytes
"""Or as it goes over the wire, where whoever made it knows the target (loadgen.http1.encode)."""

Ending = Literal["complete", "eof", "reset", "connect_error", "timeout", "aborted"]
"""``complete``: the HTTP body ended as announced; ``eof``: closed before that."""


class Sink(Protocol):
    """Receives one exchange. Stamps are ns on the injected clock. ``closed`` comes exactly once, last.

    ``real`` is the kernel's receive stamp of the read's last byte, ns on CLOCK_REALTIME; 0 = there is none.
    It is only kept here; `loadgen.stamps` turns it into a time on the injected clock afterwards.
    """

    def connected(self, t: int, new: bool) -> None: ...
    def sent(self, t: int) -> None:
        """The last body byte was written."""

    def headers(self, t: int, status: int, headers: Mapping[str, str], real: int = 0) -> None:
        """Header names in lower case."""

    def data(self, t: int, chunk: bytes, real: int = 0) -> None:
        """Body bytes that one read completed (transfer coding removed)."""

    def closed(self, t: int, how: Ending, detail: str) -> None: ...


class Transport(Protocol):
    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        """Start an exchange; returns what aborts it (closing the connection; idempotent)."""

    async def close(self) -> None: ...
