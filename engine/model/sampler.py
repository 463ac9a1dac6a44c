"""Drawing the next token: greedy, or by temperature with draws that depend on (seed, index) alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from engine.request import Sampling


def draw(logits: torch.Tensor, sampling: Sequence[Sampling], indexes: Sequence[int]) -> list[int]:
    """One token for each row of ``logits`` ``[rows, vocabulary]``; ``indexes`` are the output positions.

    What is drawn for a row depends on nothing but its own logits, seed and index, so that batching,
    preemption and another worker change nothing (ENGINE E6).
    """
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, (how, index) in enumerate(zip(sampling, indexes, strict=True)):
        if how.temperature > 0:
            tokens[row] = _by_temperature(logits[row], how.temperature, uniform(how.seed, index))
    return tokens


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1), the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def _by_temperature(logits: torch.Tensor, temperature: float, u: float) -> int:
    """Inverse transform: the first token whose cumulative probability exceeds ``u``."""
    cumulative = torch.softmax(logits.double() / temperature, dim=-1).cumsum(dim=-1)
    token = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
    return min(int(token), len(logits) - 1)
