"""Blocks that move for a request: restored from slower tiers, swapped out and back (ENGINE E26, E45).

::

    backlog ──choose──> loading: aside, its blocks held ──all there──> runs, with them as hits
                           └─ a block failed, or 1 s ──> backlog, computed without restore

    victim ──swap_out──> backlog, its K/V in host slots ──> loading ──> runs on where it was

A request is restored when it is admitted anyway, and as many blocks as gain most:
``latency + k*bytes/bandwidth < recomputation`` (engine.sched.prices). Loads leave with the next steps, so
many bytes in each; the blocks of a victim are saved in the next one, since nobody gets them before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator

from engine.config import EngineConfig
from engine.kv.blocks import blocks_for
from engine.kv.places import Copy, Entry
from engine.kv.prefix_cache import Match, PrefixCache
from engine.runner.base import Move, StepPlan, Transfer
from engine.sched.aside import Loading, Source, Swapped, Tier
from engine.sched.prices import Prices
from engine.sched.sequence import Key, Sequence
from engine.telemetry import Meter

PATIENCE_NS = 1_000_000_000
"""A restore that takes longer is given up (E45)."""


class Transfers:
    """Decides what moves for whom; the books of the tiers are the prefix cache's. Times in ns."""

    def __init__(self, config: EngineConfig, cache: PrefixCache, meter: Meter) -> None:
        self.config = config
        self.cache = cache
        self.meter = meter
        self.below = cache.below
        self.sizes = cache.below.sizes
        self.next_step = 0
        """Number of the step that is being planned, which takes what is decided now."""
        self.prices = Prices(config, self.sizes.block_bytes)
        self.loading: dict[Key, Sequence] = {}
        self.free_slots = list(range(self.sizes.slots, self.sizes.host, -1))
        self._flying: dict[int, tuple[Loading, int]] = {}
        """By device block: what the step in flight loads there, and as which block of the table."""
        self._saving: dict[int, Swapped] = {}
        """By swap slot: whose K/V is on its way there."""

    def configure(self, config: EngineConfig) -> None:
        """Go by ``config`` from now on."""
        self.config = self.prices.config = config

    # -- up -----------------------------------------------------------------------------------

    def choose(self, sequence: Sequence, match: Match) -> tuple[Source, ...]:
        """What to read for the blocks behind the hits of ``match``, in order; () = compute them."""
        if sequence.swapped is not None and sequence.swapped.lost:
            self.forget(sequence)
        if sequence.swapped is not None:
            return sequence.swapped.sources[len(match.blocks) :]
        if not self.below.entries or sequence.gave_up or not self.config.cache.enabled:
            return ()
        path: list[Source] = []
        best = most_hoped = 0.0
        worth, hoped, size = 0, 0, sequence.block_size
        tiers = Counter[Tier]()
        for source in self._behind(sequence, len(match.blocks)):
            path.append(source)
            tiers[source.tier] += 1
            moves = tiers["host"] + tiers["disk"], tiers["disk"]  # from disk it passes through the host
            computing = self.prices.computing(len(match.blocks) * size, len(path) * size)
            gain, hope = computing - self.prices.moving(*moves), computing - self.prices.hoped(*moves)
            if gain >= best and gain > 0:
                best, worth = gain, len(path)
            if hope >= most_hoped and hope > 0:
                most_hoped, hoped = hope, len(path)
        if hoped > worth:
            self.prices.refused(disk=any(source.tier == "disk" for source in path[worth:hoped]))
        return tuple(path[:worth])

    def pin(self, sequence: Sequence, path: tuple[Source, ...]) -> None:
        """What was chosen stays where it is until it is read; that of a swapped request does anyway."""
        if sequence.swapped is None:
            for source in path:
                if source.entry is not None:
                    self.below.pin(source.entry)

    def begin(self, sequence: Sequence, first: int, path: tuple[Source, ...], now: int) -> None:
        """The admitted ``sequence`` waits aside until the pinned ``path`` is in its blocks from index
        ``first`` on."""
        swapped, sequence.swapped = sequence.swapped, None
        computed = swapped.computed if swapped else (first + len(path)) * sequence.block_size
        if swapped is not None:
            self._free(swapped.sources[:first])
        if not path:
            return
        todo = deque((first + i, source) for i, source in enumerate(path) if not source.block)
        tiers = {source.tier for source in path}
        slowest: Tier = "disk" if "disk" in tiers else "host"
        sequence.loading = Loading(computed, todo, now, slowest, swapped is not None)
        self.loading[sequence.key] = sequence

    def _behind(self, sequence: Sequence, first: int) -> Iterator[Source]:
        """Where the full blocks from index ``first`` on are to be had, as far as they are all somewhere."""
        last = min((len(sequence.tokens) - 1) // sequence.block_size, len(sequence.digests))
        for index in range(first, last):
            digest, parent, tokens = sequence.digests[index], sequence.parent(index), sequence.block(index)
            block = self.cache.find(digest, parent, tokens)
            if block is not None:
                yield Source("device", block)
                continue
            entry = self.below.find(digest, parent, tokens if self.cache.verify_tokens else None)
            if entry is None:
                return
            yield Source("host" if entry.host is Copy.THERE else "disk", entry=entry)

    # -- out ----------------------------------------------------------------------------------

    def swap_out(self, victim: Sequence) -> int | None:
        """Decide whether to keep the K/V of a victim in host memory: not without room, nor if that takes as
        long as computing it again (E26). Returns the step whose end frees its blocks, None if no step needs
        them any more."""
        if self.config.preemption != "swap" or not self.sizes.swap or victim.original is not None:
            return None
        copies = [self._copy_below(victim, i) for i in range(blocks_for(victim.computed, victim.block_size))]
        saves = copies.count(None)
        if saves > len(self.free_slots):
            return None
        computing = self.prices.computing(0, victim.computed)
        if 2 * self.prices.moving(saves) >= computing:
            if 2 * self.prices.hoped(saves) < computing:
                self.prices.refused()
            return None
        sources = []
        for block, entry in zip(victim.table, copies, strict=False):
            if entry is not None:
                self.below.pin(entry)
                sources.append(Source("host", entry=entry))
            else:
                slot = self.free_slots.pop()
                self.below.moves.down(Transfer(Move.SAVE, block, slot))
                sources.append(Source("host", slot=slot))
        victim.swapped = Swapped(victim.computed, tuple(sources), saves)
        self._saving.update((source.slot, victim.swapped) for source in sources if source.slot)
        self.below.moves.hurry()
        self.meter.inc("headrace_engine_swapped_blocks_total", saves, direction="out")
        return self.next_step if saves else None

    def _copy_below(self, victim: Sequence, index: int) -> Entry | None:
        """The host's copy of a full block of the victim."""
        if (index + 1) * victim.block_size > victim.computed:
            return None
        entry = self.below.entries.get(victim.digest(index))
        return entry if entry is not None and entry.host is Copy.THERE else None

    def forget(self, sequence: Sequence) -> None:
        """It has ended, or has to be computed again: nothing moves for it any more."""
        if sequence.loading is not None:
            self._free(source for _, source in sequence.loading.todo)
            sequence.loading = None
            del self.loading[sequence.key]
        if sequence.swapped is not None:
            for source in sequence.swapped.sources:
                self._saving.pop(source.slot, None)
            self._free(sequence.swapped.sources)
            sequence.swapped = None

    def _free(self, sources: Collection[Source] | Iterator[Source]) -> None:
        for source in sources:
            if source.entry is not None:
                self.below.unpin(source.entry)
            elif source.slot:
                self.free_slots.append(source.slot)

    # -- steps --------------------------------------------------------------------------------

    def depart(self, rows: Iterable[tuple[Sequence, int]], now: int) -> tuple[Transfer, ...]:
        """The moves of the step that is about to be executed, which computes so many tokens of each."""
        left = max(1, self.sizes.per_step // 2)
        for sequence in self.loading.values():
            if sequence.held is None:
                left = self._depart(sequence, left, now)
        moves = self.below.moves
        return moves.take(_written(rows) if moves.saves else ()) if moves else ()

    def _depart(self, sequence: Sequence, left: int, now: int) -> int:
        """Decide as many of its loads as ``left`` allows; returns what is left then."""
        loading = sequence.loading
        assert loading is not None, "it waits aside"
        while loading.todo and left > 0:
            index, source = loading.todo[0]
            slot = source.slot if source.entry is None else self.below.to_host(source.entry, now)
            if not slot:
                break  # every host slot is in use: perhaps not in the next step
            del loading.todo[0]
            block = sequence.table[index]
            self.below.moves.up(Transfer(Move.LOAD, slot, block))
            self._flying[block] = loading, index
            loading.flying += 1
            self._free((source,))
            left -= 1
        return left

    def landed(self, plan: StepPlan, lost: Collection[int], now: int) -> list[Sequence]:
        """The moves of a step have happened, all but those ``lost``. Returns who waits aside no longer."""
        broken = broken_moves(plan.transfers, lost)
        for sequence in self.loading.values():
            if sequence.loading is not None and sequence.loading.flying:
                sequence.loading.steps += 1
        for index, move in enumerate(plan.transfers):
            if move.move is Move.LOAD:
                self._loaded(move.target, index not in broken)
            elif move.move is Move.SAVE and move.target > self.sizes.host:
                self._saved(move.target, index not in broken)
            else:
                self.below.landed(move, index not in broken, now)
        return self._settled(now)

    def overdue(self, now: int) -> list[Sequence]:
        """Who has waited aside for too long, between steps."""
        for sequence in self.loading.values():
            loading = sequence.loading
            if loading is not None and loading.may_fail and now - loading.since >= PATIENCE_NS:
                loading.failed(loading.todo[0][0])
        return self._settled(now)

    @property
    def next_overdue(self) -> int | None:
        """When ``overdue`` must be asked again; None if nobody waits for a step to take their loads."""
        loadings = (sequence.loading for sequence in self.loading.values())
        since = [loading.since for loading in loadings if loading is not None and loading.may_fail]
        return min(since) + PATIENCE_NS if since else None

    def _loaded(self, block: int, whole: bool) -> None:
        loading, index = self._flying.pop(block)
        loading.flying -= 1
        if not whole:
            loading.failed(index)
        elif loading.swapped:
            self.meter.inc("headrace_engine_swapped_blocks_total", direction="in")

    def _saved(self, slot: int, whole: bool) -> None:
        if swapped := self._saving.pop(slot, None):
            swapped.saving -= 1
            swapped.lost = swapped.lost or not whole

    def _settled(self, now: int) -> list[Sequence]:
        settled = [s for s in self.loading.values() if s.loading is not None and s.loading.settled]
        for sequence in settled:
            del self.loading[sequence.key]
            loading = sequence.loading
            assert loading is not None
            self._free(source for _, source in loading.todo)
            if loading.lost is None and not loading.swapped:
                took = (now - loading.since) / 1e9
                self.meter.observe("headrace_engine_restore_seconds", took, tier=loading.slowest)
        return settled


def _written(rows: Iterable[tuple[Sequence, int]]) -> list[int]:
    """The blocks that a step writes."""
    written: list[int] = []
    for s, tokens in rows:
        written += s.table[s.computed // s.block_size : blocks_for(s.computed + tokens, s.block_size)]
    return written


def broken_moves(transfers: tuple[Transfer, ...], lost: Collection[int]) -> set[int]:
    """The moves that did not happen, ``lost`` or from a place that another one should have filled."""
    broken: set[int] = set()
    empty: set[tuple[str, int]] = set()
    for index, move in enumerate(transfers):
        source = ("block" if move.move in (Move.COPY, Move.SAVE) else "slot", move.source)
        target = ("slot" if move.move in (Move.SAVE, Move.FETCH) else "block", move.target)
        if index in lost or source in empty:
            broken.add(index)
            empty.add(target)
        else:
            empty.discard(target)
    return broken
