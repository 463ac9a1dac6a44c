"""State changes of a prefix cache, told to whoever keeps an index of it (ENGINE E42)."""

from __future__ import annotations

from collections import Counter

from engine.messages import KvEvent
from engine.telemetry import Meter


class EventLog:
    """Events not yet sent. Neighbouring blocks of one chain, or of one cause, share an event."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._events: list[KvEvent] = []
        self._digests: list[list[bytes]] = []
        """Those of each event, which may still grow."""

    def stored(self, digest: bytes, parent: bytes | None, tier: str = "device") -> None:
        """``parent`` None: the first block of a prompt."""
        last = self._last("stored", tier)
        if last is not None and self._digests[-1][-1] == parent:
            self._digests[-1].append(digest)
        else:
            self._events.append(KvEvent("stored", (), parent, None, tier))
            self._digests.append([digest])

    def removed(self, digest: bytes, cause: str, tier: str = "device") -> None:
        """``cause``: ``capacity``, ``preempted``, ``ttl``, or ``bad`` if a copy in a slower tier failed."""
        last = self._last("removed", tier)
        if last is not None and last.cause == cause:
            self._digests[-1].append(digest)
        else:
            self._events.append(KvEvent("removed", (), None, cause, tier))
            self._digests.append([digest])

    def _last(self, kind: str, tier: str) -> KvEvent | None:
        """The event before, if it is of this kind and may grow."""
        last = self._events[-1] if self._events else None
        return last if last is not None and last.kind == kind and last.tier == tier else None

    def cleared(self) -> None:
        """Everything is gone, in all tiers; what was not sent yet is void."""
        self._events, self._digests = [KvEvent("cleared", cause="reset")], [[]]

    def take(self) -> tuple[KvEvent, ...]:
        """Events since the last call, in order."""
        if not self._events:
            return ()
        for event, digests in zip(self._events, self._digests, strict=True):
            event.digests = tuple(digests)
        events = tuple(self._events)
        self._events, self._digests = [], []
        for kind, count in Counter([event.kind for event in events]).items():
            self._meter.inc("headrace_engine_kv_events_total", count, type=kind)
        return events
