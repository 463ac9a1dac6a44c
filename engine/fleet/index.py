"""Where blocks are: digest -> workers, from KV events and from our own dispatches (FLEET F30-F33).

Sets of (worker, tier) are integers used as bit masks, three bits a worker. A digest carries its whole chain,
so the map is flat; holes are possible all the same (a block may outlive its parent), so the event index keeps
per digest besides ``holders`` the mask ``reach``, by levels: level 0 is the device, level 1 the device and
the host, level 2 these and the disk. w's bit of a level is set iff w holds the whole run from the root up to
here on it. Along a prompt reach only shrinks, which is what lets a bisection find the end of a run.

    root <- D0 <- D1 <- D2 <- D3         W0 holds D0 D1 D3 on its device, D2 in its host
    holders     001  001  010  001       (bits: disk, host, device)
    reach       111  111  110  110       W0's run ends before D2 on the device, and after D3 with the host

About 580 bytes a key (16-byte digest, node, child set), in however many tiers it lies, and 45 for each
further worker that holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from engine.messages import KvEvents
from engine.request import MissReason

MAX_ROOTS = 65_536
MAX_LOST = 262_144
"""Digests remembered as lost; the oldest losses are forgotten first."""
TIERS = ("device", "host", "disk")
"""From the fastest; what lies in one reaches on its level and on those behind it."""
_WIDTH = len(TIERS)
_ALL = (1 << _WIDTH) - 1
_TIER_BITS: Mapping[str, int] = {tier: 1 << number for number, tier in enumerate(TIERS)}
_COVERED = tuple(_ALL & -(held & -held) for held in range(1 << _WIDTH))
"""Tiers that hold a block -> levels that have it: from the fastest of these tiers on."""
_LOSSES = {
    "ttl": MissReason.EVICTED_TTL,
    "capacity": MissReason.EVICTED_CAPACITY,
    "preempted": MissReason.PREEMPTED,
}
"""Cause of a ``removed`` event -> why a later request misses the block."""


class _Node:
    __slots__ = ("holders", "parent", "reach")

    def __init__(self, parent: bytes | None) -> None:
        self.parent = parent
        self.holders = 0
        self.reach = 0


class EventIndex:
    """What the workers say they hold. Exact as long as no batch is missing; after a gap a worker's
    entries are dropped, since a lost ``removed`` would leave credit for what is gone."""

    def __init__(self) -> None:
        self.gaps = 0
        self.orphans = 0
        self._nodes: dict[bytes, _Node] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._held: dict[int, dict[bytes, None]] = {}
        self._epochs: dict[int, tuple[int, int]] = {}
        self._departed: dict[int, int] = {}
        self._roots: OrderedDict[bytes, None] = OrderedDict()
        self._lost: OrderedDict[bytes, MissReason] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def keys(self, worker: int, tier: str = "device") -> frozenset[bytes]:
        """All digests that a worker holds there."""
        bit = mask(worker, tier)
        return frozenset(d for d in self._held.get(worker, ()) if self._nodes[d].holders & bit)

    def know_root(self, root: bytes) -> None:
        """Digest -1 of a chain: it is no block, and every worker has it."""
        self._roots[root] = None
        self._roots.move_to_end(root)
        if len(self._roots) > MAX_ROOTS:
            self._roots.popitem(last=False)

    def apply(self, worker: int, batch: KvEvents) -> bool:
        """Take one batch: an older epoch or a repeated number is ignored, a newer epoch begins with
        nothing, a gap is counted. True if a new epoch has begun."""
        if batch.epoch <= self._departed.get(worker, -1):
            return False
        begun = self.begin(worker, batch.epoch)
        epoch, seq = self._epochs[worker]
        if batch.epoch < epoch or batch.seq <= seq:
            return begun
        if batch.seq > seq + 1:
            self.gaps += 1
            self._forget(worker)
        self._epochs[worker] = (batch.epoch, batch.seq)
        for event in batch.events:
            tier = _TIER_BITS.get(event.tier)
            if event.kind == "cleared":
                self._forget(worker, lost=True)
            elif tier is None:
                continue  # of a place that gives no credit
            elif event.kind == "stored":
                self._stored(worker, event.digests, event.parent, tier)
            elif event.kind == "removed":
                self._removed(worker, event.digests, tier, _LOSSES.get(event.cause or ""))
        return begun

    def begin(self, worker: int, epoch: int) -> bool:
        """The worker starts with an empty cache: a new incarnation, or a clear seen in its heartbeat.
        False if the epoch is not newer than what is known."""
        if epoch <= self._epochs.get(worker, (-1, 0))[0]:
            return False
        self._forget(worker, lost=True)
        self._epochs[worker] = (epoch, 0)
        return True

    def depart(self, worker: int) -> None:
        """The worker is gone; batches of its that are still under way cannot bring it back."""
        self._forget(worker, lost=True)
        epoch, _ = self._epochs.get(worker, (-1, 0))
        self._departed[worker] = max(epoch, self._departed.get(worker, -1))

    def run(self, digests: Sequence[bytes], worker: int) -> int:
        """How many leading digests the worker's device holds without a hole. O(log n)."""
        return self.runs(digests, worker)[0]

    def runs(self, digests: Sequence[bytes], worker: int) -> tuple[int, int, int]:
        """How many leading digests it holds without a hole on the device, there and in the host, and in all
        tiers. O(log n)."""
        longest = self._run(digests, len(digests), mask(worker, "disk"))
        if not longest:
            return 0, 0, 0
        last = self._nodes[digests[longest - 1]].reach >> worker * _WIDTH
        host = longest if last & _TIER_BITS["host"] else self._run(digests, longest, mask(worker, "host"))
        device = host if last & _TIER_BITS["device"] else self._run(digests, host, mask(worker, "device"))
        return device, host, longest

    def all_runs(self, digests: Sequence[bytes]) -> dict[int, tuple[int, int, int]]:
        """``runs`` of every worker that has any: one search for all, split where their runs end."""
        found: dict[int, list[int]] = {}
        for ending, end in self._ends(digests):
            while ending:
                lowest = ending & -ending
                ending ^= lowest
                worker, level = divmod(lowest.bit_length() - 1, _WIDTH)
                found.setdefault(worker, [0] * _WIDTH)[level] = end
        return {worker: (device, host, disk) for worker, (device, host, disk) in found.items()}

    def _ends(self, digests: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """The bits whose runs end before each block, from where the first do to where the last do."""
        nodes = self._nodes
        first = nodes.get(digests[0]) if digests else None
        parts = [(first.reach, 1, len(digests))] if first is not None else []
        while parts:
            bits, low, high = parts.pop()
            while bits and low < high:
                middle = (low + high) // 2
                node = nodes.get(digests[middle])
                further = bits & node.reach if node is not None else 0
                if further == bits:
                    low = middle + 1
                else:
                    if further:
                        parts.append((further, middle + 1, high))
                        bits ^= further
                    high = middle
            if bits:
                yield bits, low

    def _run(self, digests: Sequence[bytes], most: int, level: int) -> int:
        nodes = self._nodes
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            node = nodes.get(digests[middle])
            if node is not None and node.reach & level:
                low = middle + 1
            else:
                high = middle
        return low

    def holders(self, digest: bytes) -> int:
        """Who holds it and where: bits as of ``mask``."""
        node = self._nodes.get(digest)
        return node.holders if node else 0

    def all_holders(self, digests: Iterable[bytes]) -> list[int]:
        """``holders`` of each."""
        get = self._nodes.get
        return [0 if (node := get(digest)) is None else node.holders for digest in digests]

    def why_lost(self, digest: bytes) -> MissReason | None:
        """What took it from the worker that lost it last: its life, its place, or its worker's epoch."""
        return self._lost.get(digest)

    def _stored(self, worker: int, digests: Iterable[bytes], parent: bytes | None, tier: int) -> None:
        bit, held = tier << worker * _WIDTH, self._held.setdefault(worker, {})
        above, reach = parent, self._reach(parent, worker)
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                node = self._nodes[digest] = _Node(above)
                if above is not None and above not in self._roots:
                    self._children.setdefault(above, set()).add(digest)
            if not node.holders & bit:
                node.holders |= bit
                held[digest] = None
                self._mend(digest, reach, worker)
            above, reach = digest, node.reach >> worker * _WIDTH & _ALL
        if parent is not None and parent not in self._roots and parent not in self._nodes:
            self.orphans += 1

    def _removed(self, worker: int, digests: Iterable[bytes], tiers: int, why: MissReason | None) -> None:
        shift, held = worker * _WIDTH, self._held.setdefault(worker, {})
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None or not node.holders & tiers << shift:
                continue
            if why is not None:
                self._lost[digest] = why
                self._lost.move_to_end(digest)
            node.holders &= ~(tiers << shift)
            if not node.holders & _ALL << shift:
                held.pop(digest, None)
            self._mend(digest, self._reach(node.parent, worker), worker)
            if not node.holders:
                self._drop(digest, node)
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)

    def _drop(self, digest: bytes, node: _Node) -> None:
        del self._nodes[digest]
        siblings = self._children.get(node.parent) if node.parent is not None else None
        if siblings is not None:
            siblings.discard(digest)
            if not siblings and node.parent is not None:
                del self._children[node.parent]

    def _reach(self, parent: bytes | None, worker: int) -> int:
        """The levels on which the worker's run comes as far as the parent."""
        if parent is None or parent in self._roots:
            return _ALL
        node = self._nodes.get(parent)
        return node.reach >> worker * _WIDTH & _ALL if node is not None else 0

    def _mend(self, start: bytes, above: int, worker: int) -> None:
        """Let ``start``, whose parent reaches ``above``, and what hangs below it reach as far as they do."""
        shift, stack = worker * _WIDTH, [(start, above)]
        while stack:
            digest, above = stack.pop()
            node = self._nodes[digest]
            reach = _COVERED[node.holders >> shift & _ALL] & above
            changed = (node.reach >> shift & _ALL) ^ reach
            if changed:
                node.reach ^= changed << shift
                stack.extend((child, reach) for child in self._children.get(digest, ()))

    def _forget(self, worker: int, lost: bool = False) -> None:
        digests = self._held.pop(worker, None)
        if digests:
            self._removed(worker, digests, _ALL, MissReason.WORKER_RESTARTED if lost else None)


def mask(worker: int, *tiers: str) -> int:
    """The bits of these of a worker's tiers; of all without any."""
    return (sum(_TIER_BITS[tier] for tier in tiers) or _ALL) << worker * _WIDTH
