"""Own records: an earlier run, played again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq

from loadgen.plan import Part, Plan, Seconds, Shot
from loadgen.plan_io import read_plan
from loadgen.tracefiles.base import Place, Timed
from loadgen.tracefiles.errors import TraceError
from loadgen.tracefiles.recording import Recording, Request, Session
from loadgen.tracefiles.replay import Rules
from results.record import Outcome
from results.recordfile import read_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun(Timed):
    """A run directory of headrace: the due times, sessions, think times, prompts and lengths of its plan.
    `classes` picks some of its classes; `lengths: served` asks for as many tokens as were served then, which
    its records must tell. Scripted cancels and duplicates are not repeated, and a user of a closed loop
    leaves after a failure."""

    classes: tuple[str, ...] = ()
    lengths: Literal["asked", "served"] = "asked"
    spread: Seconds | None = 0.0

    def rules(self) -> Rules:
        if self.over == "cut" and self.max_input is not None:
            raise ValueError("a prompt of an earlier run cannot be cut to max_input: say over: drop")
        return Timed.rules(self)

    def reading(self) -> tuple[Any, ...]:
        return (self.classes, self.lengths)

    def read(self, path: Path) -> Recording:
        plan = _plan(path / "plan.parquet")
        groups = _groups(self._chosen(plan))
        served = _served(path) if self.lengths == "served" else {}
        sessions = [_session(group, served) for group in groups]
        facts = {
            "rows": sum(len(group) for group in groups),
            "lengths": self.lengths,
            "served_lengths": sum(shot.id in served for group in groups for shot in group),
            "cancels_left_out": sum(shot.cancel is not None for group in groups for shot in group),
            "closed_loop_sessions": sum(shot.fresh for group in groups for shot in group),
        }
        starts = np.array([group[0].due_ns for group in groups], dtype=np.int64)
        return Recording(str(path), plan.digest, sessions, starts, facts)

    def _chosen(self, plan: Plan) -> list[Shot]:
        there = sorted({shot.class_ for shot in plan.shots})
        unknown = [name for name in self.classes if name not in there]
        if unknown:
            raise ValueError(f"classes: the run has no class {unknown[0]!r} (known: {', '.join(there)})")
        return [shot for shot in plan.shots if not self.classes or shot.class_ in self.classes]

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        return request.parts


def _plan(path: Path) -> Plan:
    try:
        return read_plan(path)
    except Exception as error:  # whatever parquet makes of a file that is none
        raise TraceError([(str(path), 0, f"no plan of a run: {error}")]) from error


def _served(run: Path) -> Mapping[int, int]:
    """Tokens that the requests which completed were served, by id; of a killed run by all its processes."""
    final, streams = run / "records.parquet", sorted(run.glob("records-*.arrow"))
    if not final.exists() and not streams:
        why = "neither it nor a records-*.arrow is there, and lengths: served needs one; say lengths: asked"
        raise TraceError([(str(final), 0, f"no records of a run: {why}")])
    try:
        tables = [pq.read_table(final)] if final.exists() else [read_stream(path)[0] for path in streams]
        served = {id: n for table in tables for id, n in _completed(table)}
    except Exception as error:  # as above
        raise TraceError([(str(final), 0, f"no records of a run: {error}")]) from error
    if not served:
        why = "no request of this run was answered to its end: say lengths: asked"
        raise TraceError([(str(final if final.exists() else streams[0]), 0, why)])
    return served


def _completed(table: Any) -> Iterator[tuple[int, int]]:
    """Id and tokens of each request that completed."""
    rows = zip(*(table.column(name).to_pylist() for name in ("id", "outcome", "n_out")), strict=True)
    return ((id, n) for id, outcome, n in rows if outcome == Outcome.COMPLETED.value and n)


def _groups(shots: Sequence[Shot]) -> list[list[Shot]]:
    """Shots by the first one that they descend from, in order of its due time."""
    root_of: dict[int, int] = {}
    groups: dict[int, list[Shot]] = defaultdict(list)
    for shot in shots:
        root = shot.id if shot.parent is None else root_of.get(shot.parent, shot.id)
        root_of[shot.id] = root
        groups[root].append(shot)
    whole = [group for group in groups.values() if group[0].due_ns is not None]
    return sorted(whole, key=lambda group: (group[0].due_ns, group[0].id))


def _session(shots: list[Shot], served: Mapping[int, int]) -> Session:
    index = {shot.id: k for k, shot in enumerate(shots)}
    lineages = {session: k for k, session in enumerate(dict.fromkeys(shot.session for shot in shots))}
    return tuple(
        Request(
            line=shot.id + 1,
            input=shot.n_in_asked,
            output=served.get(shot.id, shot.n_out_asked),
            think_ns=None if shot.parent is None else shot.after_ns,
            parent=None if shot.parent is None else index[shot.parent],
            branch=shot.branch,
            lineage=lineages[shot.session],
            parts=tuple(_part(part, index) for part in shot.prompt),
            adapter=shot.adapter,
        )
        for shot in shots
    )


def _part(part: Part, index: Mapping[int, int]) -> Part:
    return part if part.answer_of is None else replace(part, answer_of=index[part.answer_of])
