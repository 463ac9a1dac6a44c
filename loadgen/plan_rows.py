"""Shots as columns and back, and the digest of a plan.

A column has the name of its field of ``Shot``, but for ``class`` and ``body_ref``: the latter is a list
of texts, one JSON object a part, with the fields of ``Part`` that differ from their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import blake2b
from itertools import starmap
from typing import Any

from loadgen.shot import Part, Phases, PlannedCancel, Shot

Columns = dict[str, list[Any]]

BATCH = 50_000
"""Shots whose columns are held at once."""

COLUMN_OF = {f.name: {"class_": "class", "prompt": "body_ref"}.get(f.name, f.name) for f in fields(Shot)}
"""The column of each field of ``Shot``, in its order."""

_PART_DEFAULTS = {f.name: f.default for f in fields(Part)}
_NOT_DIGESTED = ("slice",)
"""How many load processes share a plan does not change what is sent when."""
_FEW = ("class", "phase", "tenant", "fault", "adapter", "n_in_asked", "n_out_asked", "after_ns")
"""Columns of few different values: equal ones become one object."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def batches(shots: Sequence[Shot]) -> Iterator[Sequence[Shot]]:
    for start in range(0, len(shots), BATCH):
        yield shots[start : start + BATCH]


def columns_of(shots: Sequence[Shot]) -> Columns:
    columns = {column: [getattr(shot, name) for shot in shots] for name, column in COLUMN_OF.items()}
    texts: dict[int, str] = {}  # by identity: the turns of a session share the parts of their history
    columns["body_ref"] = [[_part_text(part, texts) for part in prompt] for prompt in columns["body_ref"]]
    columns["cancel"] = [c and {"kind": c.kind, "at": c.at} for c in columns["cancel"]]
    return columns


def _part_text(part: Part, known: dict[int, str]) -> str:
    text = known.get(id(part))
    if text is None:
        values = {name: getattr(part, name) for name in _PART_DEFAULTS}
        text = _encode({k: value for k, value in values.items() if value != _PART_DEFAULTS[k]})
        known[id(part)] = text
    return text


def shots_of(columns: Columns) -> Iterator[Shot]:
    """The shots of a batch. Without the column ``body_ref`` they have no prompts."""
    count = len(columns["id"])
    read = dict(columns)
    read["body_ref"] = _prompts(columns["body_ref"]) if "body_ref" in columns else [()] * count
    read["cancel"] = [c and PlannedCancel(**c) for c in columns["cancel"]]
    one: dict[Any, Any] = {}
    for name in _FEW:
        read[name] = [one.setdefault(value, value) for value in columns[name]]
    return starmap(Shot, zip(*(read[column] for column in COLUMN_OF.values()), strict=True))


def _prompts(texts: Sequence[Sequence[str]]) -> list[tuple[Part, ...]]:
    parts = {text: _part(json.loads(text)) for text in {text for prompt in texts for text in prompt}}
    return [tuple(parts[text] for text in prompt) for prompt in texts]


def _part(values: Mapping[str, Any]) -> Part:
    blocks = tuple((first, count) for first, count in values.get("blocks", ()))
    return Part(**{**values, "blocks": blocks})


def digest(shots: Sequence[Shot], phases: Phases, seed: int) -> str:
    """Hex of blake2b-128 over seed, phases and every field of every shot but its slice."""
    hashes = {c: blake2b(digest_size=16) for c in COLUMN_OF.values() if c not in _NOT_DIGESTED}
    for batch in batches(shots):
        for name, values in columns_of(batch).items():
            if name in hashes:
                hashes[name].update(json.dumps(values)[1:-1].encode() + b", ")
    found = {name: one.hexdigest() for name, one in hashes.items()}
    about = json.dumps([seed, asdict(phases), len(shots), found], sort_keys=True)
    return blake2b(about.encode(), digest_size=16).hexdigest()
