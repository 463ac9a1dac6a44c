"""Those who wait equally long for what mostly does not come, such as a timeout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from loadgen.agenda import Agenda

T = TypeVar("T", bound=Hashable)


class Line(Generic[T]):
    """``late(who, now)`` for each who has not left ``wait`` ns after joining.

    All of them together have one entry in the agenda, that of the first; thousands who come and go hardly
    touch it.
    """

    def __init__(self, agenda: Agenda, wait: int, late: Callable[[T, int], None]) -> None:
        self._agenda, self._wait, self._late = agenda, wait, late
        self._dues: OrderedDict[T, int] = OrderedDict()
        self._armed = False

    def join(self, who: T, now: int) -> None:
        """Once at a time. ``now``: not before that of who joined last; else it waits for that one too."""
        self._dues[who] = now + self._wait
        self._arm()

    def leave(self, who: T) -> None:
        """Also for one who never joined."""
        self._dues.pop(who, None)

    def _arm(self) -> None:
        if self._dues and not self._armed:
            self._armed = True
            self._agenda.at(next(iter(self._dues.values())), self._serve)

    def _serve(self, now: int) -> None:
        """The first, if it is late; the agenda has a say before the next one."""
        self._armed = False
        who, due = next(iter(self._dues.items()), (None, 0))
        if who is not None and due <= now:
            del self._dues[who]
            self._late(who, now)
        self._arm()
