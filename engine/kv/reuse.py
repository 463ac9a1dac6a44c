"""Eviction by predicted reuse: least p·cost goes first (ENGINE E19).

A block's *idle spell* begins at its release and ends with its next hit. Evicted content may still be asked
for, so its spell goes on while the miss history knows the digest, and ends in a hit when the content is
computed or brought back again. For each (class, hits up to 3)::

    p = (H + 1) / (S + 2)        S  spells that reached this block's age
                                 H  of these, ended in a hit within ``horizon`` more
    cost = b*B + e*B*(start + B/2)                            (ENGINE E40)

Ages are binned by powers of two: 0 s, 1 s, 2 s, 4 s .. A spell counts in S of a bin from when it reaches the
bin's lower edge, whether it has ended since or not. All counts halve each 600 s: a spell weighs
``0.5 ** (halvings since it reached the edge)`` in both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from engine.config import CostModel
from engine.kv.uses import Eviction, Key, Rank, Uses
from engine.runner.cost import prefill_seconds

_NS = 1_000_000_000
EDGES = (0, *(_NS << power for power in range(15)))
"""Lower edges of the bins in ns: 0, 1 s .. 16384 s."""
HALVED_EVERY = 600 * _NS
CLIMBS = 64
"""At most so many spells of a list are moved to their next bin at one look; each moves 15 times at most in
its life, so what is left behind at a look is caught up at the next ones."""


@dataclass(slots=True, eq=False)
class Spell:
    """Began at a release (ns), and is counted up to ``bin``."""

    ages: Ages
    began: int
    bin: int = 0


class Ages:
    """The idle spells of one list, by the age that they have reached."""

    def __init__(self) -> None:
        self._reached = [0.0] * len(EDGES)
        self._hit = [0.0] * len(EDGES)
        self._waiting: list[OrderedDict[Spell, None]] = [OrderedDict() for _ in EDGES]
        """Spells under way by bin, in order of their beginning."""
        self._halvings = 0
        self._climb_at = 0
        """Before then no spell reaches its next bin."""

    def begin(self, began: int) -> Spell:
        spell = Spell(self, began)
        self._halve(began)
        self._reached[0] += self._weight(spell, 0)
        self._waiting[0][spell] = None
        self._climb_at = min(self._climb_at, began + EDGES[1])
        return spell

    def end(self, spell: Spell, now: int, horizon: int | None) -> None:
        """It has ended, with a hit if ``horizon`` is given."""
        self._halve(now)
        del self._waiting[spell.bin][spell]
        while self._due(spell, now):
            self._count(spell)
        if horizon is None:
            return
        for bin in range(spell.bin + 1):
            if now - spell.began - EDGES[bin] <= horizon:
                self._hit[bin] += self._weight(spell, bin)

    def probability(self, age: int, now: int) -> float:
        """p of a block that has been idle for ``age`` ns."""
        self._halve(now)
        self._climb(now)
        bin = max(0, (age // _NS).bit_length())
        bin = min(bin, len(EDGES) - 1)
        return (self._hit[bin] + 1) / (self._reached[bin] + 2)

    def _climb(self, now: int) -> None:
        if now < self._climb_at:
            return
        left = CLIMBS
        for bin, waiting in enumerate(self._waiting[:-1]):
            while waiting and left and self._due(spell := next(iter(waiting)), now):
                waiting.popitem(last=False)
                self._count(spell)
                self._waiting[bin + 1][spell] = None
                left -= 1
        firsts = (next(iter(waiting)) for waiting in self._waiting[:-1] if waiting)
        self._climb_at = min((spell.began + EDGES[spell.bin + 1] for spell in firsts), default=now + _NS)

    @staticmethod
    def _due(spell: Spell, now: int) -> bool:
        return spell.bin + 1 < len(EDGES) and now - spell.began >= EDGES[spell.bin + 1]

    def _count(self, spell: Spell) -> None:
        spell.bin += 1
        self._reached[spell.bin] += self._weight(spell, spell.bin)

    def _weight(self, spell: Spell, bin: int) -> float:
        reached = (spell.began + EDGES[bin]) // HALVED_EVERY
        return float(0.5 ** (self._halvings - reached))

    def _halve(self, now: int) -> None:
        missing = now // HALVED_EVERY - self._halvings
        if missing > 0:
            factor = 0.5**missing
            self._reached = [count * factor for count in self._reached]
            self._hit = [count * factor for count in self._hit]
            self._halvings += missing


class Reuse(Eviction):
    """Least predicted reuse times recomputation cost first. ``horizon`` in s."""

    def __init__(self, cost: CostModel, block_size: int, horizon: float) -> None:
        self._cost = cost
        self._size = block_size
        self._horizon = round(horizon * 1e9)
        self._ages: dict[Hashable, Ages] = {}
        self._idle: dict[int, Spell] = {}
        self._evicted: dict[bytes, Spell] = {}

    def key(self, uses: Uses) -> Hashable:
        return uses.class_, min(uses.hits, 3)

    def rank(self, key: Key, uses: Uses, now: int) -> Rank:
        ages = self._ages.setdefault(key[1], Ages())
        probability = ages.probability(now - uses.released, now)
        return probability * self.recomputation(uses.start), uses.released

    def recomputation(self, start: int) -> float:
        """Seconds that the block at position ``start`` costs in a prefill."""
        return prefill_seconds(self._cost, start, self._size)

    def released(self, block: int, uses: Uses) -> None:
        self._end(self._idle.pop(block, None))
        ages = self._ages.setdefault(self.key(uses), Ages())
        self._idle[block] = ages.begin(uses.released)

    def hit(self, block: int, now: int) -> None:
        if spell := self._idle.pop(block, None):
            spell.ages.end(spell, now, self._horizon)

    def evicted(self, block: int, digest: bytes | None) -> None:
        spell = self._idle.pop(block, None)
        if spell is None:
            return
        if digest is None:  # there is another copy: this spell tells nothing
            spell.ages.end(spell, spell.began, None)
        else:
            self._end(self._evicted.pop(digest, None))
            self._evicted[digest] = spell

    def wanted(self, digest: bytes, now: int) -> None:
        if spell := self._evicted.pop(digest, None):
            spell.ages.end(spell, now, self._horizon)

    def forgotten(self, digest: bytes) -> None:
        self._end(self._evicted.pop(digest, None))

    def cleared(self) -> None:
        for spell in (*self._idle.values(), *self._evicted.values()):
            self._end(spell)
        self._idle.clear()
        self._evicted.clear()

    @staticmethod
    def _end(spell: Spell | None) -> None:
        if spell is not None:
            spell.ages.end(spell, spell.began, None)
