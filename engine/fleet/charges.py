"""What the requests at the gateway are charged to their tenants (ENGINE E29)."""

from __future__ import annotations

from engine.fleet.ledger import Ledger
from engine.fleet.run import Run
from engine.request import WorkerTruth
from engine.sched.queue import Queue


class Charges:
    """A request costs the most prompt tokens that one attempt of it has computed, and its output tokens."""

    def __init__(self, queue: Queue, ledger: Ledger) -> None:
        self._queue = queue
        self._ledger = ledger

    def admitted(self, run: Run, uncached: int) -> None:
        """It goes to a worker that has so much of its prompt to compute: charged beforehand, but for what an
        earlier attempt has computed."""
        self._queue.admitted(run.entry, max(0, uncached - run.computed))
        run.charged, run.to_compute = max(uncached, run.computed), uncached

    def served(self, run: Run, tokens: int) -> None:
        """Output tokens of a living attempt have come."""
        self._queue.charge(run.entry.tenant, output=tokens)

    def settled(self, run: Run, truth: WorkerTruth | None) -> None:
        """The attempt is over and still in the ledger; without a worker's truth, what the ledger saw counts.
        What was charged and not computed is given back."""
        seen = max(0, run.to_compute - self._ledger.left(run.key))  # loads are in the ledger too
        here = truth.computed if truth is not None else seen
        run.computed = max(run.computed, here)
        self._queue.charge(run.entry.tenant, uncached=run.computed - run.charged)
        run.charged = run.computed
