"""Whether the pool has room for a request: now, without some of the running, or at a later time.

The policies of admission are pure functions over claims and books (engine.sched.admission); here the books
are made up from the pool and from what runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from engine.config import EngineConfig
from engine.kv.blocks import blocks_for
from engine.kv.prefix_cache import Match
from engine.sched.admission import Books, Claim, admits, headroom, unit_blocks
from engine.sched.backfill import Reservation, Stay, reserve
from engine.sched.memory import Memory
from engine.sched.outlook import Outlook, steps_left
from engine.sched.sequence import Sequence

LIFETIME_AFTER = 3
"""So many preemptions, then the request resumes only with everything it may need (ENGINE E27)."""

Running = Collection[Sequence]


class Capacity:
    """Looks, and changes nothing. Its cost per question is that of the policy: constant for ``prompt`` and
    ``lifetime``, a pass over the running for ``estimate``, a sort of them for ``peak``."""

    def __init__(self, memory: Memory, outlook: Outlook) -> None:
        self.memory = memory
        self.outlook = outlook
        self._reserved_for: tuple[Sequence, int, EngineConfig] | None = None
        self._reserved = Reservation(0, 0)

    def fits(self, sequence: Sequence, running: Running) -> Match | None:
        """Its hits if it may be admitted beside the running, None if it lacks capacity (ENGINE E23)."""
        memory, size = self.memory, sequence.block_size
        policy, books = self._policy(sequence), self._books(running)
        claim = self._claim(sequence)
        at_best = claim._replace(ref_hit=self._shared_at_best(sequence))
        if not admits(policy, at_best, books):
            return None  # spares the lookup of a long prompt that waits at the head step after step
        match = memory.match(sequence)
        shared = self._shared(match)
        if not admits(policy, claim._replace(ref_hit=shared), books):
            sequence.looked_up = memory.turnover, match.resident, shared
            return None
        fresh = blocks_for(claim.tokens, size) - len(match.blocks)
        if memory.pool.free - (len(match.blocks) - shared) < fresh:
            memory.meter.inc("headrace_engine_allocation_failures_total")
            return None  # estimator and allocator disagree: back to the queue (ENGINE E24)
        return match

    def _shared_at_best(self, sequence: Sequence) -> int:
        """Blocks of its prefix that others hold, at most: those of the last lookup as long as nobody has
        come or gone and the next block of it has not been computed."""
        if sequence.looked_up is not None:
            turnover, found, shared = sequence.looked_up
            next_ = sequence.digests[found] if found < len(sequence.digests) else None
            if turnover == self.memory.turnover and not (next_ and self.memory.cache.holds(next_)):
                return shared
        return len(sequence.tokens) // sequence.block_size

    def would_fit(self, sequence: Sequence, running: Running, leaving: Running) -> bool:
        """Whether it would fit if those ``leaving`` left the running and fenced blocks were free. Blocks
        that it has in common with anybody, or they with each other, are not counted on: it may fit all the
        same."""
        held, gone = sum(len(each.table) for each in running), set(leaving)
        books = self._books([each for each in running if each not in gone])
        freed = sum(len(each.table) for each in leaving) - max(0, held - books.referenced)
        books = replace(
            books,
            free=books.free + max(0, freed) + self.memory.pool.fenced,
            promised=books.promised - sum(each.promised for each in leaving),
            referenced=books.referenced - max(0, freed),
        )
        return admits(self._policy(sequence), self._claim(sequence), books)

    def reservation(self, head: Sequence, running: Running, step: int) -> Reservation:
        """When enough of the running will have ended for the head, seen from ``step`` (ENGINE E25): with
        everything that they may generate under ``lifetime``, which has promised it to them; else as far as
        they are expected to, and the others grow meanwhile. Made anew once somebody has come or gone."""
        for_whom = head, self.memory.turnover, self.memory.config
        if for_whom != self._reserved_for:
            self._reserved_for, self._reserved = for_whom, self._reserve(head, running, step)
        return self._reserved

    def _reserve(self, head: Sequence, running: Running, step: int) -> Reservation:
        memory, books = self.memory, self._books(running)
        hit = self._shared(memory.match(head))
        stays = self.stays(running, step)
        if self._sure:
            free, growth = books.free - books.promised, 0.0
        else:
            stays = [Stay(stay.end, len(each.table)) for stay, each in zip(stays, running, strict=True)]
            free, growth = books.free, 1 / head.block_size
        return reserve(
            stays,
            free,
            self.stay(head, step).blocks - hit,
            step=step,
            growth=growth,
            shared=hit + max(0, sum(len(each.table) for each in running) - books.referenced),
            headroom=headroom(memory.config.admission, memory.pool.size, len(running)),
        )

    def stays(self, sequences: Iterable[Sequence], step: int) -> list[Stay]:
        """The last step of each and what it will hold then, if it runs on or enters in ``step``."""
        sure, size = self._sure, self.memory.cache.block_size
        chunk = self.memory.config.scheduler.prefill_chunk
        stays = []
        for each in sequences:
            tokens, more = len(each.tokens), self.outlook.likely(each, sure)
            uncomputed = tokens - each.computed if each.table else each.estimate
            blocks = unit_blocks(tokens, tokens + more, size, each.forks + 1)
            stays.append(Stay(step + steps_left(uncomputed, more, chunk) - 1, blocks))
        return stays

    def stay(self, sequence: Sequence, step: int) -> Stay:
        return self.stays((sequence,), step)[0]

    # -- the books ----------------------------------------------------------------------------

    @property
    def _sure(self) -> bool:
        return self.memory.config.admission.policy == "lifetime"

    def _policy(self, sequence: Sequence) -> str:
        again = sequence.truth.preemptions >= LIFETIME_AFTER
        return "lifetime" if again else self.memory.config.admission.policy

    def _claim(self, sequence: Sequence) -> Claim:
        return self.outlook.claim(sequence, self._busy)

    @property
    def _busy(self) -> bool:
        pool = self.memory.pool
        return pool.referenced > self.memory.config.admission.busy_ratio * pool.size

    def _shared(self, match: Match) -> int:
        """Blocks of a hit that others hold already."""
        ref = self.memory.pool.ref
        return sum(ref[block] > 0 for block in match.blocks)

    def _books(self, running: Running) -> Books:
        memory, pool, busy = self.memory, self.memory.pool, self._busy
        reserve = headroom(memory.config.admission, pool.size, len(running))
        ballast = len(memory.ballast)
        return Books(
            block_size=memory.cache.block_size,
            usable=pool.size - ballast - reserve,
            free=pool.free - reserve,
            promised=memory.promised,
            referenced=pool.referenced - ballast,
            ratio=self.outlook.ratio,
            alone=not running,
            running=lambda: [self.outlook.claim(each, busy) for each in running],
        )
