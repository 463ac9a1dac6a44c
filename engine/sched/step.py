"""The step that is being planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.sched.lockstep import Lockstep
from engine.sched.sequence import Sequence


@dataclass(slots=True)
class Step:
    """Who is in it, and what is left to give: first the members of ``lockstep``, all or none, with a token
    each; then those in ``chunks`` with so many, in row order."""

    number: int
    budget: int
    lockstep: Lockstep
    watched: bool = False
    """Some hold waits for a request to reach its phase, so each must be looked at."""
    chunks: dict[Sequence, int] = field(default_factory=dict)
    partial: int = 0
    """Prefills among them that do not reach the end of their prompt."""
    preempted: bool = False
    """Somebody had to leave: nobody else is admitted in this step (ENGINE E20)."""

    def __len__(self) -> int:
        return len(self.lockstep) + len(self.chunks)

    def each(self) -> Iterator[tuple[Sequence, int]]:
        """Everybody with the tokens to compute, in row order."""
        for sequence in self.lockstep.sequences:
            yield sequence, 1
        yield from self.chunks.items()

    def give(self, sequence: Sequence, tokens: int) -> None:
        self.chunks[sequence] = tokens
        self.budget -= tokens
        self.partial += tokens < sequence.left

    def give_each(self, decoders: list[Sequence]) -> None:
        """One token to each, and to everybody in lockstep; decoders who can be from now on come in."""
        for sequence in decoders:
            if self.lockstep.takes(sequence):
                self.lockstep.join(sequence)
            else:
                self.chunks[sequence] = 1
        self.budget -= len(self)
        self.lockstep.served = self.number

    def take_back(self, sequence: Sequence) -> None:
        """A victim that was already scheduled returns its budget (ENGINE E26)."""
        tokens = self.chunks.pop(sequence, 0) if sequence.lockstep is None else 1
        sequence.step_out()
        self.budget += tokens
        self.partial -= 0 < tokens < sequence.left
