"""What a test knows better than the worker: who may touch a block, and what each text must be.

The simulated runner checks what slots hold. Two mistakes leave the right bytes in place and would pass:
using a block after it was given back, and writing to one that belongs to somebody else by then. ``Leases``
finds those by watching blocks change hands; what a block held is unreadable from that moment on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.config import CostModel
from engine.kv.blocks import BlockPool
from engine.request import Request
from engine.runner.base import AdapterChange, Move, Row, StepPlan, Transfer
from engine.runner.simulated import Poisoned, SimulatedRunner


class Leases:
    """Follows every block from hand to hand: how often it was handed out, and how many slots from its
    beginning hold what was written, copied or loaded since then. Slots of the tiers below likewise."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.times = [0] * (pool.size + 1)
        self.valid = [0] * (pool.size + 1)
        self._before: dict[int, int] = {}
        """Of blocks handed out and not written since then: what they held, which may still be saved."""
        self._below: dict[int | bytes, int] = {}
        """Host slots by number and disk blocks by digest."""
        self._flying: dict[int, int] = {}
        hand_out = pool.allocate

        def allocate(count: int, now: int) -> list[int] | None:
            blocks = hand_out(count, now)
            for block in blocks or ():
                self.times[block] += 1
                self._before.setdefault(block, self.valid[block])
                self.valid[block] = 0
            return blocks

        pool.allocate = allocate  # type: ignore[method-assign]

    def departs(self, plan: StepPlan) -> None:
        """Everything that the step touches must be held by somebody, and what it reads be there."""
        for transfer in plan.transfers:
            self._move(transfer)
        self._flying = {block: self.times[block] for block in touched(plan)}
        for block in self._flying:
            if self.pool.ref[block] < 1:
                raise Poisoned(f"step {plan.step} is planned over block {block}, which nobody holds")
        for row in plan.rows:
            self._read(row, plan.step)
        for row in plan.rows:
            end = row.start + len(row.tokens)
            for index in range(row.start // self.block_size, -(-end // self.block_size)):
                self.valid[row.table[index]] = min(self.block_size, end - index * self.block_size)
                self._before.pop(row.table[index], None)

    def lands(self, plan: StepPlan) -> None:
        """Nothing that it touches may have gone to somebody else meanwhile, or might have."""
        fenced = {block for _, blocks in self.pool.fences for block in blocks}
        for block, times in self._flying.items():
            if self.times[block] != times:
                raise Poisoned(f"block {block} was handed on while step {plan.step} ran")
            if not self.pool.ref[block] and block not in fenced:
                raise Poisoned(f"block {block} was free while step {plan.step} ran")

    def spoil(self, rows: Iterable[Row], transfers: Iterable[Transfer] = ()) -> None:
        """What these rows computed and what these moves brought is worthless: nobody may read it."""
        for row in rows:
            for block in row.table[row.start // self.block_size :]:
                self.valid[block] = 0
        for transfer in transfers:
            self._put(transfer, 0)

    def _read(self, row: Row, step: int) -> None:
        if row.start + len(row.tokens) > len(row.table) * self.block_size:
            raise Poisoned(f"step {step}: the table of request {row.id} does not cover its tokens")
        for index in range(-(-row.start // self.block_size)):
            block = row.table[index]
            if self.valid[block] < min(self.block_size, row.start - index * self.block_size):
                raise Poisoned(
                    f"step {step}: request {row.id} reads block {block}, never written since it changed hands"
                )

    def _move(self, transfer: Transfer) -> None:
        source = transfer.source
        match transfer.move:
            case Move.COPY:
                self._put(transfer, self.valid[source])
            case Move.SAVE:
                self._put(transfer, self._before.get(source, self.valid[source]))
            case Move.LOAD | Move.SPILL:
                self._put(transfer, self._below.get(source, 0))
            case Move.FETCH:
                self._put(transfer, self._below.get(transfer.key, 0))

    def _put(self, transfer: Transfer, filled: int) -> None:
        match transfer.move:
            case Move.COPY | Move.LOAD:
                self.valid[transfer.target] = filled
                self._before.pop(transfer.target, None)
            case Move.SAVE | Move.FETCH:
                self._below[transfer.target] = filled
            case Move.SPILL:
                self._below[transfer.key] = filled


def touched(plan: StepPlan) -> set[int]:
    """Device blocks that the rows of a step read or write, and that moves fill."""
    blocks = {block for row in plan.rows for block in row.table}
    for transfer in plan.transfers:
        if transfer.move is Move.COPY:
            blocks.add(transfer.source)
        if transfer.move in (Move.COPY, Move.LOAD):
            blocks.add(transfer.target)
    return blocks


class Teacher:
    """What a request must say: computed alone, token by token, without pool, cache or scheduler."""

    BLOCK = 64

    def __init__(self, drawn: int) -> None:
        self._runner = SimulatedRunner(CostModel(), drawn=drawn)
        self._known: dict[object, array[int]] = {}

    def text(self, request: Request, choice: int, length: int) -> list[int]:
        """The first ``length`` output tokens of one choice."""
        key = (request.tokens.tobytes(), request.adapter, request.sampling, choice)
        known = self._known.setdefault(key, array("I"))
        if len(known) < length:
            known.extend(self._more(request, choice, known, length - len(known)))
        return list(known[:length])

    def _more(self, request: Request, choice: int, known: array[int], count: int) -> array[int]:
        blocks = (len(request.tokens) + len(known) + count) // self.BLOCK + 1
        self._runner.allocate(blocks, self.BLOCK)
        prompt, said, start = len(request.tokens), array("I"), 0
        loads = () if request.adapter is None else (AdapterChange(request.adapter, "/somewhere"),)
        tokens = request.tokens + known
        for index in range(len(known), len(known) + count):
            row = Row(
                request.id,
                start,
                tokens,
                tuple(range(1, blocks + 1)),
                samples=True,
                sampling=request.sampling,
                draw=index,
                choice=choice,
                adapter=request.adapter,
                prompt=prompt,
                known=request.tokens + known + said,
            )
            (token,) = self._runner.execute(StepPlan(index, (row,), adapters=loads)).tokens
            loads = ()
            assert token is not None
            start += len(tokens)
            tokens = array("I", [token])
            said.append(token)
        return said
