"""Prompts that come again, word for word."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.plan import Opening, Part, Share, Turn
from loadgen.streams import stream
from loadgen.workload.lengths import Amount, Longest, lengths, most, once


@dataclass(frozen=True, slots=True)
class Duplicates:
    """One request a session. A ``share`` of them repeats one of the last ``within`` requests of the load
    exactly (one of all before it, if not given); the others share nothing."""

    share: Share
    input: Amount
    output: Amount
    within: int | None = None

    def __post_init__(self) -> None:
        lengths(input=self.input, output=self.output)
        if self.share >= 1:
            raise ValueError("share must be below 100%: what would the first of them repeat?")
        if self.within is not None and self.within < 1:
            raise ValueError(f"within must be at least 1, not {self.within}")

    def longest(self) -> Longest:
        return Longest.of(most(self.input), most(self.output))

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        original = self.original(opening.key, opening.index)
        tokens = once(self.input, "duplicates input", opening.key, original)
        output = once(self.output, "duplicates output", opening.key, original)
        return (Turn((Part("user", tokens, f"{opening.key}/u{original}"),), output),)

    def original(self, key: str, index: int) -> int:
        """Index of the request whose prompt the one at ``index`` of the load ``key`` has; its own if it is
        new. What is repeated may itself be a repetition: each index has a stream of its own, so that
        every request finds the same answer by itself."""
        while index:
            rng = stream(0, "duplicates", key, index)
            if rng.random() >= self.share:
                break
            back = index if self.within is None else min(index, self.within)
            index -= 1 + int(rng.integers(back))
        return index
