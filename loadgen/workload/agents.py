"""What agents do in a session beside talking: call tools, send sub-agents, compact, wait, fork."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.plan import Opening, Share
from loadgen.workload.lengths import Amount, amounts, drawn, lengths, most
from loadgen.workload.waits import Wait

MOST_CALLS = 1_000

Step = Literal["send", "call"]


@dataclass(frozen=True, slots=True)
class Tools:
    """In a ``share`` of the turns the model calls tools, ``calls`` times one after the other: each answer
    is the call, and the next request brings its ``result`` of so many tokens, ``think`` after it. Answers
    that call a tool have ``output`` tokens; without it as many as other answers."""

    calls: Amount
    result: Amount
    think: Wait = 0.0
    share: Share = 1.0
    output: Amount | None = None

    def __post_init__(self) -> None:
        amounts(0, MOST_CALLS, calls=self.calls)
        lengths(result=self.result, output=1 if self.output is None else self.output)


@dataclass(frozen=True, slots=True)
class Subagents:
    """In a ``share`` of the turns the model sends a sub-agent, which the session waits for. It has its own
    ``system`` prompt, the same for all sub-agents of the load, begins with a ``task``, and sends ``turns``
    requests in a row; each but the first brings ``step`` tokens of a tool's result, ``think`` after the
    answer before. The session gets a ``report`` of so many tokens, as the result of a tool."""

    share: Share
    turns: Amount
    system: Amount
    task: Amount
    output: Amount
    report: Amount
    step: Amount = 100
    think: Wait = 0.0

    def __post_init__(self) -> None:
        amounts(1, MOST_CALLS, turns=self.turns)
        lengths(task=self.task, output=self.output, report=self.report, step=self.step)
        lengths(0, system=self.system)

    @property
    def first(self) -> int:
        """The most tokens of its first request, prompt and answer."""
        return most(self.system) + most(self.task) + most(self.output)

    @property
    def longest_input(self) -> int:
        later = most(self.turns) - 1
        return most(self.system) + most(self.task) + later * (most(self.output) + most(self.step))


@dataclass(frozen=True, slots=True)
class Compaction:
    """A prompt that would pass ``at`` tokens gets a new history: a ``summary`` of so many tokens in place
    of all that stood between the system prompt and the last answer."""

    at: int
    summary: Amount

    def __post_init__(self) -> None:
        lengths(at=self.at, summary=self.summary)


@dataclass(frozen=True, slots=True)
class Branches:
    """Before turn ``at`` (0 is the first) the session forks into ``count`` branches: they share what was
    said so far, are due at once but for their think times, and know nothing of each other."""

    at: int
    count: int

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ValueError(f"at must be 1 or more, not {self.at}: before turn 0 there is nothing to share")
        if not 2 <= self.count <= 1_000:
            raise ValueError(f"count must be 2 to 1,000 branches, not {self.count}")


@dataclass(frozen=True, slots=True)
class Idle:
    """In a ``share`` of the pauses between turns the user is away for ``gap`` instead of thinking."""

    share: Share
    gap: Wait


def steps(tools: Tools | None, subagents: Subagents | None, at: Opening) -> list[Step]:
    """What the model does in one turn before its last answer: ``send`` a sub-agent, then ``call`` tools."""
    send = subagents is not None and at.rng.random() < subagents.share
    calls = drawn(tools.calls, at) if tools is not None and at.rng.random() < tools.share else 0
    made: list[Step] = ["send"] if send else []
    made += ["call"] * calls
    return made
