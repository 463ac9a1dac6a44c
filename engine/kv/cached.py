"""Free blocks that still hold a digest: in which list each waits, whose life ends when, who goes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from engine.kv.uses import Eviction, Key, Uses

K = TypeVar("K")

PASSED_OVER = 8
"""At most so many blocks with a resident child are passed over in search of a victim (ENGINE E19)."""


class BlockList:
    """One doubly linked list through arrays that several lists share: O(1) everywhere."""

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

    def after(self, block: int) -> int:
        """The one behind ``block``, 0 if it is the last."""
        return self._next[block]

    def __iter__(self) -> Iterator[int]:
        block = self.head
        while block:
            yield block
            block = self._next[block]


class Lists(Generic[K]):
    """Lists by key over the same blocks, each block in one of them at most; empty ones are not kept."""

    def __init__(self, blocks: int) -> None:
        self.lists: dict[K, BlockList] = {}
        self._links = [0] * (blocks + 1), [0] * (blocks + 1)

    def push(self, key: K, block: int) -> int:
        """Put it at the end of a list; returns the list's new length."""
        if key not in self.lists:
            self.lists[key] = BlockList(*self._links)
        self.lists[key].push_back(block)
        return self.lists[key].length

    def unlink(self, key: K, block: int) -> int:
        """Take it out of a list; returns what is left there."""
        blocks = self.lists[key]
        blocks.unlink(block)
        if not blocks.length:
            del self.lists[key]
        return blocks.length


class CachedBlocks:
    """One list per key of the eviction policy, least recently released first, and beside them one per life,
    in which the first to expire is first. Times in ns.

    ``has_child(block)`` tells whether a block's extension is resident too, ``is_copied(block)`` whether a
    slower tier has its content; the prefix cache sets both.
    """

    def __init__(self, blocks: int, eviction: Eviction) -> None:
        self.length = 0
        self.uses = [Uses() for _ in range(blocks + 1)]
        self.eviction = eviction
        self.copied_first = False
        self.has_child: Callable[[int], bool] = lambda block: False
        self.is_copied: Callable[[int], bool] = lambda block: False
        self._by_key: Lists[Key] = Lists(blocks)
        self._by_life: Lists[int] = Lists(blocks)
        self._key: list[Key | None] = [None] * (blocks + 1)
        """The list in which each block waits."""

    @property
    def lists(self) -> dict[Key, BlockList]:
        return self._by_key.lists

    def __contains__(self, block: int) -> bool:
        return self._key[block] is not None

    def follow(self, eviction: Eviction, copied_first: bool) -> None:
        """Go by another policy: every block changes its list, none its content."""
        waiting = [block for blocks in self.lists.values() for block in blocks]
        waiting.sort(key=lambda block: self.uses[block].released)  # stable: a suffix stays before its prefix
        for block in waiting:
            self._leave(block)
        self.eviction, self.copied_first = eviction, copied_first
        for block in waiting:
            self._join(block)
            eviction.released(block, self.uses[block])

    def put(self, block: int, now: int) -> None:
        """A block has come free."""
        uses = self.uses[block]
        uses.released = now
        self._join(block)
        if uses.life is not None:
            self._by_life.push(uses.life, block)
        self.length += 1
        self.eviction.released(block, uses)

    def take_out(self, block: int) -> None:
        """It is in use again, or about to lose its content."""
        self._leave(block)
        life = self.uses[block].life
        if life is not None:
            self._by_life.unlink(life, block)
        self.length -= 1

    def recopied(self, block: int) -> None:
        """A slower tier has got or lost its content. It goes to the end of the other list: what has lost
        its copy is worth keeping, and what has got one is behind those that had it before."""
        if self.copied_first and block in self:
            self._leave(block)
            self._join(block)

    def victim(self, now: int) -> int:
        """The best head by rank; blocks with a resident child are passed over, 8 at most (E19)."""
        rank, uses, lists = self.eviction.rank, self.uses, self.lists
        heads = {key: lists[key].head for key in self.eviction.contenders(lists)}
        first = 0
        for _ in range(PASSED_OVER + 1):
            if not heads:
                break
            key = min(heads, key=lambda key: (not key[0], rank(key, uses[heads[key]], now)))
            block = heads[key]
            if not self.has_child(block):
                return block
            first = first or block
            if following := lists[key].after(block):
                heads[key] = following
            else:
                del heads[key]
        return first

    def expired(self, now: int) -> Iterator[int]:
        """Blocks whose life has run out; the caller takes each out before the next."""
        for life, blocks in list(self._by_life.lists.items()):
            while blocks.head and self.uses[blocks.head].released + life <= now:
                yield blocks.head

    def next_expiry(self) -> int | None:
        """When the first block's life runs out, None if none has one."""
        lives = self._by_life.lists.items()
        return min((self.uses[blocks.head].released + life for life, blocks in lives), default=None)

    def _join(self, block: int) -> None:
        copied = self.copied_first and self.is_copied(block)
        key = self._key[block] = copied, self.eviction.key(self.uses[block])
        self.eviction.resized(key, self._by_key.push(key, block))

    def _leave(self, block: int) -> None:
        key, self._key[block] = self._key[block], None
        assert key is not None, "it waits in some list"
        self.eviction.resized(key, self._by_key.unlink(key, block))
