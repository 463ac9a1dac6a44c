"""Which turns a request is followed by: those that its end makes due, and those that never will be (C20).

```
turn 0 ── turn 1 ── turn 2              turn 1 failed: turn 2 is given up; what is fresh, the next session
                       └── fresh        of a closed loop's user, begins anew after the end of turn 1
```
Asked by the driver, which sends, and by the desk, which makes bodies: both see the same turns coming.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from loadgen.plan import Phases, Shot

LOAD_ENDED = "load_ended"
"""Why a turn is given up that would be due when there is no load any more."""


@dataclass(frozen=True, slots=True)
class Told:
    """How a request ended that other ones follow. ``at``: ns on the client's clock, its terminal event if
    it completed, else when it was let go; ``phase``: the one that it was due in."""

    completed: bool
    outcome: str
    at: int
    phase: str


@dataclass(frozen=True, slots=True)
class After:
    """Turns with their due times in ns on the clock; given up ones with the phase that they count in and
    why, parents first."""

    due: list[tuple[Shot, int]] = field(default_factory=list)
    never: list[tuple[Shot, str, str]] = field(default_factory=list)


class Turns:
    """Of the shots of one load process."""

    def __init__(self, shots: Iterable[Shot], phases: Phases) -> None:
        self._phases = phases
        self._later: dict[int, list[Shot]] = defaultdict(list)
        for shot in shots:
            if shot.parent is not None:
                self._later[shot.parent].append(shot)

    def follow(self, shot: int) -> bool:
        """Whether any others follow it."""
        return shot in self._later

    def after(self, shot: int, told: Told, t0: int) -> After:
        """All that is decided by the end of ``shot``."""
        after = After()
        why = None if told.completed else f"session_ended: request {shot} {told.outcome}"
        left: list[tuple[int, str, str | None]] = [(shot, told.phase, why)]
        while left:
            parent, phase, why = left.pop()
            for later in self._later.get(parent, ()):
                due = told.at + (later.after_ns or 0)
                comes = why is None or (later.fresh and why != LOAD_ENDED)
                if comes and due - t0 < self._phases.load_ns:
                    after.due.append((later, due))
                    continue
                reason = LOAD_ENDED if comes or why is None else why
                # It counts in the phase of the last turn of its session that was due (C23). A session
                # that never opened would have opened after the load.
                counts_in = self._phases.of(self._phases.load_ns) if later.fresh else phase
                after.never.append((later, counts_in, reason))
                left.append((later.id, counts_in, reason))
        return after


class Dues:
    """When those shots were due that became due, in ns since t0."""

    def __init__(self, turns: Turns, phases: Phases) -> None:
        self._turns, self._phases = turns, phases
        self._dues: dict[int, int] = {}
        self._left: dict[int, str] = {}

    def now(self, shot: Shot, due: int) -> None:
        """``shot`` becomes due."""
        self._dues[shot.id] = due

    def of(self, shot: Shot) -> int | None:
        return self._dues.get(shot.id)

    def over(self, shot: Shot) -> None:
        """Nobody asks about it again, but for the turns that follow it."""
        if not self._turns.follow(shot.id):
            self._dues.pop(shot.id, None)

    def phase_left(self, shot: Shot) -> str:
        """The phase that ``shot`` counts in if the end of the run finds it unsent: where it or the last turn
        before it was due. Parents are to be asked about first."""
        due = self._dues.get(shot.id)
        if due is None and shot.parent is not None and not shot.fresh:
            due = self._dues.get(shot.parent)
        if due is not None:
            phase: str = self._phases.of(due)
        elif shot.parent in self._left and not shot.fresh:
            phase = self._left[shot.parent]
        else:
            phase = shot.phase
        if self._turns.follow(shot.id):
            self._left[shot.id] = phase
        return phase
