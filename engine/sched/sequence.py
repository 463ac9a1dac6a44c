"""A request on its way through one worker."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b

from engine.kv.blocks import block_digests, blocks_for, token_bytes
from engine.kv.miss_history import CONTENT_ROOT
from engine.request import Phase, Request, Tokens, WorkerTruth
from engine.runner.base import Row


class State(Enum):
    """A sequence is in exactly one of these (invariant K6)."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """A taken request with everything that this worker knows about it. Times in ns.

    Work left = tokens (prompt and output so far) - ``computed``; a first chunk, a later chunk, a
    resume after preemption and a hit differ in nothing else.
    """

    request: Request
    block_size: int
    received: int
    truth: WorkerTruth
    tokens: Tokens[int] = field(init=False)
    digests: list[bytes] = field(init=False)
    state: State = State.WAITING
    table: list[int] = field(default_factory=list)
    frozen_table: tuple[int, ...] = ()
    computed: int = 0
    most_computed: int = 0
    """The farthest ``computed`` has ever been: tokens below it are computed again, not first."""
    published: int = 0
    """Leading blocks that are hits or have been offered to the prefix cache."""
    publishing: bool = True
    """False once a clear has cut the chain in the map under this sequence."""
    expects: tuple[int, int] = (0, 0)
    """Range of blocks announced as being computed and not yet published."""
    estimate: int = 0
    """Prompt tokens that the backlog expects to compute for it."""
    order: int = 0
    """Number of its last admission, from 1; 0 before the first."""
    served: int = -1
    """Last step that had a row of it."""
    chunks: int = 0
    held: int | None = None
    """The hold at which it pauses."""
    first_hit: int = 0
    """Blocks hit at the first admission."""
    last_token: int | None = None
    rows: int = 0
    step_tokens: int = 0
    _fingerprints: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = array("I", self.request.tokens)
        full = self.prompt // self.block_size
        given = self.request.digests
        if len(given) != full:
            given = block_digests(self.request.root, self.tokens, self.block_size)
        self.digests = list(given)

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def prompt(self) -> int:
        """P."""
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Its next row is one token that draws the next."""
        return self.generated > 0 and self.left == 1

    @property
    def total(self) -> int:
        """Most tokens it may ever have: P + out_max."""
        return self.prompt + self.request.out_max

    @property
    def promised(self) -> int:
        """Blocks that it may still need beyond those it holds."""
        return blocks_for(self.total, self.block_size) - len(self.table)

    @property
    def started(self) -> bool:
        """It has been admitted at least once, so it cannot be handed back."""
        return self.order > 0

    @property
    def phase(self) -> Phase:
        if not self.started:
            return Phase.QUEUED
        return Phase.DECODE if self.generated else Phase.PREFILL

    def grow(self, blocks: list[int]) -> None:
        """Append newly allocated blocks to its table."""
        self.table += blocks
        self.frozen_table = tuple(self.table)
        self.truth.blocks_peak = max(self.truth.blocks_peak, len(self.table))

    def digest(self, index: int) -> bytes:
        """Digest of full block ``index``, extended by outputs as needed (ENGINE E8)."""
        while len(self.digests) <= index:
            parent = self.parent(len(self.digests))
            self.digests.append(blake2b(parent + self.block(len(self.digests)), digest_size=16).digest())
        return self.digests[index]

    def parent(self, index: int) -> bytes:
        return self.digests[index - 1] if index else self.request.root

    def block(self, index: int) -> bytes:
        """The tokens of block ``index`` as u32 LE."""
        return token_bytes(self.tokens[index * self.block_size : (index + 1) * self.block_size])

    def fingerprint(self, index: int) -> bytes:
        """Like ``digest``, but blind to the namespace."""
        known = self._fingerprints
        while len(known) <= index:
            parent = known[-1] if known else CONTENT_ROOT
            known.append(blake2b(parent + self.block(len(known)), digest_size=16).digest())
        return known[index]

    def row(self, tokens: int) -> Row:
        """Its share of a step: the next ``tokens`` positions."""
        return Row(
            id=self.id,
            start=self.computed,
            tokens=self.tokens[self.computed : self.computed + tokens],
            table=self.frozen_table,
            samples=tokens == self.left,
            sampling=self.request.sampling,
            draw=self.generated,
        )
