"""Conversations: each turn sends everything said before, and waits for its answer plus a think time.

```
turn 0:  system user0
turn 1:  system user0 answer0 user1            due = end of turn 0 + think
turn 2:  system user0 answer0 user1 answer1 user2
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.plan import Opening, Seconds, Turn
from loadgen.workload.agents import Branches, Compaction, Idle, Subagents, Tools
from loadgen.workload.conversation import Conversation, Thread
from loadgen.workload.lengths import Amount, Longest, amounts, drawn, least, lengths, most
from loadgen.workload.waits import Wait

MOST_TURNS = 10_000
MOST_REQUESTS = 65_535
"""Columns of turns and branches are u16."""


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
    """``turns`` requests in a row, each with all that was said before: the answers that really came
    (``history: live``), or texts of the asked length in their place (``recorded``: prompts are then the
    same in every run). All sessions of the load have one system prompt of ``system`` tokens, or each its
    own if not ``shared_system``. With ``tools`` and ``subagents`` a turn is several requests. A session
    ends before a request, prompt and answer, would pass ``context`` tokens."""

    turns: Amount
    system: Amount
    user: Amount
    output: Amount
    think: Wait = 0.0
    shared_system: bool = True
    slip: Slip | None = None
    history: Literal["live", "recorded"] = "live"
    tools: Tools | None = None
    subagents: Subagents | None = None
    branches: Branches | None = None
    compaction: Compaction | None = None
    idle: Idle | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        amounts(1, MOST_TURNS, turns=self.turns)
        lengths(user=self.user, output=self.output)
        lengths(0, system=self.system)
        if self.slip is not None and not 0 <= self.slip.at_token < least(self.system):
            raise ValueError(f"slip.at_token must lie inside the system prompt (0..{least(self.system) - 1})")
        if self.requests > MOST_REQUESTS:
            raise ValueError(f"a session could have {self.requests:,} requests; at most {MOST_REQUESTS:,}")
        self._check_room()

    def _check_room(self) -> None:
        first = most(self.system) + most(self.user)
        compact = first if self.compaction is None else first + most(self.compaction.summary)
        if self.compaction is not None and compact > self.compaction.at:
            raise ValueError(f"compaction.at must be at least system + summary + user, {compact:,} tokens")
        need = first + self.longest_answer
        if self.subagents is not None:
            need = max(need, self.subagents.first)
        if self.context is not None and need > self.context:
            raise ValueError(f"context must hold a first request, {need:,} tokens, not {self.context:,}")

    @property
    def requests(self) -> int:
        """The most that a session can have, sub-agents' aside."""
        forks = 1 if self.branches is None else self.branches.count
        return most(self.turns) * (1 + self._calls + (self.subagents is not None)) * forks

    @property
    def _calls(self) -> int:
        return 0 if self.tools is None else most(self.tools.calls)

    @property
    def longest_answer(self) -> int:
        calling = None if self.tools is None else self.tools.output
        return max(most(self.output), 0 if calling is None else most(calling))

    def longest(self) -> Longest:
        """Sub-agents count too."""
        own = self._within(self._longest_input(), self.longest_answer)
        if (sub := self.subagents) is None:
            return own
        return own.or_more(self._within(sub.longest_input, most(sub.output)))

    def _within(self, input: int, output: int) -> Longest:
        if self.context is None or input + output <= self.context:
            return Longest.of(input, output)
        return Longest(min(input, self.context - 1), output, self.context)

    def _longest_input(self) -> int:
        turns, system, answer = most(self.turns), most(self.system), self.longest_answer
        result = 0 if self.tools is None else most(self.tools.result)
        report = 0 if self.subagents is None else most(self.subagents.report)
        answers = turns * (1 + self._calls + (self.subagents is not None)) - 1
        grown = system + turns * (most(self.user) + self._calls * result + report) + answers * answer
        if self.compaction is None:
            return grown
        fresh = system + most(self.compaction.summary) + answer + max(most(self.user), result, report)
        return min(grown, max(self.compaction.at, fresh))

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        talk = Conversation(self, opening)
        turns = drawn(self.turns, opening)
        trunk = Thread(talk.system())
        fork = trunk
        for turn in range(turns):
            if self.branches is not None and turn == self.branches.at:
                fork = trunk.copy(0)
            if not talk.turn(trunk, turn):
                break
        if self.branches is not None and fork is not trunk:
            for branch in range(1, self.branches.count):
                thread = fork.copy(branch)
                for turn in range(self.branches.at, turns):
                    if not talk.turn(thread, turn):
                        break
        return tuple(talk.made)
