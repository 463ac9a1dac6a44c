"""Prompts that share nothing."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.plan import Opening, Part, Turn
from loadgen.workload.lengths import Amount, Longest, drawn, lengths, most


@dataclass(frozen=True, slots=True)
class Fixed:
    """One request a session: ``input`` tokens that no other prompt has, ``output`` tokens asked for. Both
    are exact, or drawn: a long tail is ``{median: .., p99: ..}`` or ``{pareto: ..}``."""

    input: Amount
    output: Amount

    def __post_init__(self) -> None:
        lengths(input=self.input, output=self.output)

    def longest(self) -> Longest:
        return Longest.of(most(self.input), most(self.output))

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        tokens, output = drawn(self.input, opening), drawn(self.output, opening)
        return (Turn((Part("user", tokens, f"{opening.key}/u{opening.index}"),), output),)
