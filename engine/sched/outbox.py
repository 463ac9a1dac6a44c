"""What a worker has to say to the gateway, in order."""

from __future__ import annotations

from engine import messages as m
from engine.kv.prefix_cache import PrefixCache
from engine.sched.adapters import Adapters
from engine.sched.holds import Holds


class Outbox:
    """``messages`` is written by whoever has something to say; others report when they are asked.

    KV events are numbered within an epoch (ENGINE E42, E44), one batch for all that changed in one go.
    """

    def __init__(self, epoch: int, cache: PrefixCache, holds: Holds, adapters: Adapters) -> None:
        self.epoch = epoch
        self.messages: list[m.FromWorker] = []
        self._cache = cache
        self._holds = holds
        self._adapters = adapters
        self._batches = 0

    def gather(self) -> None:
        """Add what holds, adapters and the cache have to report."""
        self.messages += self._holds.take_reports()
        self.messages += self._adapters.take_reports()
        if events := self._cache.events.take():
            self._batches += 1
            self.messages.append(m.KvEvents(self.epoch, self._batches, events))

    def begin_epoch(self) -> None:
        """What is gathered from now on is of a new epoch."""
        self.epoch += 1
        self._batches = 0

    def take(self) -> list[m.FromWorker]:
        """Everything since the last call."""
        self.gather()
        taken = self.messages.copy()
        self.messages.clear()  # others hold on to this very list
        return taken
