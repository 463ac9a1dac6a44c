"""A request on its way through one worker: a Job, and a Sequence for each choice that is under way.

One prefill serves all choices. It is choice 0's; its last step draws the first token of every choice, and
each of the others goes on from there as a sequence of its own (ENGINE E36)::

    choice 0   [full][full][part.]──decode──>
                 │     │      └copy─┐
    choice 1   [same][same]     [part.]──decode──>
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from typing import TYPE_CHECKING

from engine.kv.blocks import Content, block_digests, blocks_for, token_bytes
from engine.kv.miss_history import CONTENT_ROOT
from engine.request import Request, Tokens, WorkerTruth
from engine.runner.base import Move, Row, Transfer
from engine.sched.aside import Loading, Swapped
from engine.sched.job import Job

if TYPE_CHECKING:
    from engine.sched.lockstep import Lockstep


class State(Enum):
    """A sequence is in exactly one of these (invariant K6)."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


Key = tuple[int, int]
"""(request id, choice)."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a taken request with everything that this worker knows about it. Times in ns.

    Work left = tokens (prompt and output so far) - ``computed``; a first chunk, a later chunk, a
    resume after preemption and a hit differ in nothing else.
    """

    job: Job
    block_size: int
    choice: int = 0
    forks: int = 0
    """Choices that begin where its prefill ends; 0 from then on."""
    request: Request = field(init=False)
    truth: WorkerTruth = field(init=False)
    key: Key = field(init=False)
    looks_back: bool = field(init=False)
    prompt: int = field(init=False)
    """P."""
    total: int = field(init=False)
    """Most tokens it may ever have: P + out_max."""
    tokens: Tokens[int] = field(init=False)
    digests: list[bytes] = field(init=False)
    state: State = State.WAITING
    table: tuple[int, ...] = ()
    original: int | None = None
    """The partial block at the end of the prompt as choice 0 computed it, until this choice has its copy."""
    lockstep: Lockstep | None = None
    """With whom it decodes; then it does not keep the numbers itself that move with every step."""
    offset: int = 0
    joined: int = 0
    """``computed`` less the steps of the lockstep; how many tokens it had when it joined."""
    member_row: Row | None = None
    """Its row in every step, while it is in lockstep."""
    stops: frozenset[int] = frozenset()
    """Tokens after which it ends."""
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
    lacks_since: int | None = None
    """When it first stood at the head of the backlog and lacked capacity."""
    looked_up: tuple[int, int, int] | None = None
    """Of the last lookup of its prefix in vain: Memory.turnover, blocks found, blocks that others held."""
    loading: Loading | None = None
    """It waits aside, with its blocks, until this is there."""
    swapped: Swapped | None = None
    """Its K/V, while it waits in the backlog after a preemption."""
    gave_up: bool = False
    """A restore for it has failed: no other is tried."""
    counted: bool = False
    """Its first admission is in the books."""
    chunks: int = 0
    _computed: int = 0
    _most_computed: int = 0
    _served: int = -1
    _last_token: int | None = None
    _fingerprints: list[bytes] = field(default_factory=list)

    @staticmethod
    def first_of(job: Job, block_size: int) -> Sequence:
        """Choice 0, which is to compute the prompt for all of them."""
        sequence = Sequence(job, block_size, forks=job.request.n - 1)
        job.choices.append(sequence)
        return sequence

    def __post_init__(self) -> None:
        self.request, self.truth = self.job.request, self.job.truth
        self.key = self.request.id, self.choice
        self.looks_back = self.request.sampling.looks_back
        self.prompt = len(self.request.tokens)
        self.total = self.prompt + self.request.out_max
        self.tokens = array("I", self.request.tokens)
        full = self.prompt // self.block_size
        given = self.request.digests
        if len(given) != full:
            given = block_digests(self.request.root, self.tokens, self.block_size)
        self.digests = list(given)

    @property
    def id(self) -> int:
        """Of the request; ``key`` tells its choices apart."""
        return self.request.id

    @property
    def computed(self) -> int:
        return self._computed if self.lockstep is None else self.offset + self.lockstep.steps

    @computed.setter
    def computed(self, tokens: int) -> None:
        self.step_out()
        self._computed = tokens

    @property
    def most_computed(self) -> int:
        """The farthest ``computed`` has ever been: tokens below it are computed again, not first."""
        return self._most_computed if self.lockstep is None else max(self._most_computed, self.computed)

    @most_computed.setter
    def most_computed(self, tokens: int) -> None:
        self.step_out()
        self._most_computed = tokens

    @property
    def served(self) -> int:
        """Last step that had a row of it."""
        return self._served if self.lockstep is None else self.lockstep.served

    @served.setter
    def served(self, step: int) -> None:
        self.step_out()
        self._served = step

    @property
    def last_token(self) -> int | None:
        """When it was told its last token, in ns; None before the first."""
        return self._last_token if self.lockstep is None else self.lockstep.told_at

    @last_token.setter
    def last_token(self, now: int) -> None:
        self.step_out()
        self._last_token = now

    def step_out(self) -> None:
        """From now on it is counted on its own."""
        if self.lockstep is not None:
            self.lockstep.leave(self)

    @property
    def held(self) -> int | None:
        """The hold at which its request pauses."""
        return self.job.held

    @property
    def paused(self) -> bool:
        """It holds its blocks and computes nothing."""
        return self.job.held is not None or self.loading is not None

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Its next row is one token that draws the next."""
        return len(self.tokens) - self.computed == 1 and self.computed >= self.prompt

    @property
    def rem(self) -> int:
        """Most tokens that it may still add."""
        return self.total - len(self.tokens)

    @property
    def promised(self) -> int:
        """Blocks that it may still need beyond those it holds, with those of the choices to come: each
        needs all but the full blocks of the prompt, which they share (ENGINE E22)."""
        need = blocks_for(self.total, self.block_size)
        return need - len(self.table) + self.forks * (need - self.prompt // self.block_size)

    @property
    def started(self) -> bool:
        """It has been admitted at least once."""
        return self.order > 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """Every block that it holds a reference on."""
        return self.table if self.original is None else (*self.table, self.original)

    def grow(self, blocks: Iterable[int], in_common: int = 0) -> None:
        """Append blocks to its table; so many of them other choices hold too."""
        before = len(self.table)
        self.table = (*self.table, *blocks)
        if self.member_row is not None:
            self.member_row.table = self.table
        self.job.add_blocks(len(self.table) - before - in_common)

    def drop(self) -> None:
        """Its references have been given back."""
        self.table, self.original = (), None
        self.job.recount()

    def fork(self, choice: int) -> Sequence:
        """Another choice that begins here, where the prompt is computed and no output is appended yet.

        It holds the full blocks of the prompt, and the partial one until it has copied it; the caller
        takes the references.
        """
        full = self.prompt // self.block_size
        fork = Sequence(self.job, self.block_size, choice)
        fork.state, fork.served, fork.counted, fork.stops = State.RUNNING, self.served, True, self.stops
        fork.computed = fork.most_computed = self.prompt
        fork.table = self.table[:full]
        fork.original = self.table[full] if self.prompt % self.block_size else None
        fork.published, fork.publishing = min(self.published, full), self.publishing
        fork._fingerprints = self._fingerprints[:full]
        self.job.choices.append(fork)
        return fork

    @property
    def copy(self) -> Transfer:
        """Its own copy of the partial block, made in the step that computes its first token."""
        assert self.original is not None, "there is something to copy"
        return Transfer(Move.COPY, self.original, self.table[self.prompt // self.block_size])

    def content(self, index: int) -> tuple[Content, bytes]:
        """What full block ``index`` holds, and its fingerprint; the digests before it are known."""
        first, size, root = index * self.block_size, self.block_size, self.request.root
        tokens = token_bytes(self.tokens[first : first + size])
        digests, prints = self.digests, self._fingerprints
        parent = digests[index - 1] if index else root
        if len(digests) == index:
            digests.append(blake2b(parent + tokens, digest_size=16).digest())
        if len(prints) < index:
            self.fingerprint(index - 1)
        if len(prints) == index:
            before = prints[-1] if index else CONTENT_ROOT
            prints.append(blake2b(before + tokens, digest_size=16).digest())
        return Content(digests[index], parent, tokens, root), prints[index]

    def digest(self, index: int) -> bytes:
        """Digest of full block ``index``, extended by outputs as needed (ENGINE E8)."""
        while len(self.digests) <= index:
            parent = self.parent(len(self.digests))
            self.digests.append(_digest(parent, self.block(len(self.digests))))
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
            known.append(_digest(parent, self.block(len(known))))
        return known[index]

    def row(self, tokens: int) -> Row:
        """Its share of a step: the next ``tokens`` positions."""
        request = self.request
        start, known = self.computed, len(self.tokens)
        samples = start + tokens == known
        return Row(  # by position: there is one for each sequence and step
            request.id,
            start,
            self.tokens[start : start + tokens],
            self.table,
            samples,
            request.sampling,
            known - self.prompt,
            self.choice,
            self.forks if samples else 0,
            request.adapter,
            self.prompt,
            self.tokens[:] if samples and self.looks_back else None,
        )


def _digest(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(parent + tokens, digest_size=16).digest()
