"""The tensor that holds K and V of every cached position."""

from __future__ import annotations

import torch


class KvMemory:
    """K/V as ``[layers, 2, blocks + 1, B, Hkv, D]`` (ENGINE E57); this class alone knows the layout.

    Block 0 is the null block: it exists so that ids need no shift, and is never read or written by a
    sequence. A *slot* is ``block * B + offset``. Memory is not cleared on reuse: who reads must only
    name positions that were written.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_size: int, blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        shape = (layers, 2, blocks + 1, block_size, kv_heads, head_size)
        try:
            self._tensor = torch.zeros(shape, dtype=dtype)
        except RuntimeError as error:  # what torch raises when malloc refuses
            size = dtype.itemsize * 2 * layers * (blocks + 1) * block_size * kv_heads * head_size
            raise MemoryError(
                f"no memory for {blocks} KV blocks ({size / 1e9:.1f} GB): set a smaller memory.kv_blocks"
            ) from error
        self.block_size = block_size
        self._slots = self._tensor.view(layers, 2, (blocks + 1) * block_size, kv_heads, head_size)

    @property
    def nbytes(self) -> int:
        return self._tensor.nbytes

    def block(self, block: int) -> torch.Tensor:
        """All that a block holds, ``[layers, 2, B, Hkv, D]``: a view to read from and to write to."""
        return self._tensor[:, :, block]

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put ``k`` and ``v`` ``[T, Hkv, D]`` into ``slots`` ``[T]`` (int64, all different)."""
        self._slots[layer, 0].index_copy_(0, slots, k)
        self._slots[layer, 1].index_copy_(0, slots, v)

    def gather(
        self, layer: int, blocks: torch.Tensor, skip: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V ``[length, Hkv, D]`` of the positions that lie in ``blocks`` (int64), in order, without
        the first ``skip``."""
        k, v = self._tensor[layer].index_select(1, blocks).flatten(1, 2)[:, skip : skip + length]
        return k, v
