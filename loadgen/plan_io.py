"""The plan as a file: `plan.parquet` (JOINTS 2)."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.plan import Part, Phases, Plan, PlannedCancel, Shot

SCHEMA_VERSION = 1

_SCHEMA = pa.schema(
    [
        ("id", pa.uint32()),
        ("class", pa.string()),
        ("tenant", pa.string()),
        ("rank", pa.uint8()),
        ("session", pa.uint32()),
        ("branch", pa.uint16()),
        ("turn", pa.uint16()),
        ("parent", pa.uint32()),
        ("due_ns", pa.int64()),
        ("after_ns", pa.int64()),
        ("phase", pa.string()),
        ("body_ref", pa.string()),
        ("n_in_asked", pa.uint32()),
        ("n_out_asked", pa.uint32()),
        ("params", pa.string()),
        ("cancel", pa.struct([("kind", pa.string()), ("at", pa.int64())])),
        ("duplicate_of", pa.uint32()),
        ("idempotency_key", pa.string()),
        ("fault", pa.string()),
        ("prefix_digest", pa.binary(16)),
        ("slice", pa.uint16()),
    ]
)


def write_plan(plan: Plan, path: Path) -> None:
    """Write ``plan``; seed, phases and digest go into the file's metadata."""
    columns = [_row(shot) for shot in plan.shots]
    about = {
        "headrace_plan": str(SCHEMA_VERSION),
        "seed": str(plan.seed),
        "phases": json.dumps(asdict(plan.phases)),
        "digest": plan.digest,
    }
    table = pa.Table.from_pylist(columns, schema=_SCHEMA.with_metadata(about))
    pq.write_table(table, path, compression="zstd")


def read_plan(path: Path) -> Plan:
    """Read what `write_plan` wrote. Raises ValueError if the file is no plan or was changed."""
    table = pq.read_table(path)
    about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if about.get("headrace_plan") != str(SCHEMA_VERSION):
        raise ValueError(f"{path} is not a plan of version {SCHEMA_VERSION}; make it again with `bench plan`")
    shots = tuple(_shot(row) for row in table.to_pylist())
    plan = Plan(shots, Phases(**json.loads(about["phases"])), int(about["seed"]))
    if plan.digest != about["digest"]:
        raise ValueError(f"{path} does not match its own digest; it was edited or damaged, make it again")
    return plan


def _row(shot: Shot) -> dict[str, Any]:
    row = asdict(shot)
    row["class"] = row.pop("class_")
    row["body_ref"] = json.dumps(row.pop("prompt"))
    row["params"] = "{}"
    head = json.dumps([asdict(part) for part in shot.prompt[:-1]])
    row["prefix_digest"] = blake2b(head.encode(), digest_size=16).digest()
    return row


def _shot(row: dict[str, Any]) -> Shot:
    fields = {key: value for key, value in row.items() if key not in ("body_ref", "params", "prefix_digest")}
    fields["class_"] = fields.pop("class")
    fields["prompt"] = tuple(Part(**part) for part in json.loads(row["body_ref"]))
    fields["cancel"] = PlannedCancel(**row["cancel"]) if row["cancel"] else None
    return Shot(**fields)
