"""The step that is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.sched.sequence import Sequence


@dataclass(slots=True)
class Step:
    """Tokens per sequence, in row order, and what is left to give."""

    number: int
    budget: int
    watched: bool = False
    """Some hold waits for a request to reach its phase, so each must be looked at."""
    chunks: dict[Sequence, int] = field(default_factory=dict)
    partial: int = 0
    """Prefills among them that do not reach the end of their prompt."""
    preempted: bool = False
    """Somebody had to leave: nobody else is admitted in this step (ENGINE E20)."""

    def give(self, sequence: Sequence, tokens: int) -> None:
        self.chunks[sequence] = tokens
        self.budget -= tokens
        self.partial += tokens < sequence.left

    def give_each(self, decoders: list[Sequence]) -> None:
        """One token to each."""
        self.chunks.update(dict.fromkeys(decoders, 1))
        self.budget -= len(decoders)

    def take_back(self, sequence: Sequence) -> None:
        """A victim that was already scheduled returns its budget (ENGINE E26)."""
        tokens = self.chunks.pop(sequence, 0)
        self.budget += tokens
        self.partial -= 0 < tokens < sequence.left
