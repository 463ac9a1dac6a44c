"""What attribution says about one request, and how that is kept (ATTRIBUTION A29)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from results.attribution.ledger import Ledger


class Outcome(StrEnum):
    """One per request (A1): four misses, then five non-misses."""

    APP_RESET = "app_reset"
    EXPIRY = "expiry"
    BOUNDARY = "boundary"
    UNEXPLAINED = "unexplained"
    HIT = "hit"
    COLD = "cold"
    BELOW_MINIMUM = "below_minimum"
    CONCURRENT = "concurrent"
    NOT_MEASURED = "not_measured"


MISSES = (Outcome.APP_RESET, Outcome.EXPIRY, Outcome.BOUNDARY, Outcome.UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class FirstDivergence:
    """The first token that differs from what the parent held (A21). Indices count from 0."""

    path: str
    """Component of this request, such as ``system[0]``."""
    parent_path: str | None
    """Component of the parent there; ``output`` = its answer."""
    token_in_component: int
    token_index: int
    """Position in the whole prompt."""
    components_equal_before: int
    block_index: int | None = None
    """The block that the token is in, where the cache works in blocks."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The verdict on one request. Tokens and s; None = not known or does not apply."""

    id: str
    session: str
    outcome: Outcome
    subtype: str
    rule: str
    """The line of the decision tree that matched, T1 to T12."""
    confidence: float
    level: str
    """What the comparison rests on: ``ids``, ``hashes`` or ``usage``."""
    policy: str
    policy_version: str
    prompt: int
    cached: int | None
    parent: str | None = None
    idle_s: float | None = None
    base: int | None = None
    shared_prefix: int | None = None
    readable: int | None = None
    ledger: Ledger | None = None
    missed: int | None = None
    """``base - cached``: what a better course of things would have read."""
    minor: bool | None = None
    intentional: bool | None = None
    co_cause: str | None = None
    overdetermined: bool = False
    possible: str | None = None
    evidence: tuple[str, ...] = ()
    first_divergence: FirstDivergence | None = None
    class_: str = "default"
    model: str = ""
    workspace: str = "default"
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def is_miss(self) -> bool:
        return self.outcome in MISSES


def to_row(a: Attribution) -> dict[str, Any]:
    """Plain values; ``class_`` is called ``class``."""
    row = asdict(a)
    row["outcome"] = str(a.outcome)
    row["evidence"] = list(a.evidence)
    return {"class" if name == "class_" else name: value for name, value in row.items()}


def from_row(row: dict[str, Any]) -> Attribution:
    """The inverse of ``to_row``."""
    known = {"class_": row["class"], **{k: v for k, v in row.items() if k != "class"}}
    known = {f.name: known[f.name] for f in fields(Attribution) if f.name in known}
    known["outcome"] = Outcome(known["outcome"])
    known["ledger"] = Ledger(**known["ledger"]) if known.get("ledger") else None
    known["first_divergence"] = (
        FirstDivergence(**known["first_divergence"]) if known.get("first_divergence") else None
    )
    known["evidence"] = tuple(known.get("evidence") or ())
    known["versions"] = dict(known.get("versions") or {})
    return Attribution(**known)


_INT = pa.int64()
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "session", "outcome", "subtype", "rule")),
        ("confidence", pa.float64()),
        *((name, pa.string()) for name in ("level", "policy", "policy_version")),
        ("prompt", _INT),
        ("cached", _INT),
        ("parent", pa.string()),
        ("idle_s", pa.float64()),
        *((name, _INT) for name in ("base", "shared_prefix", "readable")),
        ("ledger", pa.struct([(f.name, _INT) for f in fields(Ledger)])),
        ("missed", _INT),
        *((name, pa.bool_()) for name in ("minor", "intentional")),
        ("co_cause", pa.string()),
        ("overdetermined", pa.bool_()),
        ("possible", pa.string()),
        ("evidence", pa.list_(pa.string())),
        (
            "first_divergence",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("parent_path", pa.string()),
                    *((name, _INT) for name in ("token_in_component", "token_index")),
                    *((name, _INT) for name in ("components_equal_before", "block_index")),
                ]
            ),
        ),
        *((name, pa.string()) for name in ("class", "model", "workspace")),
        ("versions", pa.map_(pa.string(), pa.string())),
    ]
)


def write_parquet(path: Path, attributions: Iterable[Attribution]) -> None:
    """``attribution.parquet`` of a run: one row per request, in the given order."""
    pq.write_table(pa.Table.from_pylist([to_row(a) for a in attributions], schema=_SCHEMA), path)


def read_parquet(path: Path) -> list[Attribution]:
    """What ``write_parquet`` wrote."""
    return [from_row(row) for row in pq.read_table(path, schema=_SCHEMA).to_pylist()]


def write_jsonl(path: Path, attributions: Iterable[Attribution]) -> None:
    """One JSON object per line."""
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(to_row(a), ensure_ascii=False) + "\n" for a in attributions)


def read_jsonl(path: Path) -> list[Attribution]:
    """What ``write_jsonl`` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [from_row(json.loads(line)) for line in lines if line.strip()]
