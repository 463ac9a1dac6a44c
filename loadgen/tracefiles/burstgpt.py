"""BurstGPT: months of arrivals, partly in sessions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from loadgen.tracefiles.base import Timed
from loadgen.tracefiles.errors import Findings, Say
from loadgen.tracefiles.fields import Field, decimal_seconds, digits, maybe, take, text, tokens_or_none
from loadgen.tracefiles.reading import Source, table
from loadgen.tracefiles.recording import Recording, Request, Session, Singles, in_order

_SPEC = {
    "Timestamp": Field(decimal_seconds),
    "Session ID": Field(maybe(text), must=False),
    "Elapsed time": Field(maybe(decimal_seconds), must=False),
    "Model": Field(text),
    "Request tokens": Field(digits(tokens_or_none)),
    "Response tokens": Field(digits(tokens_or_none)),
    "Total tokens": Field(digits(tokens_or_none), must=False),
    "Log Type": Field(text, must=False),
}


class _Row(NamedTuple):
    t: int
    line: int
    input: int
    output: int
    session: str | None
    elapsed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstGPT(Timed):
    """BurstGPT CSV: Timestamp s, Model, Request tokens, Response tokens, and where they are there Session ID
    and Elapsed time. Response tokens 0 = failed then: skipped, or sent to ask for 1 token. No prompt shares
    anything with another.

    In a session the next request comes as long after the end of the one before (Timestamp + Elapsed time)
    as it did then; without Elapsed time as long after the end as it came after the start.
    """

    failed: Literal["skip", "send"] = "skip"

    def reading(self) -> tuple[Any, ...]:
        return (self.failed,)

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        counts: Counter[str] = Counter()
        rows: list[_Row] = []
        for line, cells in table(source, _SPEC):
            row = _row(line, cells, source.say(line))
            if row is not None and self._sent(row, counts):
                rows.append(row)
        found.refuse()
        if not rows:
            raise ValueError(f"{path}: every request of this trace failed{_remedy(counts)}")
        order, late = in_order(np.array([row.t for row in rows], dtype=np.int64))
        rows = [rows[i] for i in order]
        sessions, starts = _sessions(rows, counts)
        facts = {"rows": counts.total() - counts["overlapping"], "out_of_order": late, **counts}
        return Recording(str(path), source.digest, sessions, starts - rows[0].t, facts)

    def _sent(self, row: _Row, counts: Counter[str]) -> bool:
        """Failed requests are counted; one without a prompt can never be sent."""
        if row.output:
            counts["answered"] += 1
        elif row.input == 0:
            counts["failed_without_prompt"] += 1
            return False
        else:
            counts["failed"] += 1
        return row.output > 0 or self.failed == "send"


def _remedy(counts: Counter[str]) -> str:
    if counts["failed"]:
        return "; failed: send replays them too"
    return " and has no prompt: none can be sent"


def _row(line: int, cells: dict[str, str], say: Say) -> _Row | None:
    row = take(cells, _SPEC, say)
    if row is None:
        return None
    given, asked = row["Request tokens"], row["Response tokens"]
    if row.get("Total tokens", given + asked) != given + asked:
        say(f"Total tokens: {row['Total tokens']:,} is not {given:,} + {asked:,}")
    if asked and not given:
        say("Request tokens: 0, but it was answered")
    return _Row(row["Timestamp"], line, given, asked, row.get("Session ID"), row.get("Elapsed time"))


def _sessions(rows: list[_Row], counts: Counter[str]) -> tuple[Sequence[Session], np.ndarray[Any, Any]]:
    """Sessions in order of their first request, and when that came."""
    if not any(row.session for row in rows):
        columns = np.array([(row.t, row.line, row.input, max(1, row.output)) for row in rows], np.int64).T
        return Singles(*columns[1:]), columns[0]
    groups: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.session or f"line {row.line}"].append(row)
    sessions = [_session(group, counts) for group in groups.values()]
    return sessions, np.array([group[0].t for group in groups.values()], dtype=np.int64)


def _session(rows: list[_Row], counts: Counter[str]) -> Session:
    made: list[Request] = []
    for k, row in enumerate(rows):
        think = None
        if k:
            since = row.t - rows[k - 1].t - (rows[k - 1].elapsed or 0)
            counts["overlapping"] += since < 0
            think = max(0, since)
        made.append(Request(row.line, row.input, max(1, row.output), think, k - 1 if k else None))
    return tuple(made)
