"""Where a target stops to hold its objectives, asked point by point (MEASUREMENT C36). Pure: told what
earlier points showed, it says what to run next.

    low    2 low    4 low              8 low
    pass ─ pass ─── pass ····· ? ····· fail        doubling, until one fails
                     └── bisection ──┘             until the bracket is narrow
                      pass   fail                  a second run of both ends, with another seed

A point near the edge may stay undecided however long it runs. The search then narrows from both sides
and leaves a gap: what is between is not known, and is said to be so. Two runs that disagree widen the
bracket: the end moves outwards to the next value whose two runs agree, with more doublings where none was
seen to fail yet, and it is not narrowed again. No answer is ever guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

DIGITS = 6
"""Significant digits of a tested value: people read and type them."""


class Verdict(StrEnum):
    """What a point says of the target, after as many runs as it may take."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "inconclusive"
    CLIENT = "client"
    """The load generator was at its limit: the point says nothing of the target."""


class Kind(StrEnum):
    """How a search ends."""

    BRACKET = "bracket"
    """It holds at one value and fails at another."""
    AT_LEAST = "at least"
    """It holds, and nothing above was seen to fail."""
    LOW_FAILS = "low fails"
    OPEN = "open"
    """No value was seen to hold, and the lowest was not seen to fail."""
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched: [low, high], until the bracket is narrower than ``width`` of its passing end."""

    low: float
    high: float
    whole: bool = False
    width: float = 0.1

    def ladder(self) -> tuple[float, ...]:
        """low, 2 low, .. high."""
        rungs, value = [self.low], self.low * 2
        while not self.narrow(value, self.high) and value < self.high:
            rungs.append(_short(value))
            value *= 2
        return (*rungs, self.high)

    def narrow(self, a: float, b: float) -> bool:
        """Whether nothing between ``a`` and ``b`` is worth a run."""
        if self.whole and b - a <= 1:
            return True
        return b - a <= self.width * a * (1 + 1e-9)

    def middle(self, a: float, b: float) -> float | None:
        """A value strictly between; None where the two are near enough."""
        if self.narrow(a, b):
            return None
        between = float((a + b) // 2) if self.whole else _short((a + b) / 2)
        return between if a < between < b else None


@dataclass(frozen=True, slots=True)
class Ask:
    """Run this value; ``repeat`` 1 is the second run, with another seed."""

    value: float
    repeat: int = 0


History = Mapping[Ask, Verdict]
"""The verdict of every point that has one."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known so far. Each of ``passes`` and ``fails`` is an end of the bracket, None if there is
    none; confirmed if its second run says the same."""

    kind: Kind
    passes: float | None
    fails: float | None
    passes_confirmed: bool
    fails_confirmed: bool
    undecided: tuple[float, ...]
    """Values between the ends that no run could decide."""
    disagreed: tuple[float, ...]
    """Values whose two runs do not say the same; the ends lie outside of them."""


def ask(space: Space, history: History) -> Ask | None:
    """The next run; None when there is nothing left to ask."""
    if Verdict.CLIENT in history.values():
        return None
    value = _next_value(space, history)
    if value is not None:
        return Ask(value)
    return next(_unconfirmed(history), None)


def _next_value(space: Space, history: History) -> float | None:
    """Of the doubling, then of the bisection."""
    first = _first_runs(history)
    low, high = _ends(history)
    if high.value is None:
        rung = next((value for value in space.ladder() if value not in first), None)
        if rung is not None:
            return rung
    if low.refuted or high.refuted:
        return None
    for a, b in _gaps(first):
        middle = space.middle(a, b)
        if middle is not None:
            return middle
    return None


def _gaps(first: Mapping[float, Verdict]) -> Iterator[tuple[float, float]]:
    """Between the largest pass and what stops it, and between the last undecided value and the fail."""
    passed = [value for value, verdict in first.items() if verdict is Verdict.PASS]
    if not passed:
        return
    low = max(passed)
    above = [value for value in first if value > low]
    if above:
        yield low, min(above)
    failed = [value for value in above if first[value] is Verdict.FAIL]
    open_ = [value for value in above if first[value] is Verdict.UNDECIDED]
    if failed and open_:
        yield max(open_), min(failed)


def _unconfirmed(history: History) -> Iterator[Ask]:
    for end in _ends(history):
        if end.value is not None and not end.confirmed:
            yield Ask(end.value, repeat=1)


@dataclass(frozen=True, slots=True)
class _End:
    value: float | None
    confirmed: bool
    refuted: tuple[float, ...]


def _ends(history: History) -> tuple[_End, _End]:
    """The largest value that holds and the smallest that fails, neither contradicted by its second run.

    What holds is also below every value that failed in one of its runs: values at which two runs disagree
    lie between the ends.
    """
    first = _first_runs(history)
    failed = sorted(value for value, verdict in first.items() if verdict is Verdict.FAIL)
    high = _first_upheld(history, failed, Verdict.FAIL)
    ceiling = min(high.refuted, default=math.inf)
    passed = [value for value, verdict in first.items() if verdict is Verdict.PASS and value < ceiling]
    return _first_upheld(history, sorted(passed, reverse=True), Verdict.PASS), high


def _first_upheld(history: History, values: Sequence[float], side: Verdict) -> _End:
    refuted: list[float] = []
    for value in values:
        second = history.get(Ask(value, 1))
        if second in (None, side, Verdict.CLIENT):
            return _End(value, second is side, tuple(refuted))
        refuted.append(value)
    return _End(None, False, tuple(refuted))


def found(space: Space, history: History) -> Found:
    """The bracket as far as it is known, at any time."""
    low, high = _ends(history)
    between = [
        value
        for value, verdict in _first_runs(history).items()
        if verdict is Verdict.UNDECIDED
        and (low.value is None or value > low.value)
        and (high.value is None or value < high.value)
    ]
    return Found(
        _kind(space, history, low, high),
        low.value,
        high.value,
        low.confirmed,
        high.confirmed,
        tuple(sorted(between)),
        tuple(sorted((*low.refuted, *high.refuted))),
    )


def _kind(space: Space, history: History, low: _End, high: _End) -> Kind:
    if Verdict.CLIENT in history.values():
        return Kind.CLIENT
    if low.value is not None:
        return Kind.BRACKET if high.value is not None else Kind.AT_LEAST
    return Kind.LOW_FAILS if high.value == space.low else Kind.OPEN


def _first_runs(history: History) -> dict[float, Verdict]:
    return {ask.value: verdict for ask, verdict in history.items() if ask.repeat == 0}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def most_left(space: Space, history: History) -> int:
    """How many more points the search is likely to ask for, if nothing disagrees: for an estimate of
    time."""
    if ask(space, history) is None:
        return 0
    first = _first_runs(history)
    low, high = _ends(history)
    ends = (not low.confirmed) + (not high.confirmed)
    if low.refuted or high.refuted:
        return max(1, ends)
    if high.value is not None:
        return ends + sum(_halvings(space, a, b) for a, b in _gaps(first))
    last = space.ladder()[-2:]
    return sum(value not in first for value in space.ladder()) + _halvings(space, *last) + ends


def _halvings(space: Space, a: float, b: float) -> int:
    return 0 if space.narrow(a, b) else math.ceil(math.log2(max(2.0, (b - a) / (space.width * a))))
