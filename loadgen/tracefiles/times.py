"""Times of a trace that were rounded when it was taken (replay rule a)."""

from __future__ import annotations

import numpy as np

from loadgen.tracefiles.recording import Integers

_NEAR = 0.01
_MOST = 0.9


def quantum(times: Integers) -> int:
    """The step in ns that sorted ``times`` were rounded to; 0 if no two are equal.

    Most gaps between different times are a multiple of one gap, give or take 1 %: that one, as the 3 s of
    mooncake, which jitter by a millisecond. Else the finest step that all times share.
    """
    distinct = np.unique(times)
    if len(distinct) == len(times) or len(distinct) < 2:
        return 0
    gaps = np.diff(distinct)
    step = float(np.median(gaps))
    multiples = np.rint(gaps / step)
    regular = (multiples >= 1) & (np.abs(gaps - multiples * step) <= _NEAR * step)
    return int(step) if regular.mean() >= _MOST else int(np.gcd.reduce(gaps))


def spread(times: Integers, width: int, rng: np.random.Generator) -> tuple[Integers, int]:
    """Equal ones of sorted ``times`` moved apart, and how many were moved.

    ```
    n equal times at t:    t        t + w/n       t + 2w/n            t + w
                           |---x-------|-----x-------|-- .. --x---------|     one in each n-th, drawn
    ```
    w is ``width`` ns, or the time to the next one if that is less: the order stays.
    """
    distinct, first, n = np.unique(times, return_index=True, return_counts=True)
    if width <= 0 or len(distinct) == len(times):
        return times, 0
    room = np.minimum(width, np.diff(distinct, append=distinct[-1] + width))
    rank = np.arange(len(times)) - np.repeat(first, n)
    shared = np.repeat(n, n)
    place = (rank + rng.random(len(times))) / shared
    moved = times + np.where(shared > 1, np.floor(np.repeat(room, n) * place), 0).astype(np.int64)
    return moved, int((shared > 1).sum())
