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
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from engine.config import CostModel, TiersConfig
from engine.messages import DiskFault
from engine.request import Logprob, Tokens
from engine.runner.adapters import Residents
from engine.runner.base import Move, Row, StepPlan, StepResult, Transfer
from engine.runner.cost import step_moving, step_terms

Hashes = npt.NDArray[np.uint64]
Blocks = npt.NDArray[np.int64]

NO_TIERS = TiersConfig()
_FAILS_BY = {Move.SPILL: DiskFault.FULL, Move.FETCH: DiskFault.CORRUPT}
KV_BYTES = 23_040
"""Per token, as SmolLM2-135M has it in bf16: 2 * 30 layers * 3 heads * 64 * 2 bytes (ENGINE E10)."""

_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Poisoned(Exception):
    """A step read a slot that does not hold its reader's own, earlier written prefix."""


class SimulatedRunner:
    """Runner over simulated KV memory.

    Text depends on the tokens, the sampling and nothing else: batching, chunking, hits, worker and
    ``seed`` change no token. ``seed``, ``worker`` and the step number key the noise of durations. Prompts
    may hold any id below ``vocabulary``; only ids below ``drawn`` are drawn.
    A read is checked to be *one* prefix of consecutive tokens, wholly written earlier. Two more things are
    checked where tests say them: ``witness`` (request id, choice -> all its tokens) what the reader's own
    prefix is, ``namespace`` (request id -> its root) under which root it was written.

    Per slot the hash of the prefix that ends there is kept; per block, so that reading a long context
    is cheap: the hash before its first slot, the hash after its last, how many slots are filled from
    its beginning, and who wrote to it last in which step; all that moves with a block from place to place.
    The hash of the empty prefix stands for all that K/V depends on beside tokens, so that it travels with
    every prefix: adapter and namespace.
    """

    def __init__(
        self,
        cost: CostModel,
        seed: int = 0,
        worker: int = 0,
        vocabulary: int = 1 << 31,
        drawn: int = 4096,
        max_positions: int = 1 << 20,
        tiers: TiersConfig = NO_TIERS,
    ) -> None:
        self.cost = cost
        self.seed = seed
        self.worker = worker
        self.vocabulary = vocabulary
        self.drawn = drawn
        self.max_positions = max_positions
        self.eos_ids: frozenset[int] = frozenset()
        self.witness: Callable[[int, int], Tokens[int] | None] | None = None
        self.namespace: Callable[[int], bytes] | None = None
        self.adapter_digest: Callable[[str], str] | None = None
        """Reads an adapter's folder; without it every one holds what it is said to hold."""
        self.tiers = tiers
        self.kv_bytes_per_token = KV_BYTES
        self.fails: Callable[[Transfer], bool] | None = None
        """A transfer for which this is true does not happen."""
        self.disk_fault: DiskFault | None = None
        self._adapters = Residents(self._load_adapter)
        self.allocate(0, 1)

    def allocate(self, blocks: int, block_size: int, host_blocks: int = 0) -> None:
        """KV memory for ``blocks`` usable blocks and the null block, and behind them host memory for
        ``host_blocks``; nothing is written yet."""
        self.block_size = block_size
        self._blocks, places = blocks, blocks + 1 + host_blocks
        self._slots = np.zeros((places, block_size), np.uint64)
        self._begin = np.zeros(places, np.uint64)
        self._end = np.zeros(places, np.uint64)
        self._filled = np.zeros(places, np.int64)
        self._written_in = np.full(places, -1, np.int64)
        self._disk: dict[bytes, tuple[Hashes, ...]] = {}
        self._written_by: dict[int, tuple[int, int]] = {}
        self._tables: dict[tuple[int, int], tuple[tuple[int, ...], Blocks]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Read, write and draw; raises Poisoned. Takes no time: ``duration`` says what it should take."""
        lost, moving = self._move(plan), self._moving(plan)
        unloaded = self._adapters.change(plan.adapters)
        lacking = self._adapters.lacking(plan.rows, unloaded)
        past = [self._read(row, plan.step) for row in plan.rows]
        self._written_by.clear()
        last = [self._write(row, before, plan.step) for row, before in zip(plan.rows, past, strict=True)]
        for row in plan.rows:
            self._check_overwritten(row, plan.step)
        drawn = [self._draw(row, state) for row, state in zip(plan.rows, last, strict=True)]
        asked = [(index, row.sampling.logprobs) for index, row in enumerate(plan.rows)]
        return StepResult(
            tuple(tokens[0] if tokens else None for tokens in drawn),
            self._duration(plan) + moving,
            lost=lost,
            moving=moving,
            failed=tuple(lacking),
            errors=lacking,
            unloaded=unloaded,
            forked={index: drawn[index][1:] for index, row in enumerate(plan.rows) if row.forks},
            logprobs={
                index: tuple(_certain(token, top) for token in drawn[index])
                for index, top in asked
                if top is not None
            },
        )

    def _load_adapter(self, folder: str, digest: str) -> None:
        if self.adapter_digest is not None and self.adapter_digest(folder) != digest:
            raise ValueError(f"{folder}: its content has changed since it was registered")

    def _move(self, plan: StepPlan) -> tuple[int, ...]:
        """Carry out the transfers; returns those that did not happen."""
        loaded = {move.target for move in plan.transfers if move.move is Move.LOAD}
        if loaded and not loaded.isdisjoint(block for row in plan.rows for block in row.table):
            raise Poisoned(f"step {plan.step}: a row has a block in its table that is only being loaded")
        return tuple(index for index, move in enumerate(plan.transfers) if not self._moved(move))

    def _moved(self, transfer: Transfer) -> bool:
        """False if it did not happen; what it should have filled holds nothing then."""
        move, key = transfer.move, transfer.key
        source = transfer.source + self._blocks * (move in (Move.LOAD, Move.SPILL))
        target = transfer.target + self._blocks * (move in (Move.SAVE, Move.FETCH))
        held = (self._slots, self._begin, self._end, self._filled, self._written_in)
        fails = self.disk_fault is not None and _FAILS_BY.get(move) is self.disk_fault
        fails = fails or (self.fails is not None and self.fails(transfer))
        kept = self._disk.get(key) if move is Move.FETCH else tuple(each[source].copy() for each in held)
        if move in (Move.SPILL, Move.DROP):
            self._disk.pop(key, None)
        if kept is None or fails:
            if move not in (Move.SPILL, Move.DROP):
                self._filled[target] = 0
            return False
        if move is Move.SPILL:
            self._disk[key] = kept
        elif move is not Move.DROP:
            for each, value in zip(held, kept, strict=True):
                each[target] = value
        return True

    def _table(self, row: Row) -> Blocks:
        """The row's table as an array, made once per change of the table."""
        known = self._tables.get((row.id, row.choice))
        if known is not None and known[0] is row.table:
            return known[1]
        if len(self._tables) > 1024:
            self._tables.clear()
        blocks = np.array(row.table, np.int64)
        self._tables[row.id, row.choice] = row.table, blocks
        return blocks

    def _read(self, row: Row, step: int) -> int:
        """Check all slots before ``start`` and return the hash of the prefix they hold."""
        size = self.block_size
        blocks = self._table(row)
        if row.start + len(row.tokens) > len(blocks) * size or not blocks.all():
            raise Poisoned(f"step {step}: the table of request {row.id} does not cover its tokens")
        origin = self._origin(row)
        if row.start == 0:
            return origin
        whole, part = divmod(row.start, size)
        used = blocks[: whole + (part > 0)]
        filled = self._filled[used]
        if (filled[:whole] != size).any() or filled[-1] < (part or size):
            raise Poisoned(f"step {step}: request {row.id} reads a slot that was never written")
        begin = self._begin[used]
        if begin[0] != origin or (begin[1:] != self._end[used[:-1]]).any():
            raise Poisoned(f"step {step}: request {row.id} reads slots of different prefixes")
        prefix = int(self._slots[used[-1], (part or size) - 1])
        own = self.witness(row.id, row.choice) if self.witness is not None else None
        if own is not None and prefix != _hashes(own[: row.start], 0, origin)[-1]:
            raise Poisoned(f"step {step}: request {row.id} reads a prefix that is not its own")
        return prefix

    def _origin(self, row: Row) -> int:
        """Hash of the empty prefix."""
        adapter = 0 if row.adapter is None else _number(row.adapter.encode())
        return (adapter + self._namespace(row)) & _MASK

    def _namespace(self, row: Row) -> int:
        return 0 if self.namespace is None else _number(self.namespace(row.id))

    def _write(self, row: Row, before: int, step: int) -> int:
        """Fill the row's slots and return the hash of its whole prefix."""
        hashes = _hashes(row.tokens, row.start, before)
        done, writer = 0, (row.id, row.choice)
        while done < len(hashes):
            index, offset = divmod(row.start + done, self.block_size)
            block = row.table[index]
            if self._written_by.setdefault(block, writer) != writer:
                raise Poisoned(f"step {step}: request {row.id} writes slots of another row")
            count = min(self.block_size - offset, len(hashes) - done)
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
        whole, part = divmod(row.start, self.block_size)
        reader = row.id, row.choice
        if (self._written_in[self._table(row)[:whole]] == step).any() or (
            part and self._written_by.get(row.table[whole], reader) != reader
        ):
            raise Poisoned(f"step {step}: request {row.id} reads slots that this step writes")

    def _draw(self, row: Row, state: int) -> tuple[int, ...]:
        """Its own token, then those of its forks."""
        if not row.samples:
            return ()
        state = (state - self._namespace(row)) & _MASK  # isolation changes no text
        return tuple(self._token(row, state, choice) for choice in (row.choice, *range(1, row.forks + 1)))

    def _token(self, row: Row, state: int, choice: int) -> int:
        how = row.sampling
        if how.temperature > 0:
            key = _mix(how.seed & _MASK)
            state ^= _mix((_mix(key + choice) if choice else key) + row.draw)
        first = _mix(state) % self.drawn
        if row.draw >= how.min_tokens:
            return first
        ends = self.eos_ids.union(how.stop_ids)  # none of them yet, unless there is nothing else
        following = ((first + away) % self.drawn for away in range(self.drawn))
        return next((token for token in following if token not in ends), first)

    def _moving(self, plan: StepPlan) -> float:
        if not plan.transfers:
            return 0.0
        return sum(step_moving(self.tiers, self.block_size * self.kv_bytes_per_token, plan.transfers))

    def _duration(self, plan: StepPlan) -> float:
        """Seconds of everything but its transfers."""
        seconds = sum(step_terms(self.cost, plan)) if plan.rows or plan.adapters else 0.0
        sigma = self.cost.sigma
        if sigma:
            z = random.Random(f"{self.seed}/{self.worker}/{plan.step}").gauss(0.0, 1.0)
            seconds *= math.exp(sigma * z - sigma * sigma / 2)
        return seconds


def _hashes(tokens: Tokens[int] | tuple[int, ...], start: int, before: int) -> Hashes:
    """Hash of the prefix ending at each token: a running sum of mixed (token, position), mod 2^64."""
    if len(tokens) == 1:  # a decode row: the same sum without eight array operations
        return np.array([(before + _mix(tokens[0] + (start << 32))) & _MASK], np.uint64)
    ids = np.asarray(tokens, np.uint64)
    positions = np.arange(start, start + len(ids), dtype=np.uint64)
    mixed = ids + (positions << np.uint64(32)) + np.uint64(_SPREAD)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.cumsum(mixed, dtype=np.uint64) + np.uint64(before)


def _certain(token: int, top: int) -> Logprob:
    """Once its key is known a draw leaves nothing to chance."""
    return Logprob(token, 0.0, (token,)[:top], (0.0,)[:top])


def _number(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


def _mix(value: int) -> int:
    """splitmix64's finaliser."""
    value = (value + _SPREAD) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
