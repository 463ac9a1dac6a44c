"""Where a run stands, for whoever watches it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.plan import Phases, Shot
from results.record import Outcome, Record

_RECENT = 50


@dataclass(frozen=True, slots=True)
class ClassProgress:
    planned: int
    sent: int
    outcomes: dict[str, int]
    ttft_sched_s: float | None
    """Median of the last completed requests."""
    tokens: int
    """Output tokens of completed requests."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``t`` in ns since t0; ``phase`` is warmup, window, cooldown or drain."""

    t: int
    phase: str
    in_flight: int
    classes: dict[str, ClassProgress]


@dataclass(slots=True)
class _Tally:
    planned: int = 0
    sent: int = 0
    tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))


class Progress:
    """Counts by class as things happen."""

    def __init__(self, shots: Sequence[Shot], phases: Phases) -> None:
        self._phases = phases
        self._tallies = {name: _Tally() for name in sorted({shot.class_ for shot in shots})}
        for shot in shots:
            self._tallies[shot.class_].planned += 1
        self.littles_sum = 0
        """Sum of [start, closed) of all records, clipped to the window, in ns (C35)."""
        self.lost = 0
        """Requests that the client itself could not send for want of descriptors, ports or memory."""

    def sent(self, shot: Shot) -> None:
        self._tallies[shot.class_].sent += 1

    def closed(self, record: Record) -> None:
        tally = self._tallies[record.class_]
        tally.outcomes[record.outcome.value] += 1
        if record.outcome is Outcome.COMPLETED:
            tally.tokens += record.n_out or 0
            if record.first_token is not None and record.due is not None:
                tally.recent.append(record.first_token - record.due)
        elif record.outcome is Outcome.CONNECT_ERROR and _exhausted(record.error or ""):
            self.lost += 1
        if record.start is not None and record.closed is not None:
            a, b = self._phases.window_ns
            self.littles_sum += min(max(record.closed, a), b) - min(max(record.start, a), b)

    def snapshot(self, t: int, in_flight: int) -> Snapshot:
        phase = "drain" if t >= self._phases.load_ns else self._phases.of(t)
        return Snapshot(t, phase, in_flight, {name: _frozen(tally) for name, tally in self._tallies.items()})


def _frozen(tally: _Tally) -> ClassProgress:
    recent = sorted(tally.recent)
    median = recent[len(recent) // 2] / 1e9 if recent else None
    return ClassProgress(tally.planned, tally.sent, dict(tally.outcomes), median, tally.tokens)


def _exhausted(error: str) -> bool:
    """Whether a connect error names one of the client's own limits (see loadgen.client)."""
    return error.partition(":")[0] in ("EMFILE", "ENFILE", "EADDRNOTAVAIL", "ENOMEM", "ENOBUFS", "EAGAIN")
