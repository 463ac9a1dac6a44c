"""A grid of lengths: every length of a prompt with every length of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loadgen.plan import Opening, Part, Turn
from loadgen.streams import stream
from loadgen.workload.lengths import Longest, lengths


@dataclass(frozen=True, slots=True)
class Matrix:
    """One request a session, of one cell of ``inputs`` x ``outputs``. Each round has every cell once, so
    that the counts of any two cells differ by one at most: in the order of the file (``round_robin``), or
    in an order drawn anew for each round (``shuffled``: no cell always follows the same one)."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    order: Literal["round_robin", "shuffled"] = "round_robin"

    def __post_init__(self) -> None:
        for key, values in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not values:
                raise ValueError(f"{key} is empty: give at least one length")
            for tokens in values:
                lengths(**{key: tokens})

    def longest(self) -> Longest:
        return Longest.of(max(self.inputs), max(self.outputs))

    def session(self, opening: Opening) -> tuple[Turn, ...]:
        row, column = divmod(self._cell(opening), len(self.outputs))
        prompt = (Part("user", self.inputs[row], f"{opening.key}/u{opening.index}"),)
        return (Turn(prompt, self.outputs[column]),)

    def _cell(self, opening: Opening) -> int:
        cells = len(self.inputs) * len(self.outputs)
        turn, place = divmod(opening.index, cells)
        if self.order == "round_robin":
            return place
        return int(stream(0, "matrix", opening.key, turn).permutation(cells)[place])
