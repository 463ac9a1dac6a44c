"""The kernel's receive stamps as times on the client's clock, with their error bound (MEASUREMENT C3).

The kernel stamps on CLOCK_REALTIME, which is slewed and may be set. Samples of both clocks, taken every
100 ms, tie it to the monotonic clock:

```
real - mono      ____a_____b                a..b slews: interpolated, the bound grows by the slew
                            \\
                             c_____d____    b..c jumps: nothing stamped between b and c is believed
```
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.clock import monotonic

SAMPLE_NS = 100_000_000
"""How often the clocks should be compared."""
JUMP_NS = 50_000
"""An offset that moves further from one sample to the next has jumped."""
MAX_SLEW = 500e-6
"""How fast the kernel may slew CLOCK_REALTIME, s per s: what is unknown beyond the last sample."""
OLDEST_NS = 60_000_000_000
"""A stamp this long before its read is not that read's."""

_TRIES = 5


@dataclass(frozen=True, slots=True)
class ClockSample:
    """At ``mono`` (ns, monotonic) CLOCK_REALTIME was ``mono + offset``, give or take ``half`` ns."""

    mono: int
    offset: int
    half: int


def _realtime() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def sample_clock(
    mono: Callable[[], int] = monotonic, real: Callable[[], int] = _realtime, tries: int = _TRIES
) -> ClockSample:
    """Compare the clocks: real read between two reads of mono, the tightest of ``tries`` brackets."""
    brackets = [(mono(), real(), mono()) for _ in range(tries)]
    before, at, after = min(brackets, key=lambda bracket: bracket[2] - bracket[0])
    middle = (before + after) // 2
    return ClockSample(middle, at - middle, after - middle)


@dataclass(frozen=True, slots=True)
class _Span:
    """The time between two neighbouring samples: ``start`` to ``end`` on CLOCK_REALTIME."""

    start: int
    end: int
    offset: int
    """At the start; until the end it moves by ``slew``."""
    slew: int
    bound: int


@dataclass(frozen=True, slots=True)
class _Jump:
    """Between two samples CLOCK_REALTIME was set: a stamp from then may read anything in ``reads``."""

    mono: tuple[int, int]
    reads: tuple[tuple[int, int], tuple[int, int]]

    def may_have_made(self, real: int, latest: int | None) -> bool:
        """``latest``: the stamp was made then or up to `OLDEST_NS` earlier; None = at any time."""
        a, b = self.mono
        if latest is not None and not (a <= latest and b >= latest - OLDEST_NS):
            return False
        return any(low <= real <= high for low, high in self.reads)


class ClockBridge:
    """CLOCK_REALTIME to the monotonic clock by the samples added so far. Add one before the load and one
    after it: beyond the outermost samples only a slew is allowed for, a jump there goes unseen."""

    def __init__(self) -> None:
        self._last: ClockSample | None = None
        self._first: ClockSample | None = None
        self._runs: list[_Run] = []
        self._jumps: list[_Jump] = []

    def add(self, sample: ClockSample) -> None:
        """Samples come in order of their time. Raises ValueError."""
        last = self._last
        if last is None:
            self._first = sample
            self._runs.append(_Run(sample))
        elif sample.mono <= last.mono:
            raise ValueError(f"clock sample at {sample.mono} ns is not after the one at {last.mono} ns")
        elif abs(sample.offset - last.offset) > JUMP_NS or not _ran_on(last, sample):
            self._jumps.append(_jump(last, sample))
            self._runs.append(_Run(sample))
        else:
            self._runs[-1].add(sample)
        self._last = sample

    @property
    def latest(self) -> int | None:
        """Time of the last sample; what was stamped before it is known for good."""
        return None if self._last is None else self._last.mono

    @property
    def jumps(self) -> int:
        return len(self._jumps)

    def mono(self, real: int, latest: int | None = None) -> tuple[int, int] | None:
        """(time, error bound) in ns of the kernel stamp ``real``.

        None if it may come from between two samples with a jump between them, or if the clock read
        ``real`` twice. ``latest`` (monotonic): the stamp is not later, and at most `OLDEST_NS` earlier,
        which may decide between the two.
        """
        if not self._jumps:
            found = self._runs[0].convert(real) if self._runs else None
            return _only([found] if found is not None else self._outside(real), latest)
        if any(jump.may_have_made(real, latest) for jump in self._jumps):
            return None
        inside = [found for run in self._runs if (found := run.convert(real)) is not None]
        return _only([*inside, *self._outside(real)], latest)

    def arrival(self, user: int, real: int) -> tuple[int, int, bool]:
        """(time, error bound in ns, whether the kernel's) of a read that was stamped ``user`` (monotonic)
        after it returned and ``real`` by the kernel (0 = not). The kernel's time is taken if it can be
        told and can be this read's; the bound is 0 for ``user`` itself, which is late by nobody knows."""
        if real:
            steady = self._runs[0].convert(real) if len(self._runs) == 1 else None
            if steady is not None and user - OLDEST_NS <= steady[0] <= user:
                return *steady, True  # as nearly always
            found = self.mono(real, user)
            if found is not None:
                # No read is stamped before its bytes are there; a smaller excess is the conversion's error.
                return min(found[0], user), found[1], True
        return user, 0, False

    def _outside(self, real: int) -> list[tuple[int, int]]:
        """Before the first sample or after the last one, by the offset of that one."""
        found = []
        for sample, beyond in ((self._first, -1), (self._last, 1)):
            if sample is not None:
                t = real - sample.offset
                if (t - sample.mono) * beyond > 0:
                    found.append((t, sample.half + int(abs(t - sample.mono) * MAX_SLEW) + 1))
        return found


class _Run:
    """Neighbouring samples without a jump: within it the clock reads each time once."""

    def __init__(self, first: ClockSample) -> None:
        self._last = first
        self._starts: list[int] = []
        self._spans: list[_Span] = []
        at = first.mono + first.offset
        self._hit = _Span(at, at, first.offset, 0, first.half)

    def add(self, sample: ClockSample) -> None:
        last = self._last
        start, end = last.mono + last.offset, sample.mono + sample.offset
        slew = sample.offset - last.offset
        bound = max(last.half, sample.half) + abs(slew) + 1  # 1: what rounding takes
        span = _Span(start, end, last.offset, slew, bound)
        self._starts.append(start)
        self._spans.append(span)
        self._last = sample

    def convert(self, real: int) -> tuple[int, int] | None:
        """None outside of the run."""
        span = self._hit
        if not span.start <= real <= span.end:  # stamps come nearly in order, so mostly it is the last one
            at = bisect_right(self._starts, real) - 1
            if at < 0 or real > self._spans[at].end:
                return None
            span = self._hit = self._spans[at]
        moved = (real - span.start) * span.slew // (span.end - span.start) if span.slew else 0
        return real - span.offset - moved, span.bound


def _ran_on(before: ClockSample, after: ClockSample) -> bool:
    return before.mono + before.offset < after.mono + after.offset


def _jump(before: ClockSample, after: ClockSample) -> _Jump:
    """The step may be anywhere between the samples: until then the old offset holds, then the new one."""
    a, b, slack = before.mono, after.mono, before.half + after.half + JUMP_NS
    first, second = ((a + sample.offset - slack, b + sample.offset + slack) for sample in (before, after))
    return _Jump((a, b), (first, second))


def _only(candidates: list[tuple[int, int]], latest: int | None) -> tuple[int, int] | None:
    """The one candidate (time, bound) that can be; None if there is no such one or there are several."""
    if latest is not None:
        candidates = [(t, bound) for t, bound in candidates if latest - OLDEST_NS <= t <= latest + bound]
    return candidates[0] if len(candidates) == 1 else None
