"""Who is promised what on which worker: the reservations behind every load figure (FLEET F26, F29).

A reservation is made in the call that decides, shrinks as the prompt is computed, and is settled exactly
once. Loads are sums kept beside the reservations; ``audit`` recomputes them (I22).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Attempt = tuple[int, int]
"""(request id, attempt number)."""


@dataclass(slots=True)
class Reservation:
    worker: int
    prefill: int
    """Prompt tokens to compute there that are not computed yet."""
    decode: int
    """Blocks of prompt + E[out]."""
    whole: int
    """Blocks of prompt + out_max (E23, ``lifetime``), those of ``digests`` included."""
    digests: Sequence[bytes] = ()
    rows: int = 1
    """Its choices: so many rows decode."""
    started: bool = False
    decoding: bool = False
    context: int = 0


@dataclass(slots=True)
class WorkerLoad:
    """Sums over the reservations of one worker."""

    requests: int = 0
    prefill: int = 0
    decode: int = 0
    backlog_requests: int = 0
    """Dispatched, not started (F29)."""
    backlog_tokens: int = 0
    running: int = 0
    """Rows in decode."""
    contexts: int = 0
    private_blocks: int = 0
    """``whole`` blocks that are no full prompt blocks."""
    shared: dict[bytes, int] = field(default_factory=dict)
    """Full prompt blocks by digest: how many of the reservations count on each."""

    @property
    def blocks(self) -> int:
        """All blocks promised, those in common counted once."""
        return self.private_blocks + len(self.shared)


class Ledger:
    """The reservations of one gateway."""

    def __init__(self) -> None:
        self._held: dict[Attempt, Reservation] = {}
        self._loads: dict[int, WorkerLoad] = {}
        self._waiting: dict[int, tuple[int, int, int]] = {}

    def load(self, worker: int) -> WorkerLoad:
        load = self._loads.get(worker)
        if load is None:
            load = self._loads[worker] = WorkerLoad()
        return load

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, attempt: Attempt) -> bool:
        return attempt in self._held

    def reserve(self, attempt: Attempt, reservation: Reservation) -> None:
        assert attempt not in self._held
        self._held[attempt] = reservation
        load = self.load(reservation.worker)
        load.requests += 1
        load.prefill += reservation.prefill
        load.decode += reservation.decode
        load.backlog_requests += 1
        load.backlog_tokens += reservation.prefill
        load.private_blocks += reservation.whole - len(reservation.digests)
        for digest in reservation.digests:
            load.shared[digest] = load.shared.get(digest, 0) + 1

    def progress(self, attempt: Attempt, left: int) -> int:
        """The worker has started it and ``left`` prompt tokens remain; returns how many fewer that is."""
        reservation = self._held[attempt]
        self._start(reservation)
        done = max(0, reservation.prefill - left)
        reservation.prefill -= done
        self.load(reservation.worker).prefill -= done
        return done

    def first_token(self, attempt: Attempt, context: int) -> int:
        """Its prefill is over; returns the prompt tokens that no progress had reported."""
        reservation = self._held[attempt]
        done = self.progress(attempt, 0)
        if not reservation.decoding:
            reservation.decoding, reservation.context = True, context
            load = self.load(reservation.worker)
            load.running += reservation.rows
            load.contexts += reservation.rows * context
        return done

    def left(self, attempt: Attempt) -> int:
        """Prompt tokens that it still is to compute."""
        return self._held[attempt].prefill

    def settle(self, attempt: Attempt) -> bool:
        """Give everything back. False if that has happened before."""
        reservation = self._held.pop(attempt, None)
        if reservation is None:
            return False
        self._start(reservation)
        load = self.load(reservation.worker)
        load.requests -= 1
        load.prefill -= reservation.prefill
        load.decode -= reservation.decode
        load.private_blocks -= reservation.whole - len(reservation.digests)
        if reservation.decoding:
            load.running -= reservation.rows
            load.contexts -= reservation.rows * reservation.context
        for digest in reservation.digests:
            if load.shared[digest] == 1:
                del load.shared[digest]
            else:
                load.shared[digest] -= 1
        return True

    def _start(self, reservation: Reservation) -> None:
        if not reservation.started:
            reservation.started = True
            load = self.load(reservation.worker)
            load.backlog_requests -= 1
            load.backlog_tokens -= reservation.prefill

    def wait(self, worker: int, prefill: int, decode: int) -> None:
        """A queued request has chosen a worker that is full: it counts there, unbound (F29)."""
        requests, tokens, blocks = self._waiting.get(worker, (0, 0, 0))
        self._waiting[worker] = requests + 1, tokens + prefill, blocks + decode

    def waiting(self, worker: int) -> tuple[int, int, int]:
        """(requests, prefill tokens, decode blocks) of those that wait for the worker."""
        return self._waiting.get(worker, (0, 0, 0))

    def clear_waiting(self) -> None:
        """All that wait choose again."""
        self._waiting.clear()

    def audit(self, in_flight: set[Attempt]) -> list[str]:
        """I22: every load is the sum of its reservations, and these are exactly the attempts in flight."""
        wrong = []
        if self._held.keys() != in_flight:
            odd = sorted(self._held.keys() ^ in_flight)
            wrong.append(f"reservations and attempts in flight differ by {odd[:5]}")
        for worker, load in self._loads.items():
            mine = [r for r in self._held.values() if r.worker == worker]
            waiting = [r for r in mine if not r.started]
            decoding = [r for r in mine if r.decoding]
            true = (
                len(mine), sum(r.prefill for r in mine), sum(r.decode for r in mine),
                len(waiting), sum(r.prefill for r in waiting), sum(r.rows for r in decoding),
                sum(r.rows * r.context for r in decoding), sum(r.whole - len(r.digests) for r in mine),
                len({digest for r in mine for digest in r.digests}),
            )  # fmt: skip
            kept = (
                load.requests, load.prefill, load.decode, load.backlog_requests, load.backlog_tokens,
                load.running, load.contexts, load.private_blocks, len(load.shared),
            )  # fmt: skip
            if true != kept:
                wrong.append(f"worker {worker}: load {kept} is not the sum of its reservations {true}")
        return wrong
