"""What was observed, as a file between a load process and whoever attributes (Arrow IPC)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from results.attribution.observed import Component, Hashes, Observed

_SCHEMA = pa.schema(
    [
        ("about", pa.string()),
        ("hashes", pa.list_(pa.uint64())),
        ("output_hashes", pa.list_(pa.uint64())),
    ]
)


def write_observed(observed: Sequence[Observed], path: Path) -> None:
    """Write all of ``observed``; hashes and spans only, there is no text in it."""
    rows = []
    for one in observed:
        about = {key: value for key, value in asdict(one).items() if key not in ("hashes", "output_hashes")}
        rows.append({"about": json.dumps(about), "hashes": one.hashes, "output_hashes": one.output_hashes})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))


def read_observed(path: Path) -> list[Observed]:
    """Read what `write_observed` wrote. Raises OSError, pyarrow.ArrowInvalid."""
    with pa.OSFile(str(path), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    return [_observed(row) for row in table.to_pylist()]


def _observed(row: dict[str, object]) -> Observed:
    about = json.loads(str(row["about"]))
    about["components"] = [Component(**component) for component in about["components"]]
    about["output"] = Component(**about["output"]) if about["output"] else None
    return Observed(**about, hashes=_hashes(row["hashes"]), output_hashes=_hashes(row["output_hashes"]))


def _hashes(values: object) -> Hashes | None:
    return None if values is None else np.asarray(values, dtype=np.uint64)
