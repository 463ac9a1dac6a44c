"""Attention in its plainest form: each sequence by itself, over K/V gathered from its blocks (E58)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.kv_memory import KvMemory


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a packed batch: rows ``first .. first + count`` are its positions ``start ..``."""

    first: int
    count: int
    start: int
    blocks: torch.Tensor
    """int64 ids of the blocks that hold positions 0 .. start + count."""
    mask: torch.Tensor | None
    """See ``causal_mask``; made once a step, used in every layer."""

    @property
    def length(self) -> int:
        """Positions that the last row sees."""
        return self.start + self.count


def causal_mask(start: int, count: int) -> torch.Tensor | None:
    """``[count, start + count]``, true where row i may look: at positions up to ``start + i``.

    ::

        start 3, count 2:   1 1 1 1 .
                            1 1 1 1 1

    None where no mask is needed: one row sees all; a chunk at the start is plainly causal.
    """
    if count == 1 or start == 0:
        return None
    rows = torch.arange(start, start + count).unsqueeze(1)
    return torch.arange(start + count).unsqueeze(0) <= rows


def attend(q: torch.Tensor, memory: KvMemory, layer: int, spans: Sequence[Span]) -> torch.Tensor:
    """Attention of packed queries ``[T, H, D]`` over the K/V in ``memory``; returns ``[T, H, D]``.

    K/V of the whole batch must have been written to ``layer`` before (E16): one sequence may read what
    another one of the same step has just computed.
    """
    out = torch.empty_like(q)
    for span in spans:
        k, v = memory.gather(layer, span.blocks, span.length)
        rows = slice(span.first, span.first + span.count)
        out[rows] = _one_row(q[rows], k, v) if span.count == 1 else _chunk(q[rows], k, v, span)
    return out


def _chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, span: Span) -> torch.Tensor:
    """``q`` [n, H, D] over ``k``, ``v`` [L, Hkv, D]."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=span.mask,
        is_causal=span.mask is None,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


def _one_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same for a single query, which needs no mask: the heads that share a K/V head are laid out as
    the rows of one query, which spares the CPU kernel its copies of K and V (3 to 6 times in bf16)."""
    kv_heads = k.shape[1]
    out = F.scaled_dot_product_attention(
        q.view(1, kv_heads, -1, q.shape[-1]), k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
    )
    return out.reshape(q.shape)
