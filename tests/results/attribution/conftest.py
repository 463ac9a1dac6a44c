"""Turns a case log of tests/cases/attribution into Observed, by the token rule of its README."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from results.attribution.fingerprints import fingerprints
from results.attribution.observed import Component, Hashes, Observed, token_hashes
from results.attribution.policies import POLICIES, Policy, headrace
from results.attribution.usage import normalise

CASES = Path(__file__).parents[2] / "cases" / "attribution"
SALT = 7


@dataclass(frozen=True)
class Case:
    name: str
    policy: Policy
    observed: list[Observed]
    expected: list[dict[str, Any]]
    truth: list[dict[str, Any]]


@pytest.fixture
def load_case() -> Callable[..., Case]:
    """``load_case(file, text=True)``: a log with its policy, answers and truth."""
    return load


def load(file: str, *, text: bool = True) -> Case:
    index = json.loads((CASES / "index.json").read_text())
    answers = next(case for case in index["cases"] if case["file"] == file)
    lines = [json.loads(line) for line in (CASES / file).read_text().splitlines()]
    requests = [line for line in lines if line["kind"] == "request"]
    name = lines[0]["policy"]
    policy = headrace(16, ttl_s=300) if name == "headrace" else POLICIES[name]
    truth = [{"id": r["id"], **r["truth"]} for r in requests if "truth" in r]
    return Case(
        answers["case"], policy, [observe(r, text=text) for r in requests], answers["expected"], truth
    )


def observe(row: dict[str, Any], *, text: bool) -> Observed:
    components, hashes, at = [], [], 0
    for part in row["components"]:
        components.append(_component(part, at, text=text))
        hashes.append(_tokens(part, at))
        at += part["tok"]
    output = row.get("output")
    usage = normalise({"usage": row["usage"], **({"timings": row["timings"]} if "timings" in row else {})})
    return Observed(
        id=row["id"],
        session=row["session"],
        branch=row["branch"],
        ts_start=row["ts_start"],
        ts_first_token=row["ts_first_token"],
        ts_end=row["ts_end"],
        components=components,
        prompt_total=usage.prompt_total,
        cache_read=usage.cache_read,
        hashes=np.concatenate(hashes),
        output_hashes=_tokens(output, at) if output else None,
        output=_component({"path": "output", **output}, at, text=text) if output else None,
        retry_of=row.get("retry_of"),
        provider=row["provider"],
        model=row["model"],
        upstream=row["upstream"],
        workspace=row.get("workspace", "default"),
        cache_key=row["hints"].get("cache_key"),
        params=row["params"],
        app_events=row["app_events"],
        versions=row.get("versions", {}),
        status=row["status"],
    )


def _component(part: dict[str, Any], start: int, *, text: bool) -> Component:
    prints = fingerprints(part["text"], b"salt")
    return Component(
        path=part["path"],
        kind=part["kind"],
        role=part.get("role"),
        start=start,
        tok=part["tok"],
        hash=prints.raw,
        canon_hash=prints.canon,
        mask_hash=prints.mask,
        text=part["text"] if text else None,
        media=part.get("media"),
        cache_ttl=part["cache_control"]["ttl"] if "cache_control" in part else None,
    )


def _tokens(part: dict[str, Any], start: int) -> Hashes:
    ids = _token_ids(part["text"], part["tok"], part["kind"], part.get("role"))
    return token_hashes(ids, SALT, first=start)


@cache
def _token_ids(text: str, tok: int, kind: str, role: str | None) -> NDArray[np.uint32]:
    """Token j of a text of length L covers ``text[j*L//tok : (j+1)*L//tok]``; if tok > L, j counts too."""
    length, head = len(text), f"{kind}|{role}|"
    ids = [
        crc32(
            f"{head}{text[j * length // tok : (j + 1) * length // tok]}{j if tok > length else ''}".encode()
        )
        for j in range(tok)
    ]
    return np.array(ids, dtype=np.uint32)
