"""A decoder of RMSNorm, rotary grouped-query attention and SwiGLU, over a packed batch.

Llama, Qwen2, Qwen3 and Mistral are this one network; what they differ in stands in the DecoderConfig.

A step computes rows of many sequences at once. They are packed: one matrix ``[T, hidden]`` whose rows
are tokens, sequence after sequence, without padding, so that each layer is a few large matrix products
whatever mixture of prefill chunks and decodes the step holds. Only attention looks at sequences::

    tokens    a b c d | x | p q        T = 7
    positions 4 5 6 7 | 9 | 0 1        a chunk at an offset, a decode, the start of a prompt
    slots     where K/V of each token go in KvMemory
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.model.attention.reference import Span, attend
from engine.model.decoder_config import DecoderConfig, Llama3Scaling
from engine.model.kv_memory import KvMemory
from engine.model.linear import linear
from engine.model.lora import Share, adapt


@dataclass(frozen=True, slots=True)
class Batch:
    """A packed step. ``tokens``, ``positions``, ``slots`` are int64 ``[T]``; ``last`` int64 ``[rows]``: where
    each sequence ends. ``spans``: the sequences as layers with that window see them (None: without one).
    ``shares``: the rows that LoRA adapters work on."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    last: torch.Tensor
    spans: Mapping[int | None, tuple[Span, ...]]
    shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer, as ``[out, in]``; products over the same input are one matrix."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    """``[(H + 2 Hkv) D, hidden]``."""
    qkv_bias: torch.Tensor | None
    head_norm: torch.Tensor | None
    """``[H + Hkv, D]``: the norm of every head of q, then of k."""
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """``[2 intermediate, hidden]``."""
    down: torch.Tensor
    window: int | None
    """How many positions a row sees; None: all."""


class Decoder:
    """The model. ``tensors`` have Hugging Face's names and are complete and of the right shapes
    (engine.model.weights sees to that). All are used in ``dtype`` and taken out of ``tensors``, so that no
    more than a layer lies in memory twice while they are joined."""

    def __init__(
        self, config: DecoderConfig, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = config
        self.dtype = dtype

        def take(name: str) -> torch.Tensor:
            return tensors.pop(name).to(dtype)

        self._embedding = take("model.embed_tokens.weight")
        self._layers = [_layer(config, take, index) for index in range(config.layers)]
        self._norm = take("model.norm.weight")
        self._head = self._embedding if config.tied else take("lm_head.weight")
        self._cos, self._sin = rope_tables(config, dtype)
        self.windows = frozenset(layer.window for layer in self._layers)
        """Every different window of its layers; a Batch needs spans for each."""

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
            heads = _product(batch, index, "qkv", x, layer.qkv, layer.qkv_bias)
            heads = heads.view(-1, c.heads + 2 * c.kv_heads, c.head_size)
            turned = rotate(self._head_normed(heads[:, : c.heads + c.kv_heads], layer), cos, sin)
            q, k = turned[:, : c.heads], turned[:, c.heads :]
            memory.write(index, batch.slots, k, heads[:, c.heads + c.kv_heads :])
            attended = attend(q, memory, index, batch.spans[layer.window]).flatten(1)
            hidden = hidden + _product(batch, index, "output", attended, layer.output)
            x = self._normed(hidden, layer.mlp_norm)
            gate, up = _product(batch, index, "gate_up", x, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + _product(batch, index, "down", F.silu(gate) * up, layer.down)
        return self._normed(hidden, self._norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[rows, vocabulary]`` in fp32 of some rows of ``forward``'s result. The largest product of
        a decode step by far: call it only for rows that sample."""
        return linear(hidden, self._head).float()

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.hidden,), weight, self.config.rms_eps)

    def _head_normed(self, heads: torch.Tensor, layer: Layer) -> torch.Tensor:
        if layer.head_norm is None:
            return heads
        return F.rms_norm(heads, (self.config.head_size,), None, self.config.rms_eps) * layer.head_norm


def _product(
    batch: Batch,
    layer: int,
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``x`` [T, in] through one product of a layer, with what the adapters of its rows add: [T, out]."""
    return adapt(batch.shares, layer, name, x, linear(x, weight, bias))


def _layer(config: DecoderConfig, take: Callable[[str], torch.Tensor], index: int) -> Layer:
    prefix = f"model.layers.{index}"

    def joined(*names: str, of: str = "weight") -> torch.Tensor:
        parts = [take(f"{prefix}.{name}.{of}") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return Layer(
        attention_norm=joined("input_layernorm"),
        qkv=joined(*qkv),
        qkv_bias=joined(*qkv, of="bias") if config.qkv_bias else None,
        head_norm=_head_norm(config, take, prefix) if config.qk_norm else None,
        output=joined("self_attn.o_proj"),
        mlp_norm=joined("post_attention_layernorm"),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
        window=config.window(index),
    )


def _head_norm(config: DecoderConfig, take: Callable[[str], torch.Tensor], prefix: str) -> torch.Tensor:
    q, k = (take(f"{prefix}.self_attn.{name}_norm.weight") for name in "qk")
    return torch.cat([q.expand(config.heads, -1), k.expand(config.kv_heads, -1)])


def rope_tables(config: DecoderConfig, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin ``[max_positions, D]`` of rotary embedding: dimension i and i + D/2 turn together by
    ``position * theta ** (-2 i / D)`` (Su et al. 2021, in Hugging Face's order), scaled or not."""
    size = config.head_size
    frequencies = 1.0 / config.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if config.rope_scaling is not None:
        frequencies = scaled(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def scaled(frequencies: torch.Tensor, how: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1's RoPE: waves that fit ``high_freq_factor`` times into the original context stay, those
    that fit less than ``low_freq_factor`` times are slowed down by ``factor``, between them it is mixed."""
    fits = how.original_positions * frequencies / (2 * math.pi)
    kept = (fits - how.low_freq_factor) / (how.high_freq_factor - how.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequencies / how.factor + kept * frequencies


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``x`` ``[T, heads, D]`` with ``cos``, ``sin`` ``[T, 1, D]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
