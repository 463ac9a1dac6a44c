"""Attention in its plainest form: each sequence by itself, over K/V gathered from its blocks (E58)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.kv_memory import KvMemory


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a packed batch: its rows, and the positions that any of them sees."""

    first: int
    count: int
    """Rows ``first .. first + count`` of the batch."""
    blocks: torch.Tensor
    """int64 ids of the blocks that hold those positions."""
    skip: int
    """Positions at the front of the first block that no row sees any more."""
    length: int
    """Positions seen, from there to the last row's own."""
    mask: torch.Tensor | None
    """See ``window_mask``; made once a step, used in every layer."""


def span_of(
    first: int, count: int, start: int, table: torch.Tensor, block_size: int, window: int | None
) -> Span:
    """The span of rows ``first ..`` that are positions ``start .. start + count`` of the sequence whose
    position p lies in block ``table[p // block_size]``. A row sees ``window`` positions at most, its own
    included; only blocks that some row sees are named, so what attention costs is bounded by the window. The
    others stay the sequence's own until it ends: memory is not bounded by the window.
    """
    end = start + count
    begin = 0 if window is None else max(0, start + 1 - window)
    blocks = table[begin // block_size : -(-end // block_size)]
    assert end <= len(table) * block_size, "the table covers the chunk"
    return Span(first, count, blocks, begin % block_size, end - begin, window_mask(start, count, window))


def window_mask(start: int, count: int, window: int | None) -> torch.Tensor | None:
    """``[count, length]``, true where a row may look: row i at the ``window`` positions up to ``start + i``.
    Columns begin with the first position that row 0 sees::

        start 3, count 2:               1 1 1 1 .
                                        1 1 1 1 1

        start 3, count 3, window 2:     1 1 . .     positions 2 3 4 5
                                        . 1 1 .
                                        . . 1 1

    None where no mask is needed: one row sees all of them; a chunk at the start is plainly causal as long
    as it is no longer than the window.
    """
    if count == 1 or (start == 0 and (window is None or count <= window)):
        return None
    begin = 0 if window is None else max(0, start + 1 - window)
    rows = torch.arange(start, start + count).unsqueeze(1)
    columns = torch.arange(begin, start + count).unsqueeze(0)
    mask = columns <= rows
    return mask if window is None else mask & (columns > rows - window)


def attend(q: torch.Tensor, memory: KvMemory, layer: int, spans: Sequence[Span]) -> torch.Tensor:
    """Attention of packed queries ``[T, H, D]`` over the K/V in ``memory``; returns ``[T, H, D]``.

    K/V of the whole batch must have been written to ``layer`` before (E16): one sequence may read what
    another one of the same step has just computed.
    """
    out = torch.empty_like(q)
    for span in spans:
        k, v = memory.gather(layer, span.blocks, span.skip, span.length)
        rows = slice(span.first, span.first + span.count)
        out[rows] = _one_row(q[rows], k, v) if span.count == 1 else _chunk(q[rows], k, v, span.mask)
    return out


def _chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """``q`` [n, H, D] over ``k``, ``v`` [L, Hkv, D]."""
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
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
