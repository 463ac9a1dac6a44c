"""Block ids of a prompt, and whether there are as many as its length needs."""

from __future__ import annotations

from typing import Any

from loadgen.tracefiles.fields import shown
from loadgen.tracefiles.recording import Runs, blocks_in, packed

MOST_ID = 2**40
"""What no real trace comes near."""


def id_list(value: Any) -> Runs:
    """``[3, 4, 9]`` as runs. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list of block ids")
    for i in value:
        if type(i) is not int or not 0 <= i < MOST_ID:
            raise ValueError(f"{shown(i)} is not a block id (0 to 2^40)")
    return packed(value)


def run_list(value: Any) -> Runs:
    """``[[3, 2], [9, 1]]``: runs of a first id and a count. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list of [first id, count]")
    for run in value:
        sound = isinstance(run, list) and len(run) == 2 and all(type(n) is int for n in run)
        if not sound or not 0 <= run[0] < MOST_ID or not 1 <= run[1] < MOST_ID:
            raise ValueError(f"{shown(run)} is not [first id, count]")
    return tuple((first, n) for first, n in value)


def misfit(runs: Runs, tokens: int, size: int, *, whole_only: bool = False) -> str | None:
    """What is wrong with the number of ids for a prompt of ``tokens``; a last, partial block has one unless
    only whole blocks have."""
    wanted = tokens // size if whole_only else -(-tokens // size)
    if (got := blocks_in(runs)) == wanted:
        return None
    kind = "whole blocks" if whole_only else "blocks"
    return f"{got:,} block ids, but {tokens:,} tokens are {wanted:,} {kind} of {size}"
