"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """What the gateway needs of a tokenizer. All methods are pure and thread-safe."""

    digest: str
    vocabulary: int
    """Ids below it are the model's; text may encode to others that the tokenizer alone knows."""
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    """Tokens that stand for no text."""

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without special tokens added; special tokens in ``text`` are recognised."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the span of characters of ``text`` that it covers."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens; incomplete UTF-8 at the end gives U+FFFD."""

    def piece(self, token: int) -> bytes:
        """What a token stands for, maybe a part of a character only; of a special token its name, and
        nothing for an id below ``vocabulary`` that is no token."""

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of a chat, with the generation prompt. Raises ValueError if the template
        refuses the messages."""
