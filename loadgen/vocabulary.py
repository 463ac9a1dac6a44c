"""Words that are one token each, so that a prompt of n of them has n tokens.

`USUAL` is right for the usual byte-pair vocabularies. `vocabulary_of` picks words for the tokenizer of a
given ``tokenizer.json`` and proves that they are: then lengths are exact, not as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from tokenizers import Tokenizer

from loadgen.words import WORDS

MOST_PIECES = 256
"""One byte of a key's random stream chooses a piece."""
LEAST_PIECES = 16
"""With fewer, texts of different keys would often begin alike."""
NONCE_BITS = 32
_ENOUGH = 4096
"""Candidates of a vocabulary that are looked at, beside our own words."""
_SINGLES = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Vocabulary:
    """``pieces``, joined by ``between``, have as many tokens as there are pieces. The pieces are words
    with a space between them, or single characters with nothing between them."""

    pieces: tuple[str, ...]
    between: str = " "
    count: Callable[[str], int] | None = field(default=None, compare=False)
    """Tokens of a text that stands between two pieces; None = not known, and taken to be one."""

    @property
    def table(self) -> tuple[str, ...]:
        """The piece of each byte."""
        return tuple(self.pieces[byte % len(self.pieces)] for byte in range(MOST_PIECES))

    @property
    def nonce(self) -> int:
        """Pieces that together tell 2^32 nonces apart."""
        return math.ceil(NONCE_BITS / math.log2(len(self.pieces)))


USUAL = Vocabulary(WORDS[:MOST_PIECES])


def vocabulary_of(path: str | Path) -> Vocabulary:
    """Pieces for the tokenizer in a ``tokenizer.json``. Raises ValueError if there is no such file, if it
    is no tokenizer, or if text of an exact length cannot be made with it."""
    try:
        file = Path(path).expanduser()
        stat = file.stat()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (RuntimeError, ValueError) as error:  # a user who is not there, a zero byte
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return _vocabulary(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _vocabulary(file: Path, changed: int, size: int) -> Vocabulary:
    tokenizer = _read(file)
    for between, candidates in ((" ", _words(tokenizer)), ("", _SINGLES)):
        pieces = _single(tokenizer, candidates, between)
        if len(pieces) >= LEAST_PIECES and _holds(tokenizer, pieces, between):
            return Vocabulary(pieces, between, partial(_between, tokenizer, pieces[0] + between))
    raise ValueError(
        f"{file}: prompts of an exact length cannot be made: fewer than {LEAST_PIECES} words, and fewer than "
        f"{LEAST_PIECES} single characters, are always one token of this vocabulary; leave target.tokenizer "
        "out, and lengths are as usual"
    )


def _read(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{file}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _between(tokenizer: Tokenizer, before: str, text: str) -> int:
    """Tokens that ``text`` adds after a piece and what stands between."""
    return len(_ids(tokenizer, before + text)) - 1


def _words(tokenizer: Tokenizer) -> list[str]:
    """Our own words, then those that the vocabulary seems to have, by id."""
    known: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    found = (token.lstrip("Ġ▁") for token in sorted(known, key=lambda token: known[token]))
    own = (word for word in found if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())
    words = dict.fromkeys(WORDS)
    for word in own:
        if len(words) >= _ENOUGH:
            break
        words[word] = None
    return list(words)


def _single(tokenizer: Tokenizer, candidates: Sequence[str], between: str) -> tuple[str, ...]:
    """Those that are one token of their own, at the beginning of a text and after another piece."""
    found: dict[int, str] = {}
    alone = [piece for piece in candidates if len(_ids(tokenizer, piece)) == 1]
    for piece in alone:
        pair = _ids(tokenizer, alone[0] + between + piece)
        if len(pair) == 2:
            found.setdefault(pair[1], piece)
        if len(found) == MOST_PIECES:
            break
    return tuple(found.values())


def _holds(tokenizer: Tokenizer, pieces: Sequence[str], between: str) -> bool:
    """Whether a text in which every piece follows every piece has one token a piece."""
    order = list(_pairs(len(pieces)))
    return len(_ids(tokenizer, between.join(pieces[k] for k in order))) == len(order)


def _pairs(n: int) -> Iterator[int]:
    """0..n-1 so that each follows each, itself included, exactly once."""
    for a in range(n):
        yield a
        for b in range(a + 1, n):
            yield a
            yield b
    yield 0
