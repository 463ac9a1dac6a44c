"""What an endless cache of everything sent before would hold of a prompt.

A tree of pieces: a message, or a run of prefix blocks. A run is one edge until a prompt leaves it in the
middle, so that memory grows with what is new in each prompt and not with its length.

```
root ──blocks 0..99──> · ──blocks 100..129──> ·        (A) 0..129
                       └──blocks 400..420──> ·         (B) 0..99, 400..420: 100 blocks are held
```
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from loadgen.shot import Part


@dataclass(frozen=True, slots=True)
class _Piece:
    """``count`` things in a row of ``tokens`` each; the k-th is (``what``, ``first`` + k)."""

    what: Hashable
    first: int
    count: int
    tokens: int
    answer: bool = False
    """A live answer: its tokens were computed when it was given."""


class Prefixes:
    def __init__(self) -> None:
        self._edges: dict[tuple[int, Hashable, int], tuple[int, int]] = {}
        """(node, what, first) -> (count, node at the end)."""
        self._nodes = 0
        self._roots: dict[Hashable, int] = {}

    def add(self, domain: Hashable, prompt: tuple[Part, ...]) -> int:
        """Tokens of ``prompt`` that lead it and were there before; then it is there too. Nothing is shared
        across ``domain``."""
        node = self._roots.get(domain)
        if node is None:
            node = self._roots[domain] = self._new()
        held, following = 0, True
        for part in prompt:
            for piece in _pieces(part):
                node, known = self._walk(node, piece)
                if following and piece.answer and held:
                    known = piece.count
                held += known * piece.tokens if following else 0
                following = following and known == piece.count
        return held

    def _walk(self, node: int, piece: _Piece) -> tuple[int, int]:
        """The node behind ``piece``, and how much of it was there already."""
        first, left = piece.first, piece.count
        while left:
            edge = self._edges.get((node, piece.what, first))
            if edge is None:
                end = self._new()
                self._edges[node, piece.what, first] = left, end
                return end, piece.count - left
            length, end = edge
            if left < length:
                end = self._split(node, piece.what, first, left)
            step = min(left, length)
            node, first, left = end, first + step, left - step
        return node, piece.count

    def _split(self, node: int, what: Hashable, first: int, at: int) -> int:
        length, end = self._edges[node, what, first]
        middle = self._new()
        self._edges[node, what, first] = at, middle
        self._edges[middle, what, first + at] = length - at, end
        return middle

    def _new(self) -> int:
        self._nodes += 1
        return self._nodes


def _pieces(part: Part) -> Iterator[_Piece]:
    if not part.blocks:
        yield _Piece(part, 0, 1, part.tokens, part.answer_of is not None)
        return
    what, left = (part.role, part.text_key, part.block_tokens), part.tokens
    for first, count in part.blocks:
        full = min(count, left // part.block_tokens)
        if full:
            yield _Piece(what, first, full, part.block_tokens)
            left -= full * part.block_tokens
        if full < count and left:
            # The last block, cut to what is left of the prompt: only the very same cut is the same text.
            yield _Piece(replace(part, tokens=left, blocks=((first + full, 1),)), 0, 1, left)
            return
