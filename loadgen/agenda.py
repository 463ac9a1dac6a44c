"""What is to be done when: the plan's first turns, and whatever comes up on the way."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from loadgen.alarm import Alarm
from loadgen.clock import Clock
from loadgen.plan import Shot

SPELL_NS = 50_000_000
"""The longest that one thing is done after the other while reads and commands wait: a client that cannot
keep up must still hear."""

Entry = list[Any]
"""When, which in the order of entry, what; compared from the left, and never as far as the last."""


def cross_out(entry: Entry) -> None:
    """It is not to be done any more, nor is anybody to be woken for it."""
    entry[2] = None


class Agenda:
    """Does things at absolute times, in order of time and then of entry, and sets the alarm for the next.

    The first turns of ``shots`` are fired by themselves, ``fire(shot, due, now)``; ``t0`` in ns on the clock.
    """

    def __init__(
        self, shots: Iterable[Shot], t0: int, clock: Clock, fire: Callable[[Shot, int, int], None]
    ) -> None:
        self._first = sorted((s for s in shots if s.due_ns is not None), key=lambda s: (s.due_ns, s.id))
        self._next = 0
        self._t0, self._clock, self._fire = t0, clock, fire
        self._heap: list[Entry] = []
        self._entries = 0
        self._alarm: Alarm | None = None
        self._armed: int | None = None
        self._running = False

    def begin(self, alarm: Alarm) -> None:
        """From now on ``alarm`` is set; whoever hears it calls `run`."""
        self._alarm = alarm
        self._arm()

    def at(self, due: int, do: Callable[[int], None]) -> Entry:
        """``do(now)`` once ``now`` has reached ``due``, unless it is crossed out before."""
        entry = [due, self._entries, do]
        heapq.heappush(self._heap, entry)
        self._entries += 1
        self._arm()
        return entry

    def run(self) -> None:
        """Do what is due by now."""
        self._armed, self._running = None, True
        try:
            now = self._clock()
            until = now + SPELL_NS
            while now < until and self._do_next(now):
                now = self._clock()
        finally:
            self._running = False
        self._arm()

    def planned(self, skip: int = 0) -> int | None:
        """When the first turn is due that comes after the next ``skip``; None if the plan has no more."""
        at = self._next + skip
        return None if at >= len(self._first) else self._t0 + (self._first[at].due_ns or 0)

    def clear(self) -> None:
        """Nothing is to be done any more."""
        self._heap.clear()
        self._next = len(self._first)

    def close(self) -> None:
        """The same for good. Idempotent."""
        self.clear()
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _do_next(self, now: int) -> bool:
        """False if nothing is due."""
        planned, heap = self.planned(), self._heap
        if heap and (planned is None or heap[0][0] < planned):
            if heap[0][0] > now:
                return False
            do = heapq.heappop(heap)[2]
            if do is not None:
                do(now)
            return True
        if planned is None or planned > now:
            return False
        shot = self._first[self._next]
        self._next += 1
        self._fire(shot, planned, now)
        return True

    def _arm(self) -> None:
        if self._running or self._alarm is None:
            return
        while self._heap and self._heap[0][2] is None:
            heapq.heappop(self._heap)
        planned = self.planned()
        due = self._heap[0][0] if self._heap else planned
        if due is not None and planned is not None:
            due = min(due, planned)
        if due is not None and due != self._armed:
            self._armed = due
            self._alarm.set(due)
