"""A trace may be one file or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loadgen.tracefiles.errors import Findings
from loadgen.tracefiles.reading import Source

_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


def sources(path: Path, found: Findings) -> Iterator[Source]:
    """The file, or the JSON files of the folder in order of their names; none is found."""
    if not path.is_dir():
        yield Source(path, found)
        return
    files = sorted(file for file in path.iterdir() if file.name.endswith(_ENDINGS))
    for file in files:
        yield Source(file, found)
    if not files:
        found.add(str(path), 0, f"no trace in this folder: no file ends in {', '.join(_ENDINGS)}")
