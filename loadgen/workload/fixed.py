"""Prompts that share nothing."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.plan import Opening, Part, Turn
from loadgen.workload.lengths import lengths


@dataclass(frozen=True, slots=True)
class Fixed:
    """One request a session: ``input`` tokens that no other prompt has, ``output`` tokens asked for."""

    input: int
    output: int

    def __post_init__(self) -> None:
        lengths(input=self.input, output=self.output)

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        prompt = (Part("user", self.input, f"{opening.key}/u{opening.index}"),)
        return (Turn(prompt, self.output),)
