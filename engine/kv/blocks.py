"""Block identity, and the pool that hands blocks out.

A block is ``block_size`` token positions of KV memory. Block 0 is the null block: it is never handed
out, so a pool of N usable blocks has the ids 1..N (ENGINE E10).

Every usable block is in exactly one place (invariant K1)::

    blank ──allocate──> referenced ──release──> [fenced until its last step is applied] ──┐
      ^ <───────────── without digest ────────────────────────────────────────────────────┤
      └──evict── cached (in lists, least recently released first) <──with digest──────────┘
                    └──acquire (a hit)──> referenced
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from engine.kv.cached import BlockList, CachedBlocks
from engine.kv.uses import Eviction, Use, Uses
from engine.request import Tokens

SCHEMA = "1"
"""Version of the digest scheme; part of every namespace root."""


def namespace_root(
    *,
    model: str,
    block_size: int,
    isolation_key: str | None,
    weights: str | None = None,
    tokenizer: str | None = None,
    positions: str | None = None,
    precision: str | None = None,
    tensor_parallel: int = 1,
    adapter: str | None = None,
    adapter_digest: str | None = None,
    salt: str | None = None,
) -> bytes:
    """The 16-byte root from which a request's block digests are chained (ENGINE E7).

    Everything that changes K/V is in it, so equal digests mean equal K/V. Each field goes in as
    (name, present?, value) with lengths, hence a missing value differs from an empty one and equal
    strings in different fields differ. ``isolation_key`` is the tenant unless tenants share a cache.
    """
    fields = (
        ("schema", SCHEMA),
        ("model", model),
        ("weights", weights),
        ("tokenizer", tokenizer),
        ("positions", positions),
        ("precision", precision),
        ("block_size", str(block_size)),
        ("tensor_parallel", str(tensor_parallel)),
        ("adapter", adapter),
        ("adapter_digest", adapter_digest),
        ("isolation_key", isolation_key),
        ("salt", salt),
    )
    hashed = blake2b(digest_size=16)
    for name, value in fields:
        hashed.update(_framed(name, value))
    return hashed.digest()


def _framed(name: str, value: str | None) -> bytes:
    # surrogatepass: clients' strings may hold lone surrogates, which must neither fail nor merge.
    raw = b"" if value is None else value.encode("utf-8", "surrogatepass")
    present = b"\0" if value is None else b"\1"
    header = len(name).to_bytes(2, "little") + name.encode() + present
    return header + len(raw).to_bytes(8, "little") + raw


def _swapped(tokens: Tokens[int]) -> bytes:
    turned = array("I", tokens)
    turned.byteswap()
    return turned.tobytes()


token_bytes: Callable[[Tokens[int]], bytes] = array.tobytes if sys.byteorder == "little" else _swapped
"""The tokens as u32 little-endian, whatever this machine's byte order is."""


def block_digests(root: bytes, tokens: Tokens[int], block_size: int) -> tuple[bytes, ...]:
    """Chained 16-byte digests of the full blocks of ``tokens`` (ENGINE E8).

    ``D_i = blake2b-128(D_{i-1} || tokens of block i as u32 LE)`` with ``D_{-1} = root``.
    """
    data = token_bytes(tokens)
    width = 4 * block_size
    digests = []
    previous = root
    for start in range(0, len(data) - width + 1, width):
        previous = blake2b(previous + data[start : start + width], digest_size=16).digest()
        digests.append(previous)
    return tuple(digests)


def blocks_for(tokens: int, block_size: int) -> int:
    """need(t) = ceil(t/B): blocks that ``tokens`` positions take."""
    return -(-tokens // block_size)


class Content(NamedTuple):
    """What a cached block holds: enough to verify a hit (ENGINE E9). One is made for each block."""

    digest: bytes
    parent: bytes
    tokens: bytes
    root: bytes


NOBODY_SPECIAL = Use()


class Evictable(Protocol):
    """Who must know when the pool takes a cached block away from the prefix cache."""

    def evicted(self, block: int, now: int) -> None: ...


class BlockPool:
    """N usable blocks with reference counts, free lists and fences. Times are ns."""

    def __init__(self, blocks: int, eviction: Eviction | None = None) -> None:
        self.size = blocks
        self.ref = [0] * (blocks + 1)
        self.digested = bytearray(blocks + 1)
        self.listener: Evictable | None = None
        self.referenced = 0
        self.applied_step = -1
        self.blank = BlockList([0] * (blocks + 1), [0] * (blocks + 1))
        self.cached = CachedBlocks(blocks, eviction or Eviction())
        self.fences: deque[tuple[int, list[int]]] = deque()
        self.fenced = 0
        for block in range(1, blocks + 1):
            self.blank.push_back(block)

    @property
    def free(self) -> int:
        """Unreferenced and unfenced blocks, cached ones included."""
        return self.blank.length + self.cached.length

    @property
    def cached_free(self) -> int:
        """Free blocks that still hold a digest."""
        return self.cached.length

    def allocate(self, count: int, now: int) -> list[int] | None:
        """``count`` blocks with one reference each, or None and nothing has changed (ENGINE E13)."""
        if count > self.free:
            return None
        taken = []
        for _ in range(count):
            if self.blank.length:
                block = self.blank.head
                self.blank.unlink(block)
            else:
                block = self._evict(now)
            self.ref[block] = 1
            taken.append(block)
        self.referenced += count
        return taken

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each: the blocks of a hit, resident by contract."""
        for block in blocks:
            if self.ref[block] == 0:
                if block in self.cached:
                    self.cached.take_out(block)
                else:
                    self._leave_fence(block)
                self.referenced += 1
            self.ref[block] += 1

    def release(
        self, table: Sequence[int], now: int, fence: int | None = None, use: Use = NOBODY_SPECIAL
    ) -> None:
        """Give back one reference on each block of a table, last block first (ENGINE E12).

        ``fence`` is the last step that may still write or read them: they rejoin a free list only when
        it has been applied (ENGINE E35). The life of those that keep a digest starts then.
        """
        waiting = []
        for block in reversed(table):
            self.ref[block] -= 1
            if self.digested[block]:
                self.cached.uses[block].add(use)
            if self.ref[block] == 0:
                self.referenced -= 1
                waiting.append(block)
        if fence is not None and fence > self.applied_step:
            if waiting:
                self.fences.append((fence, waiting))
                self.fenced += len(waiting)
        else:
            self._rejoin(waiting, now)

    def applied(self, step: int, now: int) -> None:
        """Step ``step`` writes no more: blocks fenced by it are free."""
        self.applied_step = max(self.applied_step, step)
        while self.fences and self.fences[0][0] <= self.applied_step:
            _, blocks = self.fences.popleft()
            self.fenced -= len(blocks)
            self._rejoin(blocks, now)

    def mark(self, block: int, start: int = 0) -> None:
        """A referenced block got a digest; its first token is at position ``start``."""
        self.digested[block] = 1
        self.cached.uses[block] = Uses(start=start)

    def unmark(self, block: int) -> None:
        """A block lost its digest; a free one becomes blank, the first to be handed out."""
        if not self.digested[block]:
            return
        if block in self.cached:
            self.cached.take_out(block)
            self.blank.push_front(block)
        self.digested[block] = 0

    def _evict(self, now: int) -> int:
        block = self.cached.victim(now)
        if self.listener is not None:
            self.listener.evicted(block, now)
        self.cached.take_out(block)
        self.digested[block] = 0
        return block

    def _rejoin(self, blocks: list[int], now: int) -> None:
        for block in blocks:
            if self.digested[block]:
                self.cached.put(block, now)
            else:
                self.blank.push_front(block)

    def _leave_fence(self, block: int) -> None:
        for _, blocks in self.fences:
            if block in blocks:
                blocks.remove(block)
                self.fenced -= 1
