"""The invariants K1 to K9 (ENGINE 15), checked on a live worker, with evidence for each that is broken."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any

from engine.kv.blocks import BlockPool, Content
from engine.kv.places import Copy
from engine.kv.prefix_cache import PrefixCache
from engine.sched.scheduler import Scheduler
from engine.sched.sequence import State


def audit(scheduler: Scheduler, taken: int, ended: int, handed_back: int) -> dict[str, Any]:
    """The state in numbers, and ``violations``: texts that begin with the rule's name.

    ``taken``, ``ended`` and ``handed_back`` count requests over the life of the worker.
    """
    memory, pool = scheduler.memory, scheduler.memory.pool
    violations = [
        *_pool(pool),
        *_references(scheduler),
        *_cache(memory.cache, scheduler),
        *_tiers(scheduler),
        *_requests(scheduler, taken, ended, handed_back),
    ]
    return {
        "blocks": pool.size,
        "free": pool.free,
        "cached": pool.cached_free,
        "fenced": pool.fenced,
        "referenced": pool.referenced,
        "swapped": sum(s.swapped is not None for s in scheduler.waiting.values()),
        "loading": len(memory.transfers.loading),
        "ballast": len(memory.ballast),
        "reserved": memory.promised,
        "waiting": len(scheduler.waiting),
        "running": len(scheduler.running),
        "submitted": taken,
        "terminal": ended,
        "handed_back": handed_back,
        "history_complete": memory.cache.history.complete,
        "violations": violations,
    }


def _pool(pool: BlockPool) -> list[str]:
    """K1 every usable block is in one place; K2 list lengths are true and no id is listed twice."""
    broken = []
    referenced = [b for b in range(1, pool.size + 1) if pool.ref[b] > 0]
    if pool.free + pool.fenced + len(referenced) != pool.size or len(referenced) != pool.referenced:
        broken.append(
            f"K1: free {pool.free} + fenced {pool.fenced} + referenced {len(referenced)} "
            f"(counted {pool.referenced}) is not {pool.size}"
        )
    lists = {"blank": pool.blank} | {f"cached {key}": blocks for key, blocks in pool.cached.lists.items()}
    listed: Counter[int] = Counter(referenced)
    for name, blocks in lists.items():
        ids = list(blocks)
        listed.update(ids)
        if len(ids) != blocks.length:
            broken.append(f"K2: list {name} has {len(ids)} blocks and counts {blocks.length}")
    for _, fenced in pool.fences:
        listed.update(fenced)
    if sum(blocks.length for blocks in pool.cached.lists.values()) != pool.cached_free:
        broken.append(f"K2: cached lists do not hold the {pool.cached_free} blocks counted")
    broken += [f"K2: block {block} is in {times} places" for block, times in listed.items() if times > 1]
    if missing := pool.size - len(listed):
        broken.append(f"K1: {missing} blocks are nowhere")
    return broken


def _references(scheduler: Scheduler) -> list[str]:
    """K3 a block's references are the tables that hold it, and the copies still to be made of it."""
    held = Counter(scheduler.memory.ballast)
    for sequence in scheduler.running.values():
        held.update(sequence.blocks)
    return [
        f"K3: block {block} has {ref} references and is in {held[block]} tables"
        for block, ref in enumerate(scheduler.memory.pool.ref)
        if ref != held[block]
    ]


def _cache(cache: PrefixCache, scheduler: Scheduler) -> list[str]:
    """K4 map and blocks agree and only computed blocks have a digest; K5 digests recompute."""
    broken = []
    pool = cache.pool
    marked = {block for block in range(pool.size + 1) if pool.digested[block]}
    if marked != set(cache.content):
        broken.append(f"K4: blocks {sorted(marked ^ set(cache.content))} differ between pool and cache")
    broken += [f"K4: {problem}" for problem in cache.inconsistencies()]
    for sequence in scheduler.running.values():
        uncomputed = sequence.table[sequence.computed // sequence.block_size :]
        if sequence.loading is not None:  # between those to be loaded there may be hits
            uncomputed = tuple(sequence.table[index] for index, _ in sequence.loading.todo)
        broken += [
            f"K4: block {block} of request {sequence.id} has a digest and is not computed"
            for block in uncomputed
            if pool.digested[block]
        ]
    for block, content in cache.content.items():
        if _digest(content) != content.digest:
            broken.append(f"K5: the digest of block {block} does not follow from its parent and tokens")
    return broken


def _tiers(scheduler: Scheduler) -> list[str]:
    """K1 to K5 below the device: a slot is in one place, pins are those of restores and swapped requests,
    and what is in the map lies somewhere."""
    transfers, below = scheduler.memory.transfers, scheduler.memory.cache.below
    swapped = [s.swapped for s in scheduler.waiting.values() if s.swapped is not None]
    loading = [s.loading for s in transfers.loading.values() if s.loading is not None]
    sources = [source for each in swapped for source in each.sources]
    sources += [source for each in loading for _, source in each.todo]
    cache_slots = [*below.free_slots, *below.host]
    swap_slots = [*transfers.free_slots, *(source.slot for source in sources if source.slot)]
    broken = []
    if sorted(cache_slots + swap_slots) != list(range(1, below.sizes.slots + 1)):
        broken.append(f"K1: host slots: {len(cache_slots)} of the cache and {len(swap_slots)} of swap")
    pins = Counter(id(source.entry) for source in sources if source.entry is not None)
    everywhere = {id(entry): entry for entry in (*below.entries.values(), *below.host.values())}
    everywhere |= {id(entry): entry for entry in below.disk.values()}
    for place, entry in everywhere.items():
        name = entry.content.digest.hex()
        if entry.pins != pins[place]:
            broken.append(f"K3: {name} below has {entry.pins} pins and {pins[place]} readers")
        placed = (entry.host is not Copy.NONE) + (entry.disk is not Copy.NONE)
        listed = (below.host.get(entry.slot) is entry) + (below.disk.get(entry.content.digest) is entry)
        if placed != listed or not placed or (below.entries.get(entry.content.digest) is entry) == entry.gone:
            broken.append(f"K4: {name} below is in {placed} places and in {listed} lists, gone {entry.gone}")
        if _digest(entry.content) != entry.content.digest:
            broken.append(f"K5: the digest {name} below does not follow from its parent and tokens")
    if not scheduler.waiting and not scheduler.running and (sources or loading):
        broken.append(f"K8: nobody is here, and {len(sources)} blocks are swapped or to be loaded")
    return broken


def _digest(content: Content) -> bytes:
    return blake2b(content.parent + content.tokens, digest_size=16).digest()


def _requests(scheduler: Scheduler, taken: int, ended: int, handed_back: int) -> list[str]:
    """K6 one state each; K7 the promise is the sum over the admitted; K8 drained; K9 nobody is lost."""
    broken = []
    waiting, running, memory = scheduler.waiting, scheduler.running, scheduler.memory
    if both := waiting.keys() & running.keys():
        broken.append(f"K6: requests {sorted(both)} wait and run")
    broken += [
        f"K6: waiting request {s.id} is {s.state.name}"
        for s in waiting.values()
        if s.state is not State.WAITING
    ]
    broken += [
        f"K6: running request {s.id} is {s.state.name}"
        for s in running.values()
        if s.state is not State.RUNNING
    ]
    broken += [f"K6: waiting request {s.id} holds blocks" for s in waiting.values() if s.blocks]
    promised = sum(s.promised for s in running.values())
    if promised != memory.promised:
        broken.append(f"K7: {memory.promised} blocks are reserved, the admitted need {promised}")
    backlog = sum(s.estimate for s in waiting.values())
    if backlog != scheduler.backlog_tokens:
        broken.append(f"K7: the backlog counts {scheduler.backlog_tokens} tokens, its requests {backlog}")
    referenced = memory.pool.referenced - len(memory.ballast)
    if not waiting and not running and (referenced or memory.promised):
        broken.append(f"K8: nobody is here, {referenced} blocks are referenced, {memory.promised} reserved")
    in_flight = len({id for id, _ in (*waiting, *running)})  # a request's choices wait and run on their own
    if taken != ended + handed_back + in_flight:
        broken.append(
            f"K9: {taken} requests taken, {ended} ended, {handed_back} handed back, {in_flight} in flight"
        )
    return broken
