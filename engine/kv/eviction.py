"""Which cached block goes first (ENGINE E19): one class per policy.

Free blocks that hold a digest wait in one list per *key*, least recently released first. A victim is found
by comparing the heads of the lists that the policy looks at, so its cost never grows with the pool. How many
lists that are is bounded by the configuration, never by requests:

=============  ==========================  ==================================
policy         one list per                looked at
=============  ==========================  ==================================
``lru``        (all in one)                1
``ttl``        life                        all: names in ``cache.retention``
``priority``   class rank                  all: ranks in the class table
``reuse``      (class, hits up to 3)       all: four per class
``footprint``  tenant or session           the longest of each tenant weight
=============  ==========================  ==================================

``copied_first`` doubles that: blocks with a copy in a slower tier wait in lists of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from engine.config import EngineConfig
from engine.kv.reuse import Reuse
from engine.kv.uses import Eviction, Key, Rank, Uses


class Ttl(Eviction):
    """Blocks without a promised life first, then least life left."""

    def key(self, uses: Uses) -> Hashable:
        return uses.life

    def rank(self, key: Key, uses: Uses, now: int) -> Rank:
        return (0, uses.released) if uses.life is None else (1, uses.released + uses.life)


class Priority(Eviction):
    """Blocks of the least urgent class first, by the most urgent user that each had."""

    def key(self, uses: Uses) -> Hashable:
        return uses.rank or 0

    def rank(self, key: Key, uses: Uses, now: int) -> Rank:
        return -(uses.rank or 0), uses.released


class Footprint(Eviction):
    """Blocks of the owner with most cached blocks for its weight; an owner is the tenant or session that
    used a block last.

    Per weight the lists are sorted into *steps* of equal length. Lengths change by one, so the longest list
    is found without a search, however many owners there are.
    """

    def __init__(self, weights: Mapping[str, float], otherwise: float = 1.0) -> None:
        self._weights = weights
        self._otherwise = otherwise
        self._lengths: dict[Key, int] = {}
        self._steps: dict[tuple[bool, float], dict[int, dict[Key, None]]] = {}
        self._longest: dict[tuple[bool, float], int] = {}

    def key(self, uses: Uses) -> Hashable:
        return uses.owner

    def rank(self, key: Key, uses: Uses, now: int) -> Rank:
        return -self._lengths[key] / self._weight(key), uses.released

    def contenders(self, lists: Iterable[Key]) -> Iterable[Key]:
        return [next(iter(self._steps[group][length])) for group, length in self._longest.items() if length]

    def resized(self, key: Key, length: int) -> None:
        group = key[0], self._weight(key)
        steps = self._steps.setdefault(group, {})
        before = self._lengths.pop(key, 0)
        if before:
            del steps[before][key]
            if not steps[before]:
                del steps[before]
        if length:
            self._lengths[key] = length
            steps.setdefault(length, {})[key] = None
        longest = max(self._longest.get(group, 0), length)
        self._longest[group] = longest if longest in steps else length

    def _weight(self, key: Key) -> float:
        return self._weights.get(str(key[1]), self._otherwise)


def _reuse(config: EngineConfig) -> Eviction:
    return Reuse(config.cost, config.memory.block_size, config.cache.reuse_horizon)


def _footprint(config: EngineConfig) -> Eviction:
    if config.cache.footprint_of == "session":
        return Footprint({})
    weights = {name: tenant.weight for name, tenant in config.tenants.items()}
    return Footprint(weights, weights.get("default", 1.0))


EVICTIONS: dict[str, Callable[[EngineConfig], Eviction]] = {
    "lru": lambda config: Eviction(),
    "ttl": lambda config: Ttl(),
    "priority": lambda config: Priority(),
    "reuse": _reuse,
    "footprint": _footprint,
}
