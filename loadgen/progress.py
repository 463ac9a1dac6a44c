"""Where a run stands, for whoever watches it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from loadgen.plan import Phases, Shot
from results.record import Outcome, Record

_RECENT = 50


@dataclass(frozen=True, slots=True)
class Heard:
    """What has become of a class's requests, as far as they are understood. Medians of the last completed
    ones, in s; ``tokens``: output tokens of completed requests."""

    outcomes: dict[str, int]
    ttft_sched_s: float | None = None
    itl_s: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClassProgress:
    planned: int
    sent: int
    outcomes: dict[str, int]
    ttft_sched_s: float | None
    itl_s: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``t`` in ns since t0; ``phase`` is warmup, window, cooldown or drain."""

    t: int
    phase: str
    in_flight: int
    classes: dict[str, ClassProgress]


@dataclass(slots=True)
class _Tally:
    tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    ttft: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    itl: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))


class Tallies:
    """Counts records by class as they are made."""

    def __init__(self, phases: Phases) -> None:
        self._a, self._b = phases.window_ns
        self._tallies: dict[str, _Tally] = {}
        self.littles_sum = 0
        """Sum of [start, closed) of all attempts, clipped to the window, in ns (C35)."""
        self.lost = 0
        """Requests that the client itself could not send for want of descriptors, ports or memory."""

    def closed(self, record: Record) -> None:
        tally = self._tallies.setdefault(record.class_, _Tally())
        tally.outcomes[record.outcome.value] += 1
        if record.outcome is Outcome.COMPLETED:
            _completed(tally, record)
        elif record.outcome is Outcome.CONNECT_ERROR and _exhausted(record.error or ""):
            self.lost += 1
        self.spent(record)

    def spent(self, record: Record) -> None:
        """Only the time of an attempt that was followed by another one."""
        if record.start is not None and record.closed is not None:
            a, b = self._a, self._b
            self.littles_sum += min(max(record.closed, a), b) - min(max(record.start, a), b)

    def heard(self) -> dict[str, Heard]:
        return {name: _frozen(tally) for name, tally in self._tallies.items()}


class Counts:
    """What the driver knows by itself: planned and sent, by class."""

    def __init__(self, shots: Sequence[Shot], phases: Phases) -> None:
        self._phases = phases
        self._planned = Counter(shot.class_ for shot in shots)
        self.sent: Counter[str] = Counter()

    def snapshot(self, t: int, in_flight: int, heard: Mapping[str, Heard]) -> Snapshot:
        phase = "drain" if t >= self._phases.load_ns else self._phases.of(t)
        nothing = Heard({})
        classes = {
            name: ClassProgress(planned, self.sent[name], **asdict(heard.get(name, nothing)))
            for name, planned in sorted(self._planned.items())
        }
        return Snapshot(t, phase, in_flight, classes)


def merged(snapshots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshots (as dicts) of several load processes as one; of medians, the largest."""
    classes: dict[str, dict[str, Any]] = {}
    for row in (row for snapshot in snapshots for row in snapshot["classes"].items()):
        name, one = row
        into = classes.setdefault(
            name,
            {
                "planned": 0,
                "sent": 0,
                "outcomes": Counter(),
                "ttft_sched_s": None,
                "itl_s": None,
                "tokens": 0,
            },
        )
        for key in ("planned", "sent", "tokens"):
            into[key] += one[key]
        into["outcomes"].update(one["outcomes"])
        for key in ("ttft_sched_s", "itl_s"):
            known = [value for value in (into[key], one[key]) if value is not None]
            into[key] = max(known, default=None)
    latest = max(snapshots, key=lambda snapshot: snapshot["t"])
    in_flight = sum(snapshot["in_flight"] for snapshot in snapshots)
    return {"t": latest["t"], "phase": latest["phase"], "in_flight": in_flight, "classes": classes}


def _completed(tally: _Tally, record: Record) -> None:
    tally.tokens += record.n_out or 0
    if record.first_token is None or record.last_token is None:
        return
    if record.due is not None:
        tally.ttft.append(record.first_token - record.due)
    if record.n_out is not None and record.n_out > record.k_first:
        tally.itl.append((record.last_token - record.first_token) / (record.n_out - record.k_first))


def _frozen(tally: _Tally) -> Heard:
    return Heard(
        dict(tally.outcomes),
        median(tally.ttft) / 1e9 if tally.ttft else None,
        median(tally.itl) / 1e9 if tally.itl else None,
        tally.tokens,
    )


def _exhausted(error: str) -> bool:
    """Whether a connect error names one of the client's own limits (see loadgen.client)."""
    return error.partition(":")[0] in ("EMFILE", "ENFILE", "EADDRNOTAVAIL", "ENOMEM", "ENOBUFS", "EAGAIN")
