"""What the plan lets a request find in the cache: the tokens that it shares with others of its phase.

A prompt is a row of units: its messages, or the blocks of a replayed trace. Two prompts share the units
that both begin with. Sorted, the prompts that share most with one stand beside it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Units = NDArray[np.uint64]
MOST_UNITS = 20_000_000
"""Of all prompts of a plan; more would take minutes."""
RECORDED = "@"
"""Begins the key of a text that somebody wrote: what it says, and who says the same, is not in the plan."""
_NEVER_SENT = ("not_sent", "dropped")
_STEP = 0x9E3779B97F4A7C16
"""Between the units of neighbouring blocks; even, as all units but answers are."""


def shareable(plan: pd.DataFrame | None) -> dict[int, int] | None:
    """By request id: tokens, as asked for, that another request of its planned phase may have brought into
    the cache. None if the plan does not tell the parts of its prompts, or has too many of them.

    Phases are planned apart in a cold run: each has a nonce of its own. The answers in a history were
    computed when they were given. Where it is not plain, more is taken to be shared rather than less.
    """
    if plan is None or not {"id", "phase", "body_ref"} <= set(plan):
        return None
    prompts = [list(parts) for parts in plan["body_ref"]]
    pieces_of = _pieces(text for parts in prompts for text in parts)
    rows = [[piece for text in parts for piece in pieces_of[text]] for parts in prompts]
    if sum(len(piece.units) for row in rows for piece in row) > MOST_UNITS:
        return None
    phases: dict[str, list[int]] = defaultdict(list)
    for k, phase in enumerate(plan["phase"]):
        phases[str(phase)].append(k)
    ids, found = plan["id"].tolist(), {}
    for members in phases.values():
        for k, shared in zip(members, _longest_shared([_units(rows[k]) for k in members]), strict=True):
            found[int(ids[k])] = _tokens(rows[k], shared)
    return found


def as_played(plan: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """The plan's requests that may have been sent, each with the phase that its conversation opened in.

    Users of a closed loop begin when they have their answer: the plan knows only the earliest phase that
    this could be, the record of the first turn the true one, whose nonce they all have.
    """
    outcomes = dict(zip(records["id"], records["outcome"], strict=True))
    seen = dict(zip(records["id"], records["phase"], strict=True))
    fresh = plan["fresh"] if "fresh" in plan else [False] * len(plan)
    parents = plan["parent"] if "parent" in plan else [None] * len(plan)
    opened: dict[int, str] = {}
    for id, parent, begins, phase in zip(plan["id"], parents, fresh, plan["phase"], strict=True):
        within = not begins and parent is not None and parent == parent  # parents come before; NaN = none
        opened[id] = opened[int(parent)] if within else seen.get(id, phase)
    sent = np.array([outcomes.get(id) not in _NEVER_SENT for id in plan["id"]], dtype=bool)
    return plan.assign(phase=list(opened.values())).loc[sent]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Units that belong together: of ``size`` tokens each, the last one maybe less."""

    units: Units
    size: int
    tokens: int
    is_answer: bool = False


def _units(row: Sequence[_Piece]) -> Units:
    return np.concatenate([piece.units for piece in row]) if row else np.empty(0, np.uint64)


def _longest_shared(rows: Sequence[Units]) -> list[int]:
    """Of each row, how many leading units another row has too."""
    order = sorted(range(len(rows)), key=lambda k: rows[k].astype(">u8").tobytes())
    shared = [0] * len(rows)
    for one, other in pairwise(order):
        n = min(len(rows[one]), len(rows[other]))
        differing = np.flatnonzero(rows[one][:n] != rows[other][:n])
        alike = int(differing[0]) if len(differing) else n
        shared[one], shared[other] = max(shared[one], alike), max(shared[other], alike)
    return shared


def _tokens(row: Sequence[_Piece], shared: int) -> int:
    """Tokens of the first ``shared`` units, and of the answers that follow them."""
    tokens, left = 0, shared
    for piece in row:
        if left >= len(piece.units):
            tokens, left = tokens + piece.tokens, left - len(piece.units)
        elif left == 0 and tokens and piece.is_answer:
            tokens += piece.tokens
        else:
            return tokens + left * piece.size
    return tokens


def _pieces(texts: Iterable[str]) -> dict[str, list[_Piece]]:
    """The parts of a plan, as plan.parquet has them, cut into units."""
    parts: dict[str, dict[str, Any]] = {text: json.loads(text) for text in set(texts)}
    cuts: dict[str, set[int]] = defaultdict(set)
    for part in parts.values():
        if part.get("stamp") is not None:
            cuts[part.get("text_key", "")].add(int(part.get("stamp_at", 0)))
    return {text: list(_of_part(part, cuts)) for text, part in parts.items()}


def _of_part(part: Mapping[str, Any], cuts: Mapping[str, set[int]]) -> Iterator[_Piece]:
    tokens, key = int(part["tokens"]), part.get("text_key", "")
    if (answer := part.get("answer_of")) is not None:
        yield _Piece(_hashes("answer", answer) | np.uint64(1), tokens, tokens, is_answer=True)
    elif blocks := part.get("blocks"):
        ids: Units = np.concatenate(
            [np.arange(first, first + count, dtype=np.uint64) for first, count in blocks]
        )
        size = int(part["block_tokens"])
        needed: Units = ids[: max(1, -(-tokens // size))]
        with np.errstate(over="ignore"):
            units: Units = _hashes(part["role"], key) + needed * np.uint64(_STEP)
        yield _Piece(units, size, min(tokens, len(needed) * size))
        if (rest := tokens - len(needed) * size) > 0:
            yield _Piece(_hashes(part["role"], key, "rest", int(needed[-1]), rest), rest, rest)
    elif key.startswith(RECORDED):
        yield _Piece(_hashes(part["role"], RECORDED), tokens, tokens)
    else:
        yield from _of_text(part, tokens, key, cuts)


def _of_text(
    part: Mapping[str, Any], tokens: int, key: str, cuts: Mapping[str, set[int]]
) -> Iterator[_Piece]:
    """A text, cut wherever a clock slips into it anywhere in the plan."""
    stamp, at = part.get("stamp"), int(part.get("stamp_at", 0))
    edges = [0, *sorted(cut for cut in cuts.get(key, ()) if 0 < cut < tokens), tokens]
    for low, high in pairwise(edges):
        clock = int(stamp) if stamp is not None and low >= at else None
        yield _Piece(_hashes(part["role"], key, low, clock), high - low, high - low)


def _hashes(*name: str | int | None) -> Units:
    """One even number for what goes by this name."""
    digest = blake2b(repr(name).encode(), digest_size=8).digest()
    return np.array([int.from_bytes(digest, "little") & ~1], np.uint64)
