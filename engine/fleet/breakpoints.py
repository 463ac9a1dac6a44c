"""Breakpoints at work: requests that pause at one, at the gateway or on a worker (ENGINE E48)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from engine import messages as m
from engine.fleet.dispatch import Dispatcher
from engine.fleet.health import WorkerHealth
from engine.fleet.holds import MAX_HELD_NS, Breakpoint, Holds
from engine.fleet.lives import Lives
from engine.fleet.run import Run
from engine.fleet.timers import Timers


class Breakpoints:
    """Arms ``holds`` where their phase is reached, and lets go again, after ``MAX_HELD_NS`` by itself."""

    def __init__(
        self,
        holds: Holds,
        health: Mapping[int, WorkerHealth],
        dispatcher: Dispatcher,
        lives: Lives,
        timers: Timers,
    ) -> None:
        self._holds = holds
        self._health = health
        self._dispatcher = dispatcher
        self._lives = lives
        self._timers = timers

    def arm(self, phase: str, request: str | None, worker: int | None, now: int) -> Breakpoint:
        """Raises ValueError for an unknown phase."""
        point = self._holds.arm(phase, request, worker)
        if point.at_gateway:
            for entry in list(self._dispatcher.queue.in_order(now)):
                run = self._lives.runs[entry.id]
                if not run.held and point.matches(run.ask.client_id):
                    self._hold_queued(point, run, now)
                    break
        else:
            for index in self._health if worker is None else [worker]:
                self._lives.send(index, point.message())
        return point

    def release(self, hold_id: int, now: int) -> None:
        """Let go what it holds and disarm it. Idempotent."""
        point = self._holds.remove(hold_id)
        if point is None:
            return
        run = self._lives.runs.get(point.held.id) if point.held else None
        if run is not None:
            run.held, run.signed = False, now
        if not point.at_gateway:
            for worker in self._health if point.worker is None else [point.worker]:
                self._lives.send(worker, m.Release(hold_id))

    def queued(self, run: Run, now: int) -> None:
        """It has just joined the queue, where it may be held at once."""
        point = self._holds.armed_for_queue(run.ask.client_id)
        if point is not None:
            self._hold_queued(point, run, now)

    def introduce(self, worker: int) -> None:
        """A new incarnation hears of what is armed."""
        for point in self._holds.armed():
            if not point.at_gateway and point.worker in (None, worker):
                self._lives.send(worker, point.message())

    def held(self, worker: int, held: m.Held, now: int) -> None:
        """The first worker that reaches it wins; the others are disarmed."""
        point, run = self._holds.get(held.hold_id), self._lives.dispatched(worker, held.id)
        if point is None or point.held is not None or run is None:
            self._lives.send(worker, m.Release(held.hold_id))
            return
        point.held, point.held_by, run.held = held, worker, True
        self._dispatcher.ledger.progress(run.key, len(run.request.tokens))  # admitted: no backlog any more
        if point.worker is None:
            for other in self._health:
                if other != worker:
                    self._lives.send(other, m.Release(held.hold_id))
        self._timers.at(now + MAX_HELD_NS, partial(self.release, point.id))

    def _hold_queued(self, point: Breakpoint, run: Run, now: int) -> None:
        point.held = m.Held(point.id, run.id, run.ask.client_id, point.phase)
        run.held = True
        self._timers.at(now + MAX_HELD_NS, partial(self.release, point.id))
