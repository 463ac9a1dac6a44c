"""More requests of a class than planned, for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from faults.fault import FaultWindow, Seen, Stage
from faults.when import ns
from loadgen.plan import Part, Plan, Rate, Seconds

_ENOUGH = 0.9
"""The burst counts as offered if this share of its requests was sent."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Adds requests of a class at ``rate``, evenly spaced, from ``at`` on for ``for``.

    Each copies the shape of one of the class's own first turns, drawn with the seed. Text that several
    sessions of the class share stays shared, also the leading prefix blocks of a trace; all other text is
    new, so a burst does not hit the cache more than the class does.
    """

    id: str
    class_: str
    at: Seconds
    for_: Seconds
    rate: Rate

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.for_ <= 0:
            raise ValueError("a burst needs a rate and a 'for' above 0")

    def edit(self, plan: Plan, rng: np.random.Generator) -> Plan:
        """Door 1: append the burst's shots; ids go on where the plan's end. A class that has no shots
        to copy stays without a burst, which ``prove`` reports."""
        models = [s for s in plan.shots if s.class_ == self.class_ and s.due_ns is not None]
        if not models:
            return plan
        texts = _Texts.of(plan, self.class_)
        session = 1 + max(shot.session for shot in plan.shots)
        added = []
        for k, pick in enumerate(rng.integers(len(models), size=self.count)):
            due = ns(self.at) + round(k * 1e9 / self.rate)
            added.append(
                replace(
                    models[int(pick)],
                    id=len(plan.shots) + k,
                    session=session + k,
                    turn=0,
                    branch=0,
                    due_ns=due,
                    phase=plan.phases.of(due),
                    prompt=tuple(texts.fresh(p, f"{self.id}.{k}") for p in models[int(pick)].prompt),
                    cancel=None,
                    duplicate_of=None,
                    idempotency_key=None,
                    fault=self.id,
                )
            )
        return plan.with_shots(plan.shots + tuple(added))

    @property
    def count(self) -> int:
        """How many requests the burst adds; the last is sent before ``at`` + ``for``."""
        return max(1, round(self.rate * self.for_))

    def window(self) -> FaultWindow:
        return FaultWindow(self.id, "burst", target=f"class {self.class_}", planned=ns(self.at))

    async def play(self, stage: Stage, window: FaultWindow) -> None:
        """The plan carries the burst; here only its span is stamped."""
        await stage.sleep_until(ns(self.at))
        window.injected = stage.now()
        try:
            await stage.sleep_until(ns(self.at + self.for_))
        finally:
            window.healed = stage.now()

    def prove(self, window: FaultWindow, seen: Seen) -> None:
        """Proof: the offered rate, first to last send (MEASUREMENT C19)."""
        own = {shot.id for shot in seen.plan.shots if shot.fault == self.id}
        starts = sorted(r.start for r in seen.records if r.id in own and r.start is not None)
        span = (starts[-1] - starts[0]) / 1e9 if len(starts) > 1 else 0.0
        window.proof |= {
            "planned": len(own),
            "sent": len(starts),
            "asked_rate": self.rate,
            "offered_rate": (len(starts) - 1) / span if span > 0 else None,
        }
        if starts:
            window.injected = starts[0]  # the clock that stamps the span may wake up after the first send
        if own and len(starts) >= _ENOUGH * len(own):
            window.proven = starts[0]
        else:
            window.error = window.error or f"only {len(starts)} of {len(own)} requests of the burst were sent"


@dataclass(slots=True)
class _Texts:
    """Which texts, and which prefix blocks of them, occur in more than one session of a class."""

    keys: set[str]
    blocks: set[tuple[str, int]]
    unused: dict[str, int]
    """By text key, the first block id that no prompt has."""

    @classmethod
    def of(cls, plan: Plan, class_: str) -> _Texts:
        parts = [(shot.session, p) for shot in plan.shots if shot.class_ == class_ for p in shot.prompt]
        keys = _in_several((part.text_key, session) for session, part in parts)
        runs = [(session, p.text_key, run) for session, p in parts if p.text_key in keys for run in p.blocks]
        blocks = _in_several(
            ((key, id), session) for session, key, (first, n) in runs for id in range(first, first + n)
        )
        unused: dict[str, int] = defaultdict(int)
        for _, key, (first, n) in runs:
            unused[key] = max(unused[key], first + n)
        return cls(keys, blocks, unused)

    def fresh(self, part: Part, suffix: str) -> Part:
        """``part`` with new text wherever its text belongs to one session only."""
        if part.text_key not in self.keys:
            return replace(part, text_key=f"{part.text_key}+{suffix}")
        ids = [id for first, n in part.blocks for id in range(first, first + n)]
        lead = next((k for k, id in enumerate(ids) if (part.text_key, id) not in self.blocks), len(ids))
        if lead == len(ids):
            return part
        start = self.unused[part.text_key]
        self.unused[part.text_key] += len(ids) - lead
        return replace(part, blocks=(*_runs_of(ids[:lead]), (start, len(ids) - lead)))


K = TypeVar("K", bound=Hashable)


def _in_several(found: Iterable[tuple[K, int]]) -> set[K]:
    """What was found in more than one session."""
    first: dict[K, int] = {}
    return {what for what, session in found if first.setdefault(what, session) != session}


def _runs_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Block ids as runs (first, count)."""
    runs: list[tuple[int, int]] = []
    for id in ids:
        first, count = runs[-1] if runs else (id, 0)
        if runs and id == first + count:
            runs[-1] = first, count + 1
        else:
            runs.append((id, 1))
    return runs
