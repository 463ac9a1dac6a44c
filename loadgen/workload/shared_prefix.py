"""Groups of prompts with a common beginning, as from a few applications with long instructions."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.plan import Opening, Part, Turn
from loadgen.workload.lengths import lengths


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """One request a session: a system prompt of ``prefix`` tokens that its group shares, drawn evenly
    from ``groups``, then ``input`` tokens of its own."""

    groups: int
    prefix: int
    input: int
    output: int

    def __post_init__(self) -> None:
        lengths(prefix=self.prefix, input=self.input, output=self.output)
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1, not {self.groups}")

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        group = int(opening.rng.integers(self.groups))
        prompt = (
            Part("system", self.prefix, f"{opening.key}/g{group}"),
            Part("user", self.input, f"{opening.key}/u{opening.index}"),
        )
        return (Turn(prompt, self.output),)
