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

_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_UNWRITTEN = -1


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
    ``seed`` change no token. ``seed``, ``worker`` and the step number key the noise of durations.
    Set ``witness`` (request id -> all its tokens) to check every read against the reader's own tokens
    too; without it a read is checked to be *one* prefix of consecutive tokens, wholly written earlier.
    """

    def __init__(
        self,
        cost: CostModel,
        seed: int = 0,
        worker: int = 0,
        vocabulary: int = 4096,
        max_positions: int = 1 << 20,
    ) -> None:
        self.cost = cost
        self.seed = seed
        self.worker = worker
        self.vocabulary = vocabulary
        self.max_positions = max_positions
        self.eos_ids: frozenset[int] = frozenset()
        self.witness: Callable[[int], Tokens[int] | None] | None = None
        self._block_size = 0
        self._prefix: Hashes = np.zeros(0, np.uint64)
        self._before: Hashes = np.zeros(0, np.uint64)
        self._written: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def allocate(self, blocks: int, block_size: int) -> None:
        """KV memory for ``blocks`` usable blocks and the null block: per slot the hash of the prefix
        that ends there, the hash before it, and the step that wrote it."""
        slots = (blocks + 1) * block_size
        self._block_size = block_size
        self._prefix = np.zeros(slots, np.uint64)
        self._before = np.zeros(slots, np.uint64)
        self._written = np.full(slots, _UNWRITTEN, np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        """Read, write and draw; raises Poisoned. Takes no time: ``duration`` says what it should take."""
        past = [self._read(row, plan.step) for row in plan.rows]
        touched: set[int] = set()
        for row, hash in zip(plan.rows, past, strict=True):
            self._write(row, hash, plan.step, touched)
        for row in plan.rows:  # nobody may have read what this step has overwritten
            if row.start and (self._written[self._slots(row, 0, row.start)] == plan.step).any():
                raise Poisoned(f"step {plan.step}: request {row.id} reads slots that this step writes")
        return StepResult(tuple(self._draw(row) for row in plan.rows), self._duration(plan))

    def _slots(self, row: Row, start: int, end: int) -> npt.NDArray[np.int64]:
        size = self._block_size
        first = start // size
        blocks = np.array(row.table[first : -(-end // size)], np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).ravel()
        return slots[start - first * size : end - first * size]

    def _read(self, row: Row, step: int) -> int:
        """Check all slots before ``start`` and return the hash of the prefix they hold."""
        if row.start + len(row.tokens) > len(row.table) * self._block_size or 0 in row.table:
            raise Poisoned(f"step {step}: the table of request {row.id} does not cover its tokens")
        if row.start == 0:
            return 0
        slots = self._slots(row, 0, row.start)
        prefix = self._prefix[slots]
        if (self._written[slots] == _UNWRITTEN).any():
            raise Poisoned(f"step {step}: request {row.id} reads a slot that was never written")
        if self._before[slots[0]] != 0 or (self._before[slots[1:]] != prefix[:-1]).any():
            raise Poisoned(f"step {step}: request {row.id} reads slots of different prefixes")
        own = self.witness(row.id) if self.witness is not None else None
        if own is not None and prefix[-1] != _hashes(own[: row.start], 0, 0)[-1]:
            raise Poisoned(f"step {step}: request {row.id} reads a prefix that is not its own")
        return int(prefix[-1])

    def _write(self, row: Row, before: int, step: int, touched: set[int]) -> None:
        slots = self._slots(row, row.start, row.start + len(row.tokens))
        named = set(slots.tolist())
        if named & touched:
            raise Poisoned(f"step {step}: request {row.id} writes slots of another row")
        touched |= named
        hashes = _hashes(row.tokens, row.start, before)
        self._prefix[slots] = hashes
        self._before[slots[0]] = before
        self._before[slots[1:]] = hashes[:-1]
        self._written[slots] = step

    def _draw(self, row: Row) -> int | None:
        if not row.samples:
            return None
        last = row.start + len(row.tokens) - 1
        slot = row.table[last // self._block_size] * self._block_size + last % self._block_size
        state = int(self._prefix[slot])
        if row.sampling.temperature > 0:
            state ^= _mix(_mix(row.sampling.seed & _MASK) + row.draw)
        return _mix(state) % self.vocabulary

    def _duration(self, plan: StepPlan) -> float:
        seconds = sum(step_terms(self.cost, plan))
        sigma = self.cost.sigma
        if sigma:
            z = random.Random(f"{self.seed}/{self.worker}/{plan.step}").gauss(0.0, 1.0)
            seconds *= math.exp(sigma * z - sigma * sigma / 2)
        return seconds


def _hashes(tokens: Tokens[int], start: int, before: int) -> Hashes:
    """Hash of the prefix ending at each token: a running sum of mixed (token, position), mod 2^64."""
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
