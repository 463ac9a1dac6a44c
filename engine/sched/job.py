"""A request that a worker has taken: what its choices have in common (see `engine.sched.sequence`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.request import Phase, Request, WorkerTruth

if TYPE_CHECKING:
    from engine.sched.sequence import Sequence


@dataclass(slots=True, eq=False)
class Job:
    """A taken request: what its choices have in common. Times in ns."""

    request: Request
    received: int
    truth: WorkerTruth
    choices: list[Sequence] = field(default_factory=list)
    """Those under way: one until the prefill is over, then up to n, fewer as they end."""
    held: int | None = None
    """The hold at which it pauses, with all its choices."""
    first_hit: int = 0
    """Blocks hit at the first admission."""
    blocks: int = 0
    """Blocks that its choices hold now, those in common counted once."""
    fence: int = -1
    """The last step that was in flight when a choice gave blocks back: it may still write them."""
    created: set[bytes] = field(default_factory=set)
    """Digests of the cached blocks that its ended choices have computed."""
    last_step: int = -1
    """Last step that had a row of it."""
    rows: int = 0
    step_tokens: int = 0
    """Sums over the steps that had a row of it, each counted once."""
    members: int = 0
    """Choices that decode in lockstep: what follows does not count their steps yet."""
    since: tuple[int, int, int] = (0, 0, 0)
    """Steps, rows and tokens of the lockstep when the first of them joined."""

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def started(self) -> bool:
        """It has been admitted at least once, so it cannot be handed back."""
        return any(choice.started for choice in self.choices)

    @property
    def phase(self) -> Phase:
        if not self.started:
            return Phase.QUEUED
        if any(choice.loading is not None for choice in self.choices):
            return Phase.TRANSFER
        return Phase.DECODE if self.truth.generated else Phase.PREFILL

    def add_blocks(self, count: int) -> None:
        """One of its choices holds so many more, which no other one holds."""
        self.blocks += count
        if self.blocks > self.truth.blocks_peak:
            self.truth.blocks_peak = self.blocks

    def recount(self) -> None:
        """Some of its choices has given blocks back."""
        self.blocks = len({block for choice in self.choices for block in choice.blocks})

    def in_common(self, blocks: tuple[int, ...]) -> int:
        """How many of these some choice holds already."""
        if len(self.choices) == 1:
            return 0
        held = {block for choice in self.choices for block in choice.blocks}
        return sum(block in held for block in blocks)
