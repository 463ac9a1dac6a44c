"""Finding the file of a trace, and reading it no more often than it changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadgen.tracefiles.recording import Recording

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def opened(file: str, settings: tuple[Any, ...], read: Callable[[Path], Recording]) -> Recording:
    """What ``read`` makes of ``file``; ``settings`` are all that its result depends on beside the file.
    Raises ValueError for a file that is not there or cannot be read, TraceError for what is wrong in it."""
    path = located(file)
    try:
        return _recording(_Asked(settings, path, _stamp(path), read))
    except OSError as error:
        raise ValueError(f"{error.filename or file}: cannot be read: {error.strerror or error}") from error


def located(file: str) -> Path:
    """The absolute path of a trace; ``${NAME}`` in it is an environment variable. Raises ValueError."""

    def value(found: re.Match[str]) -> str:
        if not os.environ.get(found[1]):
            raise ValueError(f"{file}: the environment variable {found[1]} is not set")
        return os.environ[found[1]]

    try:
        path = Path(_VARIABLE.sub(value, file)).expanduser()
        there, usable = path.exists(), path.is_file() or path.is_dir()
    except RuntimeError as error:
        raise ValueError(f"{file}: no such user, and so no home directory: write the whole path") from error
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror or error}") from error
    if not there:
        raise ValueError(f"{file}: no such file, neither beside the scenario nor from the working directory")
    if not usable:
        raise ValueError(f"{file}: neither a file nor a folder")
    return path.absolute()


def _stamp(path: Path) -> tuple[Any, ...]:
    """Changes when the file does, or any file of a folder; a link there may lead nowhere."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, *(_version(file) if file.exists() else ())) for file in files)


def _version(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@dataclass(frozen=True, slots=True)
class _Asked:
    """A reading that need not be done twice."""

    settings: tuple[Any, ...]
    path: Path
    stamp: tuple[Any, ...]
    read: Callable[[Path], Recording] = field(compare=False)


@lru_cache(maxsize=4)
def _recording(asked: _Asked) -> Recording:
    return asked.read(asked.path)
