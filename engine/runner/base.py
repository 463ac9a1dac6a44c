"""The seam between deciding and computing: a StepPlan goes in, a StepResult comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.request import Logprob, Sampling, Tokens


@dataclass(slots=True)
class Row:
    """One sequence's share of a step: compute ``tokens`` at positions ``start ..``. It belongs to its plan
    until the next one is made, which may use it again.

    K/V of position p lies in block ``table[p // block_size]``, slot ``p % block_size``; ``table``
    covers at least ``start + len(tokens)`` positions and the K/V of all positions before ``start``
    is there already. Block 0 is the null block and never in a table.
    """

    id: int
    start: int
    tokens: Tokens[int] | tuple[int, ...]
    table: tuple[int, ...]
    samples: bool
    """True when the last token of this chunk is the last known one, so that the next is drawn."""
    sampling: Sampling = Sampling()
    draw: int = 0
    """Index of the token to draw (0 = first output token); keys the random draw."""
    choice: int = 0
    """Which of the request's choices this row computes; keys the random draw too."""
    forks: int = 0
    """The last row of a prefill with n > 1: draw for the choices ``1 .. forks`` from the same logits too
    (StepResult.forked)."""
    adapter: str | None = None
    """Digest of the LoRA adapter to compute it with."""
    prompt: int = 0
    """Tokens of the prompt: what lies behind it is output, which penalties look at."""
    known: Tokens[int] | None = None
    """All its tokens up to and with this chunk's last, given only where the draw depends on them
    (penalties, a schema)."""

    @property
    def is_decode(self) -> bool:
        return self.samples and self.draw > 0 and len(self.tokens) == 1


class Move(StrEnum):
    """What a Transfer does. Places are device blocks, host slots (from 1) and disk keys (digests)."""

    COPY = "copy"
    """Device block to device block."""
    SAVE = "save"
    """Device block to host slot."""
    LOAD = "load"
    """Host slot to device block."""
    SPILL = "spill"
    """Host slot to disk."""
    FETCH = "fetch"
    """Disk to host slot."""
    DROP = "drop"
    """Forget a disk key."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One block moved. ``source`` and ``target`` are block or slot numbers, 0 where a disk key stands in
    their place. ``key`` = content digest and ``root`` its namespace, which a copy on disk carries and which
    are checked with the bytes when they come back."""

    move: Move
    source: int = 0
    target: int = 0
    key: bytes = b""
    root: bytes = b""


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """Make the LoRA adapter with this digest resident, from a PEFT folder that holds it; drop it if there is
    no folder (ENGINE E39)."""

    digest: str
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """``transfers`` and ``adapters`` are carried out, each in order, before any row is computed; a step may
    hold only those."""

    step: int
    rows: tuple[Row, ...]
    transfers: tuple[Transfer, ...] = ()
    adapters: tuple[AdapterChange, ...] = ()
    together: int = 0
    """So many rows, the first ones, are known to decode: those in lockstep."""
    tokens: int = field(init=False)
    decoding: tuple[bool, ...] = field(init=False)
    """Which rows decode."""
    decodes: int = field(init=False)
    """How many do, with a token each."""

    def __post_init__(self) -> None:
        others = self.rows[self.together :]
        decoding = (True,) * self.together + tuple([row.is_decode for row in others])
        object.__setattr__(self, "tokens", self.together + sum([len(row.tokens) for row in others]))
        object.__setattr__(self, "decoding", decoding)
        object.__setattr__(self, "decodes", sum(decoding))


@dataclass(frozen=True, slots=True)
class StepResult:
    """``tokens[i]`` is what row i drew, None where it only prefilled. ``failed`` names rows by index
    whose result is unusable (NaN). ``duration`` in seconds is what a simulated step takes; None when
    the time has really passed. ``errors`` says why a row failed where it is not that; ``own_fault`` are those
    rows whose request itself is the cause (a schema that nothing can continue).

    ``forked[i]`` are the tokens that row i drew for its other choices; ``logprobs[i]`` one for each token
    that row i drew, its own first, then those of ``forked``. ``lost`` are the indexes of transfers that
    did not happen (a torn or vanished file, a full disk): their targets hold nothing; ``moving`` the seconds
    that transfers took. ``unloaded`` says why an adapter of ``StepPlan.adapters`` is not resident after all;
    a row that needs one that is not has failed, with the reason in ``errors``: never is it computed with
    another one's weights."""

    tokens: tuple[int | None, ...]
    duration: float | None = None
    failed: tuple[int, ...] = ()
    errors: Mapping[int, str] = field(default_factory=dict)
    own_fault: tuple[int, ...] = ()
    forked: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[Logprob, ...]] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    moving: float = 0.0
    unloaded: Mapping[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """Executes steps over KV memory of its own.

    Safety: a runner must write K/V of every row of a layer before any row attends in that layer, and
    may touch only slots that the plan names. It raises to fail the whole step; the caller then
    publishes nothing.
    """

    eos_ids: frozenset[int]
    vocabulary: int
    max_positions: int
    kv_bytes_per_token: int
    """K and V of one position in all layers."""

    def allocate(self, blocks: int, block_size: int, host_blocks: int = 0) -> None:
        """Make KV memory for ``blocks`` usable blocks (one more is made for the null block), and room for
        ``host_blocks`` more in host memory."""

    def execute(self, plan: StepPlan) -> StepResult: ...
