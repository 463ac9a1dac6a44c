"""The tiers below the device: host memory and disk (ENGINE E45).

A block's content moves down when the pool hands its device block to somebody else::

    device ──SAVE──> host slot ──SPILL──> disk        when the faster tier needs the place
       ^──LOAD───────────┘ ^──────FETCH─────┘         when a prompt is restored

and stays where it was when a copy moves up again. Here is decided and remembered what is where; the runner
moves the bytes in the order of the decisions, before any row of their step. So a place may be given away as
soon as the move that empties it is decided; what a move has filled counts when it has landed.

What is lost, and when (E18, E42): ``removed`` goes out for each tier that no longer holds a digest; the miss
history is told when the last place of all is gone. What is here and not on the device was lost to allocation,
whatever released it. A life goes on below and ends all copies together; a device copy stops it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from engine.kv.blocks import Content
from engine.kv.events import EventLog
from engine.kv.expiries import Expiries
from engine.kv.miss_history import MissHistory
from engine.kv.moves import Moves
from engine.kv.places import Copy, Entry, Sizes
from engine.request import MissReason
from engine.runner.base import Move, Transfer
from engine.telemetry import Meter

SPILLS_AGAIN_NS = 1_000_000_000
"""After a spill that failed (a full disk, a folder that is gone) none is tried for so long."""
LOOKED_AT = 8
"""At most so many blocks that are in use are passed over in search of one to push out."""
_COUNTED = (Move.SAVE, Move.SPILL, Move.FETCH)
"""Moves between tiers. A copy stays on the device, and a drop that fails loses nothing."""


class Tiers:
    """What host and disk hold of one worker's cache. ``resident(digest)`` tells whether the device holds it;
    ``recopied(digest)`` is called when a content gets its first copy here or loses its last."""

    def __init__(
        self,
        sizes: Sizes,
        meter: Meter,
        events: EventLog,
        history: MissHistory,
        resident: Callable[[bytes], bool],
        recopied: Callable[[bytes], None],
    ) -> None:
        self.sizes = sizes
        self.entries: dict[bytes, Entry] = {}
        self.host: OrderedDict[int, Entry] = OrderedDict()
        """By slot, longest unused first; entries that are gone may still be in here."""
        self.disk: OrderedDict[bytes, Entry] = OrderedDict()
        """By digest, longest unused first, likewise."""
        self.free_slots = list(range(sizes.host, 0, -1))
        self._meter, self._events, self._history = meter, events, history
        self._resident, self._recopied = resident, recopied
        self.moves = Moves(sizes.per_step // 2)
        self._spills_from = 0
        self.expiries = Expiries(self._expires)

    # -- what is here -------------------------------------------------------------------------

    def holds(self, digest: bytes) -> bool:
        """It is here or on its way."""
        return digest in self.entries

    def copied(self, digest: bytes) -> bool:
        """A copy has landed."""
        entry = self.entries.get(digest)
        return entry is not None and Copy.THERE in (entry.host, entry.disk)

    def find(self, digest: bytes, parent: bytes, tokens: bytes | None) -> Entry | None:
        """What can be restored under this digest; with ``tokens`` it must be the same content (E9)."""
        entry = self.entries.get(digest)
        if entry is None or not self.copied(digest):
            return None
        content = entry.content
        if tokens is not None and (content.parent, content.tokens) != (parent, tokens):
            self._meter.inc("headrace_engine_prefix_collisions_total")
            return None
        return entry

    def _expires(self, digest: bytes, at: int) -> bool:
        entry = self.entries.get(digest)
        return entry is not None and entry.expires == at

    # -- down ---------------------------------------------------------------------------------

    def demote(self, block: int, content: Content, expires: int | None, now: int) -> bool:
        """The device loses this content from ``block``: keep it here if it is here or there is room. False
        if it is lost."""
        entry = self.entries.get(content.digest)
        if entry is None:
            slot = self._free_slot(now)
            if not slot:
                return False
            entry = self.entries[content.digest] = Entry(content, Copy.COMING, slot)
            self.host[slot] = entry
            self.moves.down(Transfer(Move.SAVE, block, slot))
        self._used(entry)
        entry.expires = expires
        if expires is not None:
            self.expiries.add(content.digest, expires)
        return True

    def returned(self, digest: bytes) -> None:
        """The device holds it again."""
        if entry := self.entries.get(digest):
            entry.expires = None

    def _free_slot(self, now: int) -> int:
        """A host slot to fill, 0 if none can be had; who has to go is spilled to disk if there is room."""
        if self.free_slots:
            return self.free_slots.pop()
        victim = next((e for e in islice(self.host.values(), LOOKED_AT + 1) if _idle(e, e.host)), None)
        if victim is None:
            return 0
        digest = victim.content.digest  # an entry of old that is still read may have a file of that name
        if victim.disk is Copy.NONE and digest not in self.disk and self._room_on_disk(now):
            victim.disk = Copy.COMING
            self.disk[digest] = victim
            self.moves.down(Transfer(Move.SPILL, victim.slot, key=digest, root=victim.content.root))
        slot = self._leave_host(victim, "capacity")
        self._settle(victim, MissReason.EVICTED_CAPACITY)
        return slot

    def _room_on_disk(self, now: int) -> bool:
        if not self.sizes.disk or now < self._spills_from:
            return False
        if len(self.disk) < self.sizes.disk:
            return True
        victim = next((e for e in islice(self.disk.values(), LOOKED_AT + 1) if _idle(e, e.disk)), None)
        if victim is None:
            return False
        self._leave_disk(victim, "capacity")
        self._settle(victim, MissReason.EVICTED_CAPACITY)
        return True

    # -- up -----------------------------------------------------------------------------------

    def pin(self, entry: Entry) -> None:
        """A restore will read it."""
        entry.pins += 1
        self._used(entry)

    def unpin(self, entry: Entry) -> None:
        entry.pins -= 1
        self._bury(entry)

    def to_host(self, entry: Entry, now: int) -> int:
        """The slot that its content is in when the moves so far are done, 0 if there is none to fetch it
        into. ``entry`` is pinned."""
        if entry.slot:
            return entry.slot
        before = self.moves.decided
        slot = self._free_slot(now)
        if self.moves.decided > before:
            self.moves.hurry()  # what was in the slot has to leave it first
        if slot:
            entry.host, entry.slot = Copy.COMING, slot
            self.host[slot] = entry
            content = entry.content
            self.moves.up(Transfer(Move.FETCH, target=slot, key=content.digest, root=content.root))
        return slot

    # -- moves --------------------------------------------------------------------------------

    def landed(self, move: Transfer, whole: bool, now: int) -> None:
        """A move of the cache's own (not of a swap slot, not up) has happened, or failed."""
        if not whole and move.move in _COUNTED:
            self._meter.inc("headrace_engine_failed_moves_total", move=move.move.value)
        if move.move is Move.SPILL:
            entry = self.disk[move.key]
            if whole:
                entry.disk = Copy.THERE
                self._stored(entry, "disk")
            else:
                self._spills_from = now + SPILLS_AGAIN_NS
                self._leave_disk(entry, "bad")
        elif move.move in (Move.SAVE, Move.FETCH):
            entry = self.host[move.target]
            if whole:
                entry.host = Copy.THERE
                self._stored(entry, "host")
            else:
                self.free_slots.append(self._leave_host(entry, "bad"))
                if move.move is Move.FETCH and entry.disk is Copy.THERE:
                    self._leave_disk(entry, "bad")
        else:
            return
        self._settle(entry, MissReason.EVICTED_CAPACITY)
        self._bury(entry)

    def _stored(self, entry: Entry, tier: str) -> None:
        content = entry.content
        if not entry.gone:
            parent = None if content.parent == content.root else content.parent
            self._events.stored(content.digest, parent, tier)
            self._recopied(content.digest)

    # -- out ----------------------------------------------------------------------------------

    def drop(self, digest: bytes, cause: str) -> None:
        """Forget a content, wherever it lies here; the history is the caller's to tell."""
        entry = self.entries.pop(digest, None)
        if entry is None:
            return
        entry.gone = True
        for tier, copy in (("host", entry.host), ("disk", entry.disk)):
            if copy is Copy.THERE:
                self._events.removed(digest, cause, tier)
                self._meter.inc("headrace_engine_evicted_blocks_total", cause=cause, tier=tier)
        self._recopied(digest)
        self._bury(entry)

    def expire(self, now: int) -> None:
        """Drop what has outlived its life below (E15)."""
        for digest in self.expiries.due(now):
            self.drop(digest, "ttl")
            self._history.lost(digest, MissReason.EVICTED_TTL)

    def clear(self) -> None:
        """Forget everything; one ``cleared`` event, which the caller sends, stands for all."""
        entries, self.entries = list(self.entries.values()), {}
        self.expiries.clear()
        for entry in entries:
            entry.gone = True
            self._bury(entry)

    def _leave_host(self, entry: Entry, cause: str) -> int:
        """Returns the slot that it has left."""
        copy, slot = entry.host, entry.slot
        entry.host, entry.slot = Copy.NONE, 0
        del self.host[slot]
        self._left(entry, copy, cause, "host")
        return slot

    def _leave_disk(self, entry: Entry, cause: str) -> None:
        copy, digest = entry.disk, entry.content.digest
        entry.disk = Copy.NONE
        del self.disk[digest]
        self.moves.down(Transfer(Move.DROP, key=digest))
        self._left(entry, copy, cause, "disk")

    def _left(self, entry: Entry, copy: Copy, cause: str, tier: str) -> None:
        """Tell it, unless ``drop`` or ``clear`` has told it already."""
        if not entry.gone:
            self._meter.inc("headrace_engine_evicted_blocks_total", cause=cause, tier=tier)
            if copy is Copy.THERE:
                self._events.removed(entry.content.digest, cause, tier)

    def _settle(self, entry: Entry, reason: MissReason) -> None:
        """An entry that lies nowhere is none; if the device has no copy either, its content is lost."""
        digest = entry.content.digest
        if entry.gone or entry.host is not Copy.NONE or entry.disk is not Copy.NONE:
            return
        entry.gone = True
        del self.entries[digest]
        self._recopied(digest)
        if not self._resident(digest):
            self._history.lost(digest, reason)

    def _bury(self, entry: Entry) -> None:
        """Free the places of an entry that is gone, once nobody needs them."""
        if not entry.gone or entry.pins or Copy.COMING in (entry.host, entry.disk):
            return
        if entry.slot:
            self.free_slots.append(self._leave_host(entry, "gone"))
        if entry.disk is not Copy.NONE:
            self._leave_disk(entry, "gone")

    def _used(self, entry: Entry) -> None:
        if entry.slot:
            self.host.move_to_end(entry.slot)
        if entry.disk is not Copy.NONE:
            self.disk.move_to_end(entry.content.digest)


def _idle(entry: Entry, copy: Copy) -> bool:
    """It may be pushed out of the tier that ``copy`` speaks of."""
    return copy is Copy.THERE and not entry.pins and not entry.gone
