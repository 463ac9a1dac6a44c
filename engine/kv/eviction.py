"""Which cached block goes first (ENGINE E19), and the lists in which free blocks wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

EvictionRank = Callable[[int | None, int], tuple[int, int]]
"""(life in ns or None, time of release in ns) of a list's head -> sort key; the smallest goes first."""


def lru(life: int | None, released: int) -> tuple[int, int]:
    """Longest since its release goes first."""
    return 0, released


def ttl(life: int | None, released: int) -> tuple[int, int]:
    """Blocks without a promised life go first, then least life left."""
    return (0, released) if life is None else (1, released + life)


EVICTIONS: dict[str, EvictionRank] = {"lru": lru, "ttl": ttl}

PASSED_OVER = 8
"""At most so many blocks with a resident child are passed over in search of a victim (ENGINE E19)."""


class BlockList:
    """One doubly linked list through arrays that all lists of a pool share: O(1) everywhere."""

    __slots__ = ("_next", "_previous", "head", "length", "tail")

    def __init__(self, previous: list[int], following: list[int]) -> None:
        self._previous = previous
        self._next = following
        self.head = 0  # the null block is in no list, so 0 can mean "none"
        self.tail = 0
        self.length = 0

    def push_front(self, block: int) -> None:
        self._previous[block], self._next[block] = 0, self.head
        if self.head:
            self._previous[self.head] = block
        else:
            self.tail = block
        self.head = block
        self.length += 1

    def push_back(self, block: int) -> None:
        self._previous[block], self._next[block] = self.tail, 0
        if self.tail:
            self._next[self.tail] = block
        else:
            self.head = block
        self.tail = block
        self.length += 1

    def unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        if before:
            self._next[before] = after
        else:
            self.head = after
        if after:
            self._previous[after] = before
        else:
            self.tail = before
        self.length -= 1

    def __iter__(self) -> Iterator[int]:
        block = self.head
        while block:
            yield block
            block = self._next[block]
