"""Moves between tiers that are decided and that no step has taken yet (ENGINE E45).

Those down leave in the order in which they were decided, so many in a step. Sooner leaves what a step needs:
a block is saved before it is overwritten, and with one move go all that were decided before it, since it may
build on them. Those up are few, chosen for the next step, and leave behind those down that they wait for.

A prompt that takes a hundred blocks at once overwrites them chunk by chunk; their contents move down as
slowly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.runner.base import Move, Transfer


class Moves:
    """``per_step`` is how many leave down in a step that needs no more."""

    def __init__(self, per_step: int) -> None:
        self._per_step = per_step
        self._down: deque[Transfer] = deque()
        self._up: list[Transfer] = []
        self._first = 0
        """How many have left down: the number of the first that waits."""
        self._urgent = 0
        """Those with smaller numbers leave with the next step."""
        self._saves: dict[int, int] = {}
        """Device block -> number of the last move that is to save it."""

    def __bool__(self) -> bool:
        return bool(self._down or self._up)

    @property
    def decided(self) -> int:
        """How many were ever decided down."""
        return self._first + len(self._down)

    @property
    def saves(self) -> bool:
        """Some block must not be overwritten yet."""
        return bool(self._saves)

    def down(self, move: Transfer) -> None:
        if move.move is Move.SAVE:
            self._saves[move.source] = self.decided
        self._down.append(move)

    def up(self, move: Transfer) -> None:
        self._up.append(move)

    def hurry(self) -> None:
        """All that is decided so far leaves with the next step."""
        self._urgent = self.decided

    def take(self, written: Iterable[int]) -> tuple[Transfer, ...]:
        """The moves of a step whose rows write these blocks, in order."""
        targets = (move.target for move in self._up if move.move is Move.LOAD)
        needed = [self._saves[block] for block in (*written, *targets) if block in self._saves]
        until = max(self._urgent, max(needed, default=-1) + 1)
        moves: list[Transfer] = []
        left = self._per_step
        while self._down and (self._first < until or left > 0 or self._down[0].move is Move.DROP):
            move = self._down.popleft()
            if move.move is Move.SAVE and self._saves[move.source] == self._first:
                del self._saves[move.source]
            self._first += 1
            left -= move.move is not Move.DROP
            moves.append(move)
        moves += self._up
        self._up = []
        return tuple(moves)
