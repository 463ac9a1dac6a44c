"""Conversations: each turn sends everything said before, and waits for its answer plus a think time.

```
turn 0:  system user0
turn 1:  system user0 answer0 user1            due = end of turn 0 + think
turn 2:  system user0 answer0 user1 answer1 user2
```
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.plan import Opening, Part, Seconds, Turn
from loadgen.workload.lengths import lengths

MOST_TURNS = 10_000


@dataclass(frozen=True, slots=True)
class Slip:
    """A clock that slips into the system prompt at token ``at_token``, from turn ``turn`` (0 is the
    first) or from ``after`` s of the run on; with both, as soon as either holds."""

    at_token: int
    turn: int | None = None
    after: Seconds | None = None

    def __post_init__(self) -> None:
        if self.turn is None and self.after is None:
            raise ValueError("a slip needs `turn` or `after`: when does the clock slip in?")

    def holds(self, turn: int, at_s: float) -> bool:
        return (self.turn is not None and turn >= self.turn) or (
            self.after is not None and at_s >= self.after
        )


@dataclass(frozen=True, slots=True)
class Sessions:
    """``turns`` requests in a row, with the live answers as history. All sessions of the load have one
    system prompt of ``system`` tokens, or each its own if not ``shared_system``."""

    turns: int
    system: int
    user: int
    output: int
    think: Seconds = 0.0
    shared_system: bool = True
    slip: Slip | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= MOST_TURNS:
            raise ValueError(f"turns must be 1 to {MOST_TURNS:,}, not {self.turns}")
        lengths(user=self.user, output=self.output)
        lengths(least=0, system=self.system)
        if self.slip is not None and not 0 <= self.slip.at_token < self.system:
            raise ValueError(f"slip.at_token must lie inside the system prompt (0..{self.system - 1})")

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        history: list[Part] = []
        made: list[Turn] = []
        for turn in range(self.turns):
            history.append(Part("user", self.user, f"{opening.key}/u{opening.index}.{turn}"))
            system = (self._system(opening, turn),) if self.system else ()
            after_ns = round(self.think * 1e9) if turn else None
            made.append(Turn((*system, *history), self.output, after_ns))
            history.append(Part("assistant", self.output, answer_of=opening.first_id + turn))
        return tuple(made)

    def _system(self, opening: Opening, turn: int) -> Part:
        key = f"{opening.key}/s" if self.shared_system else f"{opening.key}/s{opening.index}"
        # A later turn has no due time yet; its clock shows the earliest one, and always a new second.
        at_s = opening.due_ns / 1e9 + turn * max(1.0, self.think)
        if self.slip is None or not self.slip.holds(turn, at_s):
            return Part("system", self.system, key)
        return Part("system", self.system, key, stamp=at_s, stamp_at=self.slip.at_token)
