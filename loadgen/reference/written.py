"""What a stream of the reference server has written: stamps and lateness of its token events."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.reference.lateness import Late
from loadgen.reference.log import Stamps

_MOST_LATE = (1 << 32) - 1


def written(
    stamps: NDArray[np.int64], offsets: Sequence[int], base: int, tokens: Sequence[int]
) -> tuple[Stamps, Late]:
    """The stamp of each token event, and how late it was against the script, in ns; a lateness of 4.29 s and
    more is 4.29 s. ``stamps`` are those of the pieces that went out in full, whose script is ``offsets`` and
    ``tokens`` (token events in each) from ``base`` on."""
    count = len(stamps)
    late = stamps - np.array(offsets[:count], np.int64) - base
    if tokens[:2] == (0, 1) and tokens.count(1) == len(offsets) - 1:
        stamps, late = stamps[1:], late[1:]  # the head, then a write for each token: the usual script
    else:
        stamps, late = np.repeat(stamps, tokens[:count]), np.repeat(late, tokens[:count])
    return stamps, np.minimum(late, _MOST_LATE).astype(np.uint32)
