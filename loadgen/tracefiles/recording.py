"""What a trace file held, whatever its format: sessions of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import Part

Runs = tuple[tuple[int, int], ...]
"""Block ids as runs (first id, count)."""
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a session. ``think_ns`` counts from the end of ``parent`` (its index in the session);
    both None: it opens the session."""

    line: int
    input: int
    output: int
    think_ns: int | None = None
    parent: int | None = None
    branch: int = 0
    lineage: int = 0
    blocks: Runs = ()
    parts: tuple[Part, ...] = ()
    """The prompt, where the trace has texts. ``answer_of`` is an index in the session here."""
    adapter: str | None = None


Session = tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Singles(Sequence[Session]):
    """Sessions of one request each, in columns: millions of them fit."""

    line: Integers
    input: Integers
    output: Integers
    blocks: Sequence[Runs] | None = None

    def __len__(self) -> int:
        return len(self.line)

    @overload
    def __getitem__(self, index: int) -> Session: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Session]: ...
    def __getitem__(self, index: int | slice) -> Session | Sequence[Session]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        blocks = () if self.blocks is None else self.blocks[index]
        line, given, asked = int(self.line[index]), int(self.input[index]), int(self.output[index])
        return (Request(line, given, asked, blocks=blocks),)

    def ordered(self, order: Integers) -> Singles:
        blocks = None if self.blocks is None else [self.blocks[i] for i in order]
        return Singles(self.line[order], self.input[order], self.output[order], blocks)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Every request of a recording, in columns."""

    session: Integers
    line: Integers
    input: Integers
    output: Integers


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace as it was read. ``starts`` are ns since the trace's time zero, sorted, one a session; None
    where the format has no times of arrival."""

    file: str
    digest: str
    sessions: Sequence[Session]
    starts: Integers | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    scopes: Sequence[str] = ()
    """By session, what its block ids are valid in; none: in the whole trace."""
    heads: Sequence[int] = ()
    """By session, leading blocks that other sessions may share (weka)."""
    files: Sequence[str] = ()
    """By session, the file that it stands in, where ``file`` is a folder."""

    def file_of(self, session: int) -> str:
        return self.files[session] if self.files else self.file

    def has_texts(self, session: int) -> bool:
        """Whether its prompts are texts or parts of texts, which cannot be cut."""
        return not isinstance(self.sessions, Singles) and bool(self.sessions[session][0].parts)

    def lengths(self) -> Lengths:
        if isinstance(self.sessions, Singles):
            one = self.sessions
            return Lengths(np.arange(len(one)), one.line, one.input, one.output)
        rows = [(i, r.line, r.input, r.output) for i, one in enumerate(self.sessions) for r in one]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return Lengths(*columns)


def in_order(times: Integers) -> tuple[Integers, int]:
    """The order of ``times`` with equal ones as they stand, and how many came after a later one."""
    late = int((times < np.maximum.accumulate(times)).sum()) if len(times) else 0
    return np.argsort(times, kind="stable"), late


def packed(ids: Iterable[int]) -> Runs:
    """Ids as runs of consecutive ones."""
    runs: list[list[int]] = []
    for i in ids:
        if runs and i == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([i, 1])
    return tuple((first, n) for first, n in runs)


def blocks_in(runs: Runs) -> int:
    return sum(n for _, n in runs)


def leading(runs: Runs, blocks: int) -> Runs:
    """The first ``blocks`` blocks."""
    kept: list[tuple[int, int]] = []
    for first, n in runs:
        if blocks <= 0:
            break
        kept.append((first, min(n, blocks)))
        blocks -= n
    return tuple(kept)


def after(runs: Runs, blocks: int) -> Runs:
    """What follows the first ``blocks`` blocks."""
    kept: list[tuple[int, int]] = []
    for first, n in runs:
        if n > blocks:
            kept.append((first + max(0, blocks), n - max(0, blocks)))
        blocks -= n
    return tuple(kept)


def common(a: Runs, b: Runs) -> int:
    """Leading blocks that two prompts share."""
    shared, i, j, left, right = 0, 0, 0, 0, 0
    while i < len(a) and j < len(b):
        if a[i][0] + left != b[j][0] + right:
            break
        step = min(a[i][1] - left, b[j][1] - right)
        shared, left, right = shared + step, left + step, right + step
        if left == a[i][1]:
            i, left = i + 1, 0
        if right == b[j][1]:
            j, right = j + 1, 0
    return shared
