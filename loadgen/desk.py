"""What takes thought: bodies before they are sent, records of what came back. Off the send path.

In virtual time the desk works at once, in the same process; in a live run it is the clerk, a process of its
own (loadgen.clerk), to which the load process speaks through `loadgen.clerk_desk`. Both know what
`loadgen.books` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from loadgen.books import Books
from loadgen.plan import Phases, Shot
from loadgen.raw import Closed, Unsent
from loadgen.render import Rendered, Renderer
from loadgen.timeline import Exchange
from loadgen.transport import Request
from loadgen.turns import Told
from results.record import Record

HURRY_NS = 3_000_000_000
"""A body that is not made so long before it is due is late for us; 2 s are promised."""
Body = tuple[Request, bool]
"""A request, and whether its answer is streamed."""
Use = Callable[[Request, bool], None]
"""Gets a `Body`."""
Tell = Callable[[int, Told], None]
"""Gets the id of a shot that other shots follow, and how it ended."""


class Desk(Protocol):
    def begin(self, t0: int, tell: Tell) -> None:
        """The load begins at ``t0``; ``tell`` is called for each ended shot that others follow."""

    def body(self, shot: int, attempt: int) -> Body | None:
        """Once, if it is ready; if not, see `want`."""

    def want(self, shot: int, attempt: int, use: Use) -> None:
        """``use`` it as soon as it is ready."""

    def closed(self, closed: Closed, awaited: bool) -> None:
        """An attempt is over; its raw exchange is the desk's from now on. ``awaited``: others follow it."""

    def unsent(self, unsent: Unsent) -> None: ...


class InlineDesk:
    """A desk that works at once. ``on_close`` gets each shot's exchange with its record and what was sent,
    ``on_attempt`` the records of attempts that were followed by another one."""

    def __init__(
        self,
        shots: Sequence[Shot],
        phases: Phases,
        renderer: Renderer,
        on_close: Callable[[Exchange, Rendered | None], None],
        on_attempt: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self._books = Books(shots, phases, renderer, self._filed, on_attempt)
        self.tallies = self._books.tallies
        self._on_close = on_close
        self._tell: Tell | None = None
        self._rendered: dict[int, Rendered] = {}

    def begin(self, t0: int, tell: Tell) -> None:
        self._books.begin(t0)
        self._tell = tell

    def body(self, shot: int, attempt: int) -> Body:
        self._rendered[shot] = rendered = self._books.scribe.render(shot, attempt)
        return rendered.request, rendered.streamed

    def want(self, shot: int, attempt: int, use: Use) -> None:
        raise AssertionError("a body that is made at once is always ready")

    def closed(self, closed: Closed, awaited: bool) -> None:
        exchange = self._books.read(closed)
        told = self._books.ended(closed, exchange)[0] if awaited and closed.last else None
        self._books.file(closed, exchange)
        if told is not None and self._tell is not None:
            self._tell(closed.shot, told)

    def unsent(self, unsent: Unsent) -> None:
        self._books.passed(unsent)
        self._books.unsent(unsent)

    def _filed(self, exchange: Exchange) -> None:
        self._on_close(exchange, self._rendered.pop(exchange.record.id, None))
