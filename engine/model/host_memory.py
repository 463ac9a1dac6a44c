"""Copies of KV blocks in host memory, where they wait to come back or to go to disk (ENGINE E45)."""

from __future__ import annotations

import torch

from engine.model.kv_memory import KvMemory


class HostMemory:
    """``slots`` copies of whole blocks, numbered from 1: ``[slots, layers, 2, B, Hkv, D]``, so that a slot is
    one run of bytes. Page-locked if the blocks lie on a GPU, so that copies need no detour.

    Raises MemoryError with the size. The pages are taken as they are first written.
    """

    def __init__(self, memory: KvMemory, slots: int) -> None:
        like = memory.block(0)
        try:
            self._slots = torch.empty((slots, *like.shape), dtype=like.dtype, pin_memory=like.is_cuda)
        except RuntimeError as error:  # what torch raises when malloc refuses
            size = slots * like.nbytes
            raise MemoryError(
                f"no memory for {slots} host copies of blocks ({size / 1e9:.1f} GB): set smaller cache.tiers"
            ) from error

    def __getitem__(self, slot: int) -> torch.Tensor:
        """What a slot holds, ``[layers, 2, B, Hkv, D]``."""
        return self._slots[slot - 1]

    def bytes(self, slot: int) -> memoryview:
        """The same memory as bytes, to read from and to write to."""
        return self[slot].flatten().view(torch.uint8).numpy().data
