"""Llama: a decoder of RMSNorm, rotary grouped-query attention and SwiGLU, over a packed batch.

A step computes rows of many sequences at once. They are packed: one matrix ``[T, hidden]`` whose rows
are tokens, sequence after sequence, without padding, so that each layer is a few large matrix products
whatever mixture of prefill chunks and decodes the step holds. Only attention looks at sequences::

    tokens    a b c d | x | p q        T = 7
    positions 4 5 6 7 | 9 | 0 1        a chunk at an offset, a decode, the start of a prompt
    slots     where K/V of each token go in KvMemory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.attention.reference import Span, attend
from engine.model.kv_memory import KvMemory
from engine.model.linear import linear
from engine.model.llama_config import LlamaConfig


@dataclass(frozen=True, slots=True)
class Batch:
    """A packed step. ``tokens``, ``positions``, ``slots`` are int64 ``[T]``; spans cover the rows."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer, as ``[out, in]``; products over the same input are one matrix."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """``[(H + 2 Hkv) D, hidden]``."""
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """``[2 intermediate, hidden]``."""
    down: torch.Tensor


class Llama:
    """The model. ``tensors`` have Hugging Face's names and are complete and of the right shapes
    (engine.model.weights sees to that); all are used in ``dtype``."""

    def __init__(
        self, config: LlamaConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = config
        self.dtype = dtype

        def get(*names: str) -> torch.Tensor:
            parts = [tensors[f"{name}.weight"] for name in names]
            return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(dtype)

        self._embedding = get("model.embed_tokens")
        self._layers = [_layer(get, f"model.layers.{i}") for i in range(config.layers)]
        self._norm = get("model.norm")
        self._head = self._embedding if config.tied else get("lm_head")
        self._cos, self._sin = rope_tables(config.max_positions, config.head_size, config.rope_theta, dtype)

    def new_memory(self, blocks: int, block_size: int) -> KvMemory:
        """K/V memory in this model's shape and precision."""
        c = self.config
        return KvMemory(c.layers, c.kv_heads, c.head_size, blocks, block_size, self.dtype)

    def forward(self, batch: Batch, memory: KvMemory) -> torch.Tensor:
        """Hidden states ``[T, hidden]`` after the last norm. Writes K/V of all rows into ``memory``."""
        c = self.config
        cos, sin = self._cos[batch.positions].unsqueeze(1), self._sin[batch.positions].unsqueeze(1)
        hidden = self._embedding[batch.tokens]
        for index, layer in enumerate(self._layers):
            x = self._normed(hidden, layer.attention_norm)
            heads = linear(x, layer.qkv).view(-1, c.heads + 2 * c.kv_heads, c.head_size)
            turned = rotate(heads[:, : c.heads + c.kv_heads], cos, sin)
            q, k = turned[:, : c.heads], turned[:, c.heads :]
            memory.write(index, batch.slots, k, heads[:, c.heads + c.kv_heads :])
            attended = attend(q, memory, index, batch.spans)
            hidden = hidden + linear(attended.flatten(1), layer.output)
            gate, up = linear(self._normed(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(F.silu(gate) * up, layer.down)
        return self._normed(hidden, self._norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, vocabulary]`` in fp32 of some rows of ``forward``'s result. The largest product of
        a decode step by far: call it only for rows that sample."""
        return linear(hidden, self._head).float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.hidden,), weight, self.config.rms_eps)


def _layer(get: Callable[..., torch.Tensor], prefix: str) -> Layer:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return Layer(
        attention_norm=get(f"{prefix}.input_layernorm"),
        qkv=get(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        output=get(f"{attention}.o_proj"),
        mlp_norm=get(f"{prefix}.post_attention_layernorm"),
        gate_up=get(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=get(f"{mlp}.down_proj"),
    )


def rope_tables(
    positions: int, head_size: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin ``[positions, head_size]`` of rotary embedding: dimension i and i + head_size/2 turn
    together by ``position * theta ** (-2 i / head_size)`` (Su et al. 2021, in Hugging Face's order)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``x`` ``[T, heads, D]`` with ``cos``, ``sin`` ``[T, 1, D]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
