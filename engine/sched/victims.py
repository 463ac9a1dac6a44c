"""Who gives its blocks back when they do not suffice (ENGINE E26)."""

from __future__ import annotations

from collections.abc import Container, Iterable

from engine.sched.sequence import Sequence


def choose(running: Iterable[Sequence], spared: Container[Sequence], above: int = -1) -> Sequence | None:
    """The lowest class, then fewest tokens to recompute, then last admitted; None if nobody may go.

    Paused requests keep their blocks, as do the ``spared``; so do all of rank ``above`` and more urgent.
    """
    return max(
        (s for s in running if not s.paused and s.request.rank > above and s not in spared),
        key=lambda s: (s.request.rank, -s.computed, s.order),
        default=None,
    )
