"""The invariants K1 to K9 (ENGINE 15), checked on a live worker, with evidence for each that is broken."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any

from engine.kv.blocks import BlockPool
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
        *_requests(scheduler, taken, ended, handed_back),
    ]
    return {
        "blocks": pool.size,
        "free": pool.free,
        "cached": pool.cached_free,
        "fenced": pool.fenced,
        "referenced": pool.referenced,
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
    lists = {"blank": pool.blank} | {f"life {life}": blocks for life, blocks in pool.cached.items()}
    listed: Counter[int] = Counter(referenced)
    for name, blocks in lists.items():
        ids = list(blocks)
        listed.update(ids)
        if len(ids) != blocks.length:
            broken.append(f"K2: list {name} has {len(ids)} blocks and counts {blocks.length}")
    for _, fenced in pool.fences:
        listed.update(fenced)
    if sum(blocks.length for blocks in pool.cached.values()) != pool.cached_free:
        broken.append(f"K2: cached lists do not hold the {pool.cached_free} blocks counted")
    broken += [f"K2: block {block} is in {times} places" for block, times in listed.items() if times > 1]
    if missing := pool.size - len(listed):
        broken.append(f"K1: {missing} blocks are nowhere")
    return broken


def _references(scheduler: Scheduler) -> list[str]:
    """K3 a block's references are the tables that hold it."""
    held = Counter(scheduler.memory.ballast)
    for sequence in scheduler.running.values():
        held.update(sequence.table)
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
        done = sequence.computed // sequence.block_size
        broken += [
            f"K4: block {block} of request {sequence.id} has a digest and is not computed"
            for block in sequence.table[done:]
            if pool.digested[block]
        ]
    for block, content in cache.content.items():
        if blake2b(content.parent + content.tokens, digest_size=16).digest() != content.digest:
            broken.append(f"K5: the digest of block {block} does not follow from its parent and tokens")
    return broken


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
    broken += [f"K6: waiting request {s.id} holds blocks" for s in waiting.values() if s.table]
    promised = sum(s.promised for s in running.values())
    if promised != memory.promised:
        broken.append(f"K7: {memory.promised} blocks are reserved, the admitted need {promised}")
    backlog = sum(s.estimate for s in waiting.values())
    if backlog != scheduler.backlog_tokens:
        broken.append(f"K7: the backlog counts {scheduler.backlog_tokens} tokens, its requests {backlog}")
    referenced = memory.pool.referenced - len(memory.ballast)
    if not waiting and not running and (referenced or memory.promised):
        broken.append(f"K8: nobody is here, {referenced} blocks are referenced, {memory.promised} reserved")
    in_flight = len(waiting) + len(running)
    if taken != ended + handed_back + in_flight:
        broken.append(
            f"K9: {taken} requests taken, {ended} ended, {handed_back} handed back, {in_flight} in flight"
        )
    return broken
