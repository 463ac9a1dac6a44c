"""Where blocks are: digest -> workers, from KV events and from our own dispatches (FLEET F30-F33).

Worker sets are integers used as bit masks. A digest carries its whole chain, so the map is flat; holes
are possible all the same (a block may outlive its parent), so the event index keeps per digest besides
``holders`` the mask ``reach``: w's bit is set iff w holds the whole run from the root up to here.
Along a prompt reach only shrinks, which is what lets a bisection find the end of a run.

    root <- D0 <- D1 <- D2 <- D3         W0 holds D0 D1 D3, W1 holds D0 D1 D2
    holders     01   11   10   01        (bits: W1 W0)
    reach       11   11   10   00        W0's run ends before the hole at D2

About 450 bytes a key (16-byte digest, node, child set).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from engine.messages import KvEvents
from engine.request import MissReason

MAX_ROOTS = 65_536
MAX_LOST = 262_144
"""Digests remembered as lost; the oldest losses are forgotten first."""
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

    def keys(self, worker: int) -> frozenset[bytes]:
        """All digests that a worker holds."""
        return frozenset(self._held.get(worker, ()))

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
            if event.tier != "device":
                continue  # what lies below is nearer than elsewhere, but no hit yet
            if event.kind == "stored":
                self._stored(worker, event.digests, event.parent)
            elif event.kind == "removed":
                self._removed(worker, event.digests, _LOSSES.get(event.cause or ""))
            else:
                self._forget(worker, lost=True)
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
        """How many leading digests the worker holds without a hole. O(log n)."""
        bit, nodes = 1 << worker, self._nodes

        def reached(digest: bytes) -> bool:
            node = nodes.get(digest)
            return node is not None and bool(node.reach & bit)

        return _run_length(digests, reached)

    def holders(self, digest: bytes) -> int:
        """Mask of the workers that hold it."""
        node = self._nodes.get(digest)
        return node.holders if node else 0

    def why_lost(self, digest: bytes) -> MissReason | None:
        """What took it from the worker that lost it last: its life, its place, or its worker's epoch."""
        return self._lost.get(digest)

    def _stored(self, worker: int, digests: Iterable[bytes], parent: bytes | None) -> None:
        bit, held = 1 << worker, self._held.setdefault(worker, {})
        above = parent
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                node = self._nodes[digest] = _Node(above)
                if above is not None and above not in self._roots:
                    self._children.setdefault(above, set()).add(digest)
            node.holders |= bit
            held[digest] = None
            if self._reaches(above, bit):
                self._raise(digest, bit)
            above = digest
        if parent is not None and parent not in self._roots and parent not in self._nodes:
            self.orphans += 1

    def _removed(self, worker: int, digests: Iterable[bytes], why: MissReason | None) -> None:
        bit, held = 1 << worker, self._held.setdefault(worker, {})
        for digest in digests:
            node = self._nodes.get(digest)
            if node is None:
                continue
            if why is not None and node.holders & bit:
                self._lost[digest] = why
                self._lost.move_to_end(digest)
            held.pop(digest, None)
            node.holders &= ~bit
            self._lower(digest, bit)
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

    def _reaches(self, parent: bytes | None, bit: int) -> bool:
        if parent is None or parent in self._roots:
            return True
        node = self._nodes.get(parent)
        return node is not None and bool(node.reach & bit)

    def _raise(self, start: bytes, bit: int) -> None:
        stack = [start]
        while stack:
            digest = stack.pop()
            node = self._nodes[digest]
            if node.holders & bit and not node.reach & bit:
                node.reach |= bit
                stack.extend(self._children.get(digest, ()))

    def _lower(self, start: bytes, bit: int) -> None:
        stack = [start]
        while stack:
            digest = stack.pop()
            node = self._nodes[digest]
            if node.reach & bit:
                node.reach &= ~bit
                stack.extend(self._children.get(digest, ()))

    def _forget(self, worker: int, lost: bool = False) -> None:
        digests = self._held.pop(worker, None)
        if not digests:
            return
        self._removed(worker, digests, MissReason.WORKER_RESTARTED if lost else None)


class PredictedIndex:
    """What dispatched prompts will leave on their workers, until the events say it themselves (F31)."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[bytes, int]] = {}
        self._entries: dict[tuple[int, int], tuple[int, Sequence[bytes]]] = {}

    def __len__(self) -> int:
        return sum(len(counts) for counts in self._counts.values())

    def enter(self, attempt: tuple[int, int], worker: int, digests: Sequence[bytes]) -> None:
        """Attempts are (request id, attempt number)."""
        counts = self._counts.setdefault(worker, {})
        for digest in digests:
            counts[digest] = counts.get(digest, 0) + 1
        self._entries[attempt] = (worker, digests)

    def leave(self, attempt: tuple[int, int]) -> None:
        """Idempotent."""
        entry = self._entries.pop(attempt, None)
        if entry is None:
            return
        worker, digests = entry
        counts = self._counts[worker]
        for digest in digests:
            if counts[digest] == 1:
                del counts[digest]
            else:
                counts[digest] -= 1

    def forget(self, worker: int) -> None:
        """Its cache is gone, and with it what was to be there."""
        self._counts.pop(worker, None)
        for attempt in [a for a, (where, _) in self._entries.items() if where == worker]:
            del self._entries[attempt]

    def run(self, digests: Sequence[bytes], worker: int) -> int:
        """Leading digests predicted on the worker. An entry is a whole prompt, so there are no holes."""
        counts = self._counts.get(worker)
        return _run_length(digests, counts.__contains__) if counts else 0

    def elsewhere(self, digest: bytes, worker: int) -> bool:
        """True if another worker is computing it."""
        return any(digest in counts for other, counts in self._counts.items() if other != worker)


def _run_length(digests: Sequence[bytes], present: Callable[[bytes], bool]) -> int:
    """End of the leading run of ``present``, which must be true, then false: O(log n)."""
    low, high = 0, len(digests)
    while low < high:
        middle = (low + high) // 2
        if present(digests[middle]):
            low = middle + 1
        else:
            high = middle
    return low
