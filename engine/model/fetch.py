"""A process that fetches files into a folder, watched from here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

Progress = Callable[[int, int | None], None]
"""Called with bytes fetched so far and all bytes, None when that is unknown."""

_POLL_S = 0.1


class PullError(Exception):
    """Why a model could not be pulled, with what to do."""


def fetch(
    command: Sequence[str],
    environment: dict[str, str],
    folder: Path,
    total: int,
    progress: Progress | None,
) -> tuple[int, str]:
    """Run ``command``, which puts ``total`` bytes into ``folder``; its exit code and all that it said.
    ``environment`` is laid over ours. Whatever interrupts us ends it too."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )
    try:
        while True:
            try:
                output = process.communicate(timeout=_POLL_S)[0]
                return process.returncode, output
            except subprocess.TimeoutExpired:
                if progress is not None:
                    progress(min(_bytes_under(folder), total), total)
    except BaseException:
        process.kill()
        process.communicate()
        raise


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # removed between the listing and the look
            continue
    return total
