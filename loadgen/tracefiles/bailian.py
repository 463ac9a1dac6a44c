"""Qwen-Bailian: requests with their parents and 16-token block ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadgen.plan import Part
from loadgen.tracefiles.base import Place, Timed, blocks_of
from loadgen.tracefiles.documents import per_line
from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.fields import Field, count, seconds, take, text, tokens, whole
from loadgen.tracefiles.ids import id_list, misfit
from loadgen.tracefiles.reading import Source
from loadgen.tracefiles.recording import Recording, Request, Runs, Session, in_order

BLOCK = 16
_ROOT = -1
_SPEC = {
    "chat_id": Field(count),
    "parent_chat_id": Field(whole),
    "timestamp": Field(seconds),
    "input_length": Field(tokens),
    "output_length": Field(tokens),
    "type": Field(text),
    "turn": Field(count),
    "hash_ids": Field(id_list),
}


class _Row(NamedTuple):
    line: int
    id: int
    parent: int
    t: int
    input: int
    output: int
    blocks: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Bailian(Timed):
    """Qwen-Bailian JSONL: `chat_id`, `parent_chat_id` (-1 = root), `timestamp` s, `input_length`,
    `output_length`, `type`, `turn`, `hash_ids` of 16-token blocks, valid in the whole file.

    A request follows its parent: as long after the parent's end as it came after the parent's start then,
    for the trace has no ends. One whose parent is not in the file opens a session of its own.
    """

    def read(self, path: Path) -> Recording:
        found = Findings()
        source = Source(path, found)
        rows = list(_rows(source))
        _check_parents(rows, source)
        found.refuse()
        order, late = in_order(np.array([row.t for row in rows], dtype=np.int64))
        rows = [rows[i] for i in order]
        known = {row.id for row in rows}
        facts = {
            "rows": len(rows),
            "out_of_order": late,
            "block_tokens": BLOCK,
            "parents_missing": sum(row.parent != _ROOT and row.parent not in known for row in rows),
            "think_time": "from start to start: the trace has no ends of answers",
        }
        groups = _groups(rows)
        starts = np.array([group[0].t for group in groups], dtype=np.int64) - rows[0].t
        return Recording(str(path), source.digest, [_session(group) for group in groups], starts, facts)

    def prompt(self, request: Request, at: Place) -> tuple[Part, ...]:
        scope = f"trace/{self.replay.recording.digest}"
        runs = blocks_of(request, BLOCK)
        return (Part("user", request.input, scope, blocks=runs, block_tokens=BLOCK),)


def _rows(source: Source) -> Iterator[_Row]:
    for line, _, _, values in per_line(source):
        say = source.say(line)
        row = take(values, _SPEC, say)
        if row is None:
            continue
        if wrong := misfit(row["hash_ids"], row["input_length"], BLOCK):
            say(f"hash_ids: {wrong}")
        given, asked, blocks = row["input_length"], row["output_length"], row["hash_ids"]
        yield _Row(line, row["chat_id"], row["parent_chat_id"], row["timestamp"], given, asked, blocks)


def _check_parents(rows: list[_Row], source: Source) -> None:
    """A parent comes before its child, and an id stands once."""
    by_id: dict[int, _Row] = {}
    for row in rows:
        if row.id in by_id:
            source.say(row.line)(f"chat_id: {row.id} stands in line {by_id[row.id].line} too")
        by_id.setdefault(row.id, row)
    for row in rows:
        parent = by_id.get(row.parent)
        if row.parent < _ROOT:
            source.say(row.line)(f"parent_chat_id: {row.parent} is no id; a root has {_ROOT}")
        elif parent is not None and (parent.t, parent.line) >= (row.t, row.line):
            source.say(row.line)(f"parent_chat_id: {row.parent} comes no earlier (line {parent.line})")


def _groups(rows: list[_Row]) -> list[list[_Row]]:
    """Rows in order of time by the root that they descend from, in order of the roots."""
    root_of: dict[int, int] = {}
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        root = root_of.get(row.parent, row.id)
        root_of[row.id] = root
        groups.setdefault(root, []).append(row)
    return list(groups.values())


def _session(rows: list[_Row]) -> Session:
    index = {row.id: k for k, row in enumerate(rows)}
    branches = _branches(rows)
    made = []
    for row in rows:
        parent = index.get(row.parent)
        think = None if parent is None else row.t - rows[parent].t
        blocks, branch = row.blocks, branches[row.id]
        made.append(Request(row.line, row.input, row.output, think, parent, branch, blocks=blocks))
    return tuple(made)


def _branches(rows: list[_Row]) -> dict[int, int]:
    """A first child goes on in its parent's branch, each further one in a new one."""
    children: Counter[int] = Counter()
    branches: dict[int, int] = {}
    new = 0
    for row in rows:
        if children[row.parent] == 0:
            branches[row.id] = branches.get(row.parent, 0)
        else:
            new += 1
            branches[row.id] = new
        children[row.parent] += 1
    return branches
