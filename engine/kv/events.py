"""State changes of a prefix cache, told to whoever keeps an index of it (ENGINE E42)."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import KvEvent
from engine.telemetry import Meter


@dataclass(slots=True)
class _Growing:
    """A KvEvent that later state changes may still extend."""

    kind: str
    digests: list[bytes]
    parent: bytes | None = None
    cause: str | None = None


class EventLog:
    """Events not yet sent. Neighbouring blocks of one chain, or of one cause, share an event."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._events: list[_Growing] = []

    def stored(self, digest: bytes, parent: bytes | None) -> None:
        """``parent`` None: the first block of a prompt."""
        last = self._events[-1] if self._events else None
        if last is not None and last.kind == "stored" and last.digests[-1] == parent:
            last.digests.append(digest)
        else:
            self._events.append(_Growing("stored", [digest], parent))

    def removed(self, digest: bytes, cause: str) -> None:
        """``cause``: ``capacity``, ``preempted`` or ``ttl``."""
        last = self._events[-1] if self._events else None
        if last is not None and last.kind == "removed" and last.cause == cause:
            last.digests.append(digest)
        else:
            self._events.append(_Growing("removed", [digest], cause=cause))

    def cleared(self) -> None:
        """Everything is gone; what was not sent yet is void."""
        self._events = [_Growing("cleared", [], cause="reset")]

    def take(self) -> tuple[KvEvent, ...]:
        """Events since the last call, in order."""
        events = tuple(KvEvent(e.kind, tuple(e.digests), e.parent, e.cause) for e in self._events)
        self._events = []
        for event in events:
            self._meter.inc("headrace_engine_kv_events_total", type=event.kind)
        return events
