"""The shape of a decoder: all that tells Llama, Qwen2, Qwen3 and Mistral models apart. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


class ModelError(ValueError):
    """A model that this engine cannot serve. Each problem names file, finding and expectation."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE's frequencies for a context longer than the one trained first (``rope_type`` llama3)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    tied: bool
    """True: the output projection is the embedding."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before RoPE turns them."""
    rope_scaling: Llama3Scaling | None = None
    windows: tuple[int | None, ...] = ()
    """By layer, how many positions a row sees, its own included; None, or nothing at all: every one."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        layer += self.qkv_bias * self.head_size * (self.heads + 2 * self.kv_heads)
        layer += self.qk_norm * 2 * self.head_size
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Both K and V of one position in all layers (ENGINE E10)."""
        return 2 * self.layers * self.kv_heads * self.head_size * bytes_per_value

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None


TINY = DecoderConfig(
    vocabulary=259,
    hidden=64,
    intermediate=128,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=16,
    max_positions=8192,
    rms_eps=1e-5,
    rope_theta=10_000.0,
    tied=False,
)
"""The built-in random model; its tokenizer is the ByteTokenizer."""
