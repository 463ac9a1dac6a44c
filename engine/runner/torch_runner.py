"""Runs steps on a real model with torch, on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import torch

from engine.kv.disk import DiskStore
from engine.messages import DiskFault
from engine.model.attention.reference import Span, span_of
from engine.model.decoder import Batch, Decoder
from engine.model.grammar import Matchers
from engine.model.host_memory import HostMemory
from engine.model.kv_memory import KvMemory
from engine.model.lora import Share, load
from engine.model.sampler import Sampler
from engine.runner.adapters import Residents
from engine.runner.base import Row, StepPlan, StepResult
from engine.runner.moves import Mover


class TorchRunner:
    """A Runner over a Decoder. One step is one forward pass over all rows, packed.

    ``threads`` is set for the whole process: one runner a process. ``matchers`` keep outputs within their
    JSON schemas; without them a row with a schema fails. ``disk`` is the slowest tier, if there is one.
    """

    def __init__(
        self,
        model: Decoder,
        eos_ids: frozenset[int],
        threads: int = 1,
        matchers: Matchers | None = None,
        disk: DiskStore | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.eos_ids = eos_ids
        self.vocabulary = model.config.vocabulary
        self.max_positions = model.config.max_positions
        self._model = model
        self._sampler = Sampler(eos_ids, matchers)
        self.kv_bytes_per_token = model.config.kv_bytes_per_token(model.dtype.itemsize)
        self._memory: KvMemory | None = None
        self._mover: Mover | None = None
        self._disk = disk
        self._adapters = Residents(partial(load, config=model.config, dtype=model.dtype))

    def allocate(self, blocks: int, block_size: int, host_blocks: int = 0) -> None:
        """Make KV memory and host copies, in place of any before. Raises MemoryError with the size."""
        self._memory = self._mover = None
        with torch.inference_mode():
            self._memory = self._model.new_memory(blocks, block_size)
            self._mover = Mover(self._memory, HostMemory(self._memory, host_blocks), self._disk)

    @property
    def disk_fault(self) -> DiskFault | None:
        """How the disk fails at the moment; nothing can be wrong with one that is not there."""
        return None if self._disk is None else self._disk.fault

    @disk_fault.setter
    def disk_fault(self, fault: DiskFault | None) -> None:
        if self._disk is not None:
            self._disk.fault = fault

    @property
    def kv_bytes(self) -> int:
        """Size of the KV memory, the null block included; 0 before allocate()."""
        return 0 if self._memory is None else self._memory.nbytes

    def execute(self, plan: StepPlan) -> StepResult:
        assert self._memory is not None, "allocate() comes first"
        assert self._mover is not None, "it comes with the memory"
        lost, moving = self._mover.carry_out(plan.transfers)
        unloaded = self._adapters.change(plan.adapters)
        if not plan.rows:
            return StepResult((), unloaded=unloaded, lost=lost, moving=moving)
        with torch.inference_mode():
            batch = pack(plan.rows, self._memory.block_size, self._model.windows)
            batch = replace(batch, shares=self._shares(plan.rows))
            hidden = self._model.forward(batch, self._memory)
            lacking = self._adapters.lacking(plan.rows, unloaded)
            result = self._sample(plan.rows, hidden[batch.last], lacking)
            return replace(result, unloaded=unloaded, lost=lost, moving=moving)

    def _shares(self, rows: tuple[Row, ...]) -> tuple[Share, ...]:
        """What each adapter works on; the plan has the rows of one next to each other."""
        shares, first = [], 0
        for digest, group in groupby(rows, key=lambda row: row.adapter):
            end = first + sum(len(row.tokens) for row in group)
            adapter = self._adapters.get(digest)
            if adapter is not None:
                shares.append(Share(slice(first, end), adapter))
            first = end
        return tuple(shares)

    def _sample(self, rows: tuple[Row, ...], last: torch.Tensor, unusable: Mapping[int, str]) -> StepResult:
        """``last`` is the hidden state of each row's last token; a NaN anywhere before it reaches it
        through attention, so looking there finds every corrupted row (ENGINE E52). ``unusable`` rows have
        failed already, with a reason."""
        failed = {index for index, good in enumerate(_sound(last)) if not good}
        failed |= unusable.keys()
        asked = [index for index, row in enumerate(rows) if row.samples]
        if not asked:
            return StepResult((None,) * len(rows), failed=tuple(sorted(failed)), errors=unusable)
        logits = self._model.logits(last if len(asked) == len(rows) else last[torch.tensor(asked)])
        failed.update(index for index, good in zip(asked, _sound(logits), strict=True) if not good)
        sound = [index for index in asked if index not in failed]
        if len(sound) < len(asked):
            logits = logits[torch.tensor([index not in failed for index in asked])]
        drawn = dict(zip(sound, self._sampler.draw(logits, [rows[index] for index in sound]), strict=True))
        errors = {index: each.error for index, each in drawn.items() if each.error is not None}
        tokens: list[int | None] = [None] * len(rows)
        for index in drawn.keys() - errors.keys():
            tokens[index] = drawn[index].tokens[0]
        return StepResult(
            tuple(tokens),
            failed=tuple(sorted(failed | errors.keys())),
            errors={**unusable, **errors},
            own_fault=tuple(errors),
            forked={index: each.tokens[1:] for index, each in drawn.items() if len(each.tokens) > 1},
            logprobs={index: each.logprobs for index, each in drawn.items() if each.logprobs},
        )


def _sound(values: torch.Tensor) -> list[bool]:
    """Which rows hold numbers only: a sum with a NaN or an infinity in it is none itself. (Looking at each
    value takes 90 times as long on a CPU.)"""
    sound: list[bool] = values.sum(dim=-1, dtype=torch.float32).isfinite().tolist()
    return sound


def pack(rows: tuple[Row, ...], block_size: int, windows: Collection[int | None] = (None,)) -> Batch:
    """The rows of a plan as one packed batch, for a model whose layers have these windows."""
    tokens, positions, slots, last = [], [], [], []
    spans: dict[int | None, list[Span]] = {window: [] for window in windows}
    first = 0
    for row in rows:
        count = len(row.tokens)
        at = np.arange(row.start, row.start + count)
        table = np.asarray(row.table, dtype=np.int64)
        tokens.append(np.asarray(row.tokens, dtype=np.int64))
        positions.append(at)
        slots.append(table[at // block_size] * block_size + at % block_size)
        blocks = torch.from_numpy(table)
        for window, seen in spans.items():
            seen.append(span_of(first, count, row.start, blocks, block_size, window))
        first += count
        last.append(first - 1)
    return Batch(
        torch.from_numpy(np.concatenate(tokens)),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.concatenate(slots)),
        torch.tensor(last),
        {window: tuple(seen) for window, seen in spans.items()},
    )
