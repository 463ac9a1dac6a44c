"""A trace may be one file or a folder of them."""

from __future__ import annotations

import stat
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
        if (fault := _fault(file)) is None:
            yield Source(file, found)
        else:
            found.add(str(file), 0, fault)
    if not files:
        found.add(str(path), 0, f"no trace in this folder: no file ends in {', '.join(_ENDINGS)}")


def _fault(file: Path) -> str | None:
    """Why a file of a folder cannot be read: the others are read all the same."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return "cannot be read: not a file, but named like one: take it out of the folder"
        with file.open("rb"):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
