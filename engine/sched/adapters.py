"""Which LoRA adapters a worker knows, and which of them its runner holds (ENGINE E39).

::

    know ──> known ──enter, or a place is free──> resident ──in place of it──> known
               └────────── forget ───────────────────┘ (once no request has it)

A load is part of a step, carried out before its rows: who needs one is in that very step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from engine.messages import AdapterState
from engine.runner.base import AdapterChange, StepPlan, StepResult
from engine.sched.sequence import Sequence


class Adapters:
    """At most ``places`` adapters are resident. A running request keeps its own; of the others the least
    recently used one goes first."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._folders: dict[str, str] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()
        """Least recently used first, those about to be loaded included."""
        self._forgetting: set[str] = set()
        self._changes: list[AdapterChange] = []
        self._reports: list[AdapterState] = []

    def know(self, digest: str, folder: str) -> None:
        """Requests may name it from now on. It is loaded at once if a place is free."""
        self._folders[digest] = folder
        self._forgetting.discard(digest)
        if digest not in self._resident and len(self._resident) < self._places:
            self._load(digest)
        else:
            self._reports.append(AdapterState(digest, digest in self._resident))

    def forget(self, digest: str) -> None:
        """Drop it as soon as nobody here has it."""
        if digest in self._folders:
            self._forgetting.add(digest)
        else:
            self._reports.append(AdapterState(digest, False))

    def problem(self, digest: str | None) -> str | None:
        """Why a request with this adapter cannot be served here."""
        known = digest is None or digest in self._folders
        return None if known else f"adapter {digest} is not known to this worker"

    def enter(self, digest: str | None, running: Iterable[Sequence]) -> bool:
        """A request with this adapter is about to run: see that it is resident. False if it has to wait,
        because the running ones have every place."""
        if digest is None or digest in self._resident:
            return True
        if len(self._resident) >= self._places:
            victim = self._idle(running)
            if victim is None:
                return False
            self._drop(victim)
        self._load(digest)
        return True

    def waits(self, digest: str | None, running: Iterable[Sequence]) -> bool:
        """A request with it could not run now for want of a place."""
        lacks = digest is not None and digest not in self._resident and len(self._resident) >= self._places
        return lacks and self._idle(running) is None

    def grouped(self, chunks: dict[Sequence, int]) -> dict[Sequence, int]:
        """The rows of one adapter next to each other."""
        if not self._folders or len({sequence.request.adapter for sequence in chunks}) < 2:
            return chunks
        return dict(sorted(chunks.items(), key=lambda chunk: chunk[0].request.adapter or ""))

    def take_changes(self, here: Iterable[str | None]) -> tuple[AdapterChange, ...]:
        """What the next step has to do; ``here`` are the adapters of all requests of this worker."""
        if self._forgetting:
            for digest in sorted(self._forgetting - set(here)):
                self._forgetting.remove(digest)
                del self._folders[digest]
                if digest in self._resident:
                    self._drop(digest)
                else:
                    self._reports.append(AdapterState(digest, False))
        changes, self._changes = tuple(self._changes), []
        return changes

    def applied(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """A step that took so long is over: what its changes have led to, and who was used by its rows."""
        loads = sum(change.folder is not None for change in plan.adapters)
        each = seconds / loads if loads and not plan.rows and not plan.transfers else None
        for change in plan.adapters:
            why = result.unloaded.get(change.digest)
            if why is not None:
                self._resident.pop(change.digest, None)
            loaded = change.digest in self._resident
            self._reports.append(AdapterState(change.digest, loaded, why, each if loaded else None))
        for digest in dict.fromkeys(row.adapter for row in plan.rows) if self._resident else ():
            if digest is not None and digest in self._resident:
                self._resident.move_to_end(digest)

    def step_failed(self, plan: StepPlan) -> None:
        """Nobody knows how far its changes got: the next step makes them again."""
        self._changes[:0] = plan.adapters

    def take_reports(self) -> list[AdapterState]:
        reports, self._reports = self._reports, []
        return reports

    def _idle(self, running: Iterable[Sequence]) -> str | None:
        busy = {sequence.request.adapter for sequence in running}
        return next((digest for digest in self._resident if digest not in busy), None)

    def _load(self, digest: str) -> None:
        self._resident[digest] = None
        self._changes.append(AdapterChange(digest, self._folders[digest]))

    def _drop(self, digest: str) -> None:
        del self._resident[digest]
        self._changes.append(AdapterChange(digest))
