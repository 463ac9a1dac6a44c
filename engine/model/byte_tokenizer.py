"""The tokenizer of the ``tiny`` model: every UTF-8 byte is a token."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from engine.model.chat import IM_END, IM_START, Messages, chatml

END_OF_TEXT = "<|endoftext|>"
SPECIALS = {END_OF_TEXT: 256, IM_START: 257, IM_END: 258}
VOCABULARY = 259

_NAMES = {token: name.encode() for name, token in SPECIALS.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(special) for special in SPECIALS) + ")")


class ByteTokenizer:
    """Ids 0..255 are bytes, then the special tokens ``<|endoftext|>``, ``<|im_start|>``, ``<|im_end|>``."""

    vocabulary = VOCABULARY
    eos_ids = frozenset({SPECIALS[IM_END]})
    special_ids = frozenset(SPECIALS.values())
    digest = hashlib.blake2b(repr(("bytes", SPECIALS)).encode(), digest_size=16).hexdigest()

    def encode(self, text: str) -> list[int]:
        """One id a byte; raises ValueError on a lone surrogate, which has no UTF-8 form."""
        ids: list[int] = []
        for piece in _SPLIT.split(text):
            special = SPECIALS.get(piece)
            ids.extend(piece.encode() if special is None else (special,))
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Each byte of a character carries the whole character's span."""
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        position = 0
        for piece in _SPLIT.split(text):
            special = SPECIALS.get(piece)
            if special is not None:
                ids.append(special)
                spans.append((position, position + len(piece)))
            else:
                for offset, character in enumerate(piece, position):
                    encoded = character.encode()
                    ids.extend(encoded)
                    spans.extend([(offset, offset + 1)] * len(encoded))
            position += len(piece)
        return ids, spans

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else _NAMES[token]

    def render_chat(self, messages: Messages) -> str:
        return chatml(messages)
