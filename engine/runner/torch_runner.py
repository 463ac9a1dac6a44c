"""Runs steps on a real model with torch, on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from engine.model.attention.reference import Span, causal_mask
from engine.model.kv_memory import KvMemory
from engine.model.llama import Batch, Llama
from engine.model.sampler import draw
from engine.runner.base import Row, StepPlan, StepResult


class TorchRunner:
    """A Runner over a Llama. One step is one forward pass over all rows, packed.

    ``threads`` is set for the whole process: one runner a process.
    """

    def __init__(self, model: Llama, eos_ids: frozenset[int], threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.eos_ids = eos_ids
        self.vocabulary = model.config.vocabulary
        self.max_positions = model.config.max_positions
        self._model = model
        self._memory: KvMemory | None = None

    def allocate(self, blocks: int, block_size: int) -> None:
        """Make KV memory, in place of any before. Raises MemoryError with the size."""
        self._memory = None
        with torch.inference_mode():
            self._memory = self._model.new_memory(blocks, block_size)

    @property
    def kv_bytes(self) -> int:
        """Size of the KV memory, the null block included; 0 before allocate()."""
        return 0 if self._memory is None else self._memory.nbytes

    def execute(self, plan: StepPlan) -> StepResult:
        assert self._memory is not None, "allocate() comes first"
        if not plan.rows:
            return StepResult(())
        with torch.inference_mode():
            batch = pack(plan.rows, self._memory.block_size)
            hidden = self._model.forward(batch, self._memory)
            last = hidden[torch.tensor([span.first + span.count - 1 for span in batch.spans])]
            return self._sample(plan.rows, last)

    def _sample(self, rows: tuple[Row, ...], last: torch.Tensor) -> StepResult:
        """``last`` is the hidden state of each row's last token; a NaN anywhere before it reaches it
        through attention, so looking there finds every corrupted row (ENGINE E52)."""
        sound = last.isfinite().all(dim=-1).tolist()
        sampling = [index for index, row in enumerate(rows) if row.samples]
        tokens: list[int | None] = [None] * len(rows)
        if sampling:
            logits = self._model.logits(last if len(sampling) == len(rows) else last[torch.tensor(sampling)])
            drawn = draw(logits, [rows[i].sampling for i in sampling], [rows[i].draw for i in sampling])
            finite = logits.isfinite().all(dim=-1).tolist()
            for index, token, is_finite in zip(sampling, drawn, finite, strict=True):
                sound[index] = sound[index] and is_finite
                tokens[index] = token if sound[index] else None
        return StepResult(tuple(tokens), failed=tuple(i for i, good in enumerate(sound) if not good))


def pack(rows: tuple[Row, ...], block_size: int) -> Batch:
    """The rows of a plan as one packed batch."""
    tokens, positions, slots, spans = [], [], [], []
    first = 0
    for row in rows:
        count = len(row.tokens)
        at = np.arange(row.start, row.start + count)
        table = np.asarray(row.table, dtype=np.int64)[: -(-(row.start + count) // block_size)]
        assert (row.start + count) <= len(table) * block_size, "the table covers the chunk"
        tokens.append(np.asarray(row.tokens, dtype=np.int64))
        positions.append(at)
        slots.append(table[at // block_size] * block_size + at % block_size)
        mask = causal_mask(row.start, count)
        spans.append(Span(first, count, row.start, torch.from_numpy(table), mask))
        first += count
    return Batch(
        torch.from_numpy(np.concatenate(tokens)),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.concatenate(slots)),
        tuple(spans),
    )
