"""The tokenizer of the simulated model: a word is a token.

Ids below 4096 are the words that a simulated runner can generate, then come three special tokens, and
every other piece of text gets a stable hash above them, below 2**31. So any text has ids, ids of equal
text are equal in every process, and a generated answer that comes back in the next turn of a session
has the ids that it was generated with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from threading import Lock

from engine.model.chat import IM_END, IM_START, Messages, chatml

GENERATED = 4096
"""A simulated runner draws its tokens from [0, GENERATED)."""
SPECIALS = {"<|endoftext|>": GENERATED, IM_START: GENERATED + 1, IM_END: GENERATED + 2}
HASHED = GENERATED + len(SPECIALS)
VOCABULARY = 1 << 31
REMEMBERED = 1 << 17
"""Pieces outside the generated vocabulary that decode() still knows, the newest ones."""

_SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeio"]
_NAMES = {token: name for name, token in SPECIALS.items()}
_SPLIT = re.compile("(" + "|".join(re.escape(special) for special in SPECIALS) + ")")
# A word takes the space before it along, so that a prompt of n words is n tokens. The cap keeps a long
# text without spaces from counting as one token.
_PIECE = re.compile(r" ?\S{1,32}|\s")


def _word(token: int) -> str:
    """The generated word of an id: 64 x 64 two-syllable words, with the space that parts them."""
    return " " + _SYLLABLES[token >> 6] + _SYLLABLES[token & 63]


class WordsTokenizer:
    """Words as tokens; decode(encode(x)) == x for text of which at most REMEMBERED pieces are newer."""

    vocabulary = VOCABULARY
    eos_ids = frozenset({SPECIALS[IM_END]})
    special_ids = frozenset(SPECIALS.values())
    digest = hashlib.blake2b(
        repr(("words", GENERATED, SPECIALS, _SYLLABLES, _PIECE.pattern)).encode(), digest_size=16
    ).hexdigest()

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._words = {token: _word(token) for token in range(GENERATED)}
        self._known = {piece: token for token, piece in self._words.items()} | SPECIALS
        self._hashed: dict[str, int] = {}
        self._pieces: dict[int, str] = {}
        self._remembered = remembered
        self._lock = Lock()

    def encode(self, text: str) -> list[int]:
        known, hashed = self._known, self._hashed
        ids = []
        for piece in _pieces(text):
            token = known.get(piece)
            if token is None:
                token = hashed.get(piece)
            ids.append(self._remember(piece) if token is None else token)
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        spans = []
        position = 0
        for piece in _pieces(text):
            spans.append((position, position + len(piece)))
            position += len(piece)
        return self.encode(text), spans

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; a piece that is no longer remembered gives U+FFFD."""
        words, pieces = self._words, self._pieces
        return "".join(words.get(i) or pieces.get(i, "\ufffd") for i in ids if not GENERATED <= i < HASHED)

    def piece(self, token: int) -> bytes:
        return (_NAMES.get(token) or self.decode((token,))).encode("utf-8", "surrogatepass")

    def render_chat(self, messages: Messages) -> str:
        return chatml(messages)

    def _remember(self, piece: str) -> int:
        digest = hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        token = HASHED + int.from_bytes(digest, "little") % (VOCABULARY - HASHED)
        with self._lock:
            if len(self._hashed) >= self._remembered:
                oldest = next(iter(self._hashed))
                self._pieces.pop(self._hashed.pop(oldest), None)
            self._hashed[piece] = token
            self._pieces[token] = piece
        return token


def _pieces(text: str) -> Iterator[str]:
    for part in _SPLIT.split(text):
        if part in SPECIALS:
            yield part
        elif part:
            yield from _PIECE.findall(part)
