"""The seam between deciding and computing: a StepPlan goes in, a StepResult comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.request import Sampling, Tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: compute ``tokens`` at positions ``start ..``.

    K/V of position p lies in block ``table[p // block_size]``, slot ``p % block_size``; ``table``
    covers at least ``start + len(tokens)`` positions and the K/V of all positions before ``start``
    is there already. Block 0 is the null block and never in a table.
    """

    id: int
    start: int
    tokens: Tokens[int]
    table: tuple[int, ...]
    samples: bool
    """True when the last token of this chunk is the last known one, so that the next is drawn."""
    sampling: Sampling = Sampling()
    draw: int = 0
    """Index of the token to draw (0 = first output token); keys the random draw."""

    @property
    def is_decode(self) -> bool:
        return self.samples and self.draw > 0 and len(self.tokens) == 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """``tokens[i]`` is what row i drew, None where it only prefilled. ``failed`` names rows by index
    whose result is unusable (NaN). ``duration`` in seconds is what a simulated step takes; None when
    the time has really passed."""

    tokens: tuple[int | None, ...]
    duration: float | None = None
    failed: tuple[int, ...] = ()


class Runner(Protocol):
    """Executes steps over KV memory of its own.

    Safety: a runner must write K/V of every row of a layer before any row attends in that layer, and
    may touch only slots that the plan names. It raises to fail the whole step; the caller then
    publishes nothing.
    """

    eos_ids: frozenset[int]
    vocabulary: int
    max_positions: int

    def allocate(self, blocks: int, block_size: int) -> None:
        """Make KV memory for ``blocks`` usable blocks (one more is made for the null block)."""

    def execute(self, plan: StepPlan) -> StepResult: ...
