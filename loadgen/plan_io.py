"""The plan as a file: `plan.parquet` (JOINTS 2). Written and read in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen import plan_rows
from loadgen.plan import Phases, Plan, Shot
from loadgen.plan_rows import batches, columns_of, shots_of

SCHEMA_VERSION = 2

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
        ("fresh", pa.bool_()),
        ("phase", pa.string()),
        ("body_ref", pa.list_(pa.string())),
        ("n_in_asked", pa.uint32()),
        ("n_out_asked", pa.uint32()),
        ("adapter", pa.string()),
        ("params", pa.string()),
        ("cancel", pa.struct([("kind", pa.string()), ("at", pa.int64())])),
        ("duplicate_of", pa.uint32()),
        ("idempotency_key", pa.string()),
        ("fault", pa.string()),
        ("prefix_digest", pa.binary(16)),
        ("slice", pa.uint16()),
    ]
)
_DERIVED = ("params", "prefix_digest")


def write_plan(plan: Plan, path: Path) -> None:
    """Write ``plan``; seed, phases, digest and the number of shots go into the file's metadata."""
    about = {
        "headrace_plan": str(SCHEMA_VERSION),
        "seed": str(plan.seed),
        "phases": json.dumps(asdict(plan.phases)),
        "digest": plan.digest,
        "shots": str(len(plan.shots)),
    }
    schema = _SCHEMA.with_metadata(about)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches(plan.shots):
            writer.write_batch(pa.RecordBatch.from_pydict(_file_columns(batch), schema=schema))


def _file_columns(shots: Sequence[Shot]) -> dict[str, list[Any]]:
    columns = columns_of(shots)
    columns["params"] = ["{}"] * len(shots)
    columns["prefix_digest"] = [
        blake2b("\n".join(parts[:-1]).encode(), digest_size=16).digest() for parts in columns["body_ref"]
    ]
    return columns


def read_plan(path: Path) -> Plan:
    """Read what `write_plan` wrote. Raises ValueError if the file is no plan or was changed."""
    with pq.ParquetFile(path) as file:
        about = _about(file, path)
        shots = tuple(_shots(file, None, prompts=True))
    plan = Plan(shots, Phases(**json.loads(about["phases"])), int(about["seed"]))
    if plan.digest != about["digest"]:
        raise ValueError(f"{path} does not match its own digest; it was edited or damaged, make it again")
    return plan


def read_shots(path: Path, slice: int | None, prompts: bool) -> tuple[tuple[Shot, ...], Phases, int]:
    """(shots of ``slice``, or all for None; phases; seed), for who sends a part of a plan.

    Without ``prompts`` every shot's prompt is (): about 300 bytes a shot, however long its text is. The
    digest is not computed again. Raises ValueError if the file is no plan or lacks rows.
    """
    with pq.ParquetFile(path) as file:
        about = _about(file, path)
        rows = file.metadata.num_rows
        if rows != int(about["shots"]):
            raise ValueError(f"{path} has {rows} of its {about['shots']} shots; make it again")
        shots = tuple(_shots(file, slice, prompts))
    return shots, Phases(**json.loads(about["phases"])), int(about["seed"])


def _about(file: Any, path: Path) -> dict[str, str]:
    metadata = file.schema_arrow.metadata or {}
    about = {key.decode(): value.decode() for key, value in metadata.items()}
    if about.get("headrace_plan") != str(SCHEMA_VERSION):
        raise ValueError(f"{path} is not a plan of version {SCHEMA_VERSION}; make it again with `bench plan`")
    return about


def _shots(file: Any, slice: int | None, prompts: bool) -> Iterator[Shot]:
    unread = _DERIVED if prompts else (*_DERIVED, "body_ref")
    wanted = [name for name in _SCHEMA.names if name not in unread]
    for batch in file.iter_batches(plan_rows.BATCH, columns=wanted):
        rows = batch if slice is None else batch.filter(pc.equal(batch.column("slice"), slice))
        yield from shots_of(rows.to_pydict())
