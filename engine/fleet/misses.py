"""The part of the true miss reason that only the gateway knows (ENGINE E18, FLEET F32).

A worker sees its own pool; that another worker held the block, was computing it, or lost it is known here.
It is written down at the decision, for later the index has moved on. A worker that lost the block itself
knows best why: its word stands against a loss elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.fleet.index import EventIndex, mask
from engine.fleet.predicted import PredictedIndex
from engine.fleet.run import Facts
from engine.request import Miss, MissReason

_RANK = {reason: rank for rank, reason in enumerate(MissReason)}
_FINAL = (MissReason.BELOW_BLOCK, MissReason.LAST_BLOCK_RULE)
_LOSSES = (MissReason.EVICTED_TTL, MissReason.EVICTED_CAPACITY, MissReason.PREEMPTED)


def facts_at(
    digests: Sequence[bytes], worker: int, events: EventIndex, predicted: PredictedIndex, others: int
) -> Facts:
    """What is known of each block if the request goes to ``worker``; ``others`` masks the other workers
    that count. Those hold a block in whatever tier; this one on its device, for of what lies below it says
    itself whether it was restored. A block that it holds behind one it lacks shares that one's reason."""
    runs: list[tuple[int, MissReason | None]] = []
    bit, last, hole = mask(worker, "device"), None, False
    elsewhere = sum(mask(other) for other in range(others.bit_length()) if others >> other & 1)
    for block, (digest, holders) in enumerate(zip(digests, events.all_holders(digests), strict=True)):
        if hole and holders & bit:
            continue
        hole = hole or not holders & bit
        if holders & elsewhere:
            reason = MissReason.ON_OTHER_WORKER
        elif holders & bit:
            reason = None  # a hit, or the worker loses it from now on and says why
        elif (lost := events.why_lost(digest)) is not None:
            reason = lost
        elif predicted.elsewhere(digest, worker):
            reason = MissReason.BEING_COMPUTED
        else:
            reason = None
        if reason is not last or not runs:
            runs.append((block, reason))
            last = reason
    return tuple(runs)


def refine(misses: Sequence[Miss], facts: Facts, block_size: int) -> tuple[Miss, ...]:
    """The worker's misses with the gateway's knowledge: of both reasons the first in E18's order."""
    refined: list[Miss] = []
    for miss in misses:
        for piece, fact in _pieces(miss, facts, block_size):
            reason = piece.reason
            if fact is not None and _outranks(fact, reason):
                reason = fact
            _append(refined, Miss(reason, piece.first_block, piece.blocks, piece.tokens))
    return tuple(refined)


def _outranks(fact: MissReason, said: MissReason) -> bool:
    if said in _FINAL or (fact in _LOSSES and said in _LOSSES):
        return False
    return _RANK[fact] < _RANK[said]


def _pieces(miss: Miss, facts: Facts, block_size: int) -> list[tuple[Miss, MissReason | None]]:
    """``miss`` cut where the facts change."""
    end = miss.first_block + miss.blocks
    cuts = [start for start, _ in facts if miss.first_block < start < end]
    edges = [miss.first_block, *cuts, end]
    pieces, left = [], miss.tokens
    for first, after in pairwise(edges):
        tokens = left if after == end else (after - first) * block_size
        left -= tokens
        known = [reason for start, reason in facts if start <= first]
        pieces.append((Miss(miss.reason, first, after - first, tokens), known[-1] if known else None))
    return pieces


def _append(misses: list[Miss], miss: Miss) -> None:
    if misses and misses[-1].reason is miss.reason:
        before = misses[-1]
        if before.first_block + before.blocks == miss.first_block:
            miss = Miss(
                miss.reason, before.first_block, before.blocks + miss.blocks, before.tokens + miss.tokens
            )
            misses.pop()
    misses.append(miss)
