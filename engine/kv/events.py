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
    tier: str = "device"


class EventLog:
    """Events not yet sent. Neighbouring blocks of one chain, or of one cause, share an event."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._events: list[_Growing] = []

    def stored(self, digest: bytes, parent: bytes | None, tier: str = "device") -> None:
        """``parent`` None: the first block of a prompt."""
        last = self._last("stored", tier)
        if last is not None and last.digests[-1] == parent:
            last.digests.append(digest)
        else:
            self._events.append(_Growing("stored", [digest], parent, tier=tier))

    def removed(self, digest: bytes, cause: str, tier: str = "device") -> None:
        """``cause``: ``capacity``, ``preempted``, ``ttl``, or ``bad`` if a copy in a slower tier failed."""
        last = self._last("removed", tier)
        if last is not None and last.cause == cause:
            last.digests.append(digest)
        else:
            self._events.append(_Growing("removed", [digest], cause=cause, tier=tier))

    def _last(self, kind: str, tier: str) -> _Growing | None:
        """The event before, if it is of this kind and may grow."""
        last = self._events[-1] if self._events else None
        return last if last is not None and (last.kind, last.tier) == (kind, tier) else None

    def cleared(self) -> None:
        """Everything is gone, in all tiers; what was not sent yet is void."""
        self._events = [_Growing("cleared", [], cause="reset")]

    def take(self) -> tuple[KvEvent, ...]:
        """Events since the last call, in order."""
        events = tuple(KvEvent(e.kind, tuple(e.digests), e.parent, e.cause, e.tier) for e in self._events)
        self._events = []
        for event in events:
            self._meter.inc("headrace_engine_kv_events_total", type=event.kind)
        return events
