"""A runner without a model: true in what it reads and writes, instant, and timed by a cost model.

The next token is a function of all tokens so far, *as found in the KV slots that the table names*: each
slot holds the hash of the token prefix that was written there. A scheduler that hands out a wrong or
half-written block therefore changes the text, and the poison oracle raises at the read itself
(the engine cases' "poison oracle").
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.config import CostModel
from engine.request import Tokens
from engine.runner.base import Row, StepPlan, StepResult

Hashes = npt.NDArray[np.uint64]
Blocks = npt.NDArray[np.int64]

_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Poisoned(Exception):
    """A step read a slot that does not hold its reader's own, earlier written prefix."""


def step_terms(cost: CostModel, plan: StepPlan) -> tuple[float, float, float]:
    """Seconds of a step that are (fixed, due to prefill rows, due to decode rows); their sum is t_step.

    ``a`` · ``b*sum(chunk) + e*sum(chunk*(start + chunk/2))`` · ``c*rows + d*sum(contexts)`` (ENGINE E40).
    """
    prefill = decode = 0.0
    for row in plan.rows:
        chunk = len(row.tokens)
        if row.is_decode:
            decode += cost.c + cost.d * (row.start + 1)
        else:
            prefill += cost.b * chunk + cost.e * chunk * (row.start + chunk / 2)
    return cost.a, prefill, decode


class SimulatedRunner:
    """Runner over simulated KV memory.

    Text depends on the tokens, the sampling and nothing else: batching, chunking, hits, worker and
    ``seed`` change no token. ``seed``, ``worker`` and the step number key the noise of durations. Prompts
    may hold any id below ``vocabulary``; only ids below ``drawn`` are drawn.
    Set ``witness`` (request id -> all its tokens) to check every read against the reader's own tokens
    too; without it a read is checked to be *one* prefix of consecutive tokens, wholly written earlier.

    Per slot the hash of the prefix that ends there is kept; per block, so that reading a long context
    is cheap: the hash before its first slot, the hash after its last, how many slots are filled from
    its beginning, and who wrote to it last in which step.
    """

    def __init__(
        self,
        cost: CostModel,
        seed: int = 0,
        worker: int = 0,
        vocabulary: int = 1 << 31,
        drawn: int = 4096,
        max_positions: int = 1 << 20,
    ) -> None:
        self.cost = cost
        self.seed = seed
        self.worker = worker
        self.vocabulary = vocabulary
        self.drawn = drawn
        self.max_positions = max_positions
        self.eos_ids: frozenset[int] = frozenset()
        self.witness: Callable[[int], Tokens[int] | None] | None = None
        self.allocate(0, 1)

    def allocate(self, blocks: int, block_size: int) -> None:
        """KV memory for ``blocks`` usable blocks and the null block; nothing is written yet."""
        self._block_size = block_size
        self._slots = np.zeros((blocks + 1, block_size), np.uint64)
        self._begin = np.zeros(blocks + 1, np.uint64)
        self._end = np.zeros(blocks + 1, np.uint64)
        self._filled = np.zeros(blocks + 1, np.int64)
        self._written_in = np.full(blocks + 1, -1, np.int64)
        self._written_by: dict[int, int] = {}
        self._tables: dict[int, tuple[tuple[int, ...], Blocks]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Read, write and draw; raises Poisoned. Takes no time: ``duration`` says what it should take."""
        past = [self._read(row, plan.step) for row in plan.rows]
        self._written_by.clear()
        last = [self._write(row, before, plan.step) for row, before in zip(plan.rows, past, strict=True)]
        for row in plan.rows:
            self._check_overwritten(row, plan.step)
        drawn = [self._draw(row, state) for row, state in zip(plan.rows, last, strict=True)]
        return StepResult(tuple(drawn), self._duration(plan))

    def _table(self, row: Row) -> Blocks:
        """The row's table as an array, made once per change of the table."""
        known = self._tables.get(row.id)
        if known is not None and known[0] is row.table:
            return known[1]
        if len(self._tables) > 1024:
            self._tables.clear()
        blocks = np.array(row.table, np.int64)
        self._tables[row.id] = row.table, blocks
        return blocks

    def _read(self, row: Row, step: int) -> int:
        """Check all slots before ``start`` and return the hash of the prefix they hold."""
        size = self._block_size
        blocks = self._table(row)
        if row.start + len(row.tokens) > len(blocks) * size or not blocks.all():
            raise Poisoned(f"step {step}: the table of request {row.id} does not cover its tokens")
        if row.start == 0:
            return 0
        whole, part = divmod(row.start, size)
        used = blocks[: whole + (part > 0)]
        filled = self._filled[used]
        if (filled[:whole] != size).any() or filled[-1] < (part or size):
            raise Poisoned(f"step {step}: request {row.id} reads a slot that was never written")
        begin = self._begin[used]
        if begin[0] != 0 or (begin[1:] != self._end[used[:-1]]).any():
            raise Poisoned(f"step {step}: request {row.id} reads slots of different prefixes")
        prefix = int(self._slots[used[-1], (part or size) - 1])
        own = self.witness(row.id) if self.witness is not None else None
        if own is not None and prefix != _hashes(own[: row.start], 0, 0)[-1]:
            raise Poisoned(f"step {step}: request {row.id} reads a prefix that is not its own")
        return prefix

    def _write(self, row: Row, before: int, step: int) -> int:
        """Fill the row's slots and return the hash of its whole prefix."""
        hashes = _hashes(row.tokens, row.start, before)
        done = 0
        while done < len(hashes):
            index, offset = divmod(row.start + done, self._block_size)
            block = row.table[index]
            if self._written_by.setdefault(block, row.id) != row.id:
                raise Poisoned(f"step {step}: request {row.id} writes slots of another row")
            count = min(self._block_size - offset, len(hashes) - done)
            self._slots[block, offset : offset + count] = hashes[done : done + count]
            if offset == 0:
                self._begin[block] = before if done == 0 else hashes[done - 1]
            done += count
            self._end[block] = hashes[done - 1]
            self._filled[block] = offset + count
            self._written_in[block] = step
        return int(hashes[-1])

    def _check_overwritten(self, row: Row, step: int) -> None:
        """Nobody may have read what another row of this step has written."""
        whole, part = divmod(row.start, self._block_size)
        if (self._written_in[self._table(row)[:whole]] == step).any() or (
            part and self._written_by.get(row.table[whole], row.id) != row.id
        ):
            raise Poisoned(f"step {step}: request {row.id} reads slots that this step writes")

    def _draw(self, row: Row, state: int) -> int | None:
        if not row.samples:
            return None
        if row.sampling.temperature > 0:
            state ^= _mix(_mix(row.sampling.seed & _MASK) + row.draw)
        return _mix(state) % self.drawn

    def _duration(self, plan: StepPlan) -> float:
        seconds = sum(step_terms(self.cost, plan))
        sigma = self.cost.sigma
        if sigma:
            z = random.Random(f"{self.seed}/{self.worker}/{plan.step}").gauss(0.0, 1.0)
            seconds *= math.exp(sigma * z - sigma * sigma / 2)
        return seconds


def _hashes(tokens: Tokens[int], start: int, before: int) -> Hashes:
    """Hash of the prefix ending at each token: a running sum of mixed (token, position), mod 2^64."""
    if len(tokens) == 1:  # a decode row: the same sum without eight array operations
        return np.array([(before + _mix(tokens[0] + (start << 32))) & _MASK], np.uint64)
    ids = np.frombuffer(tokens, np.uint32).astype(np.uint64)
    positions = np.arange(start, start + len(ids), dtype=np.uint64)
    mixed = ids + (positions << np.uint64(32)) + np.uint64(_SPREAD)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.cumsum(mixed, dtype=np.uint64) + np.uint64(before)


def _mix(value: int) -> int:
    """splitmix64's finaliser."""
    value = (value + _SPREAD) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
