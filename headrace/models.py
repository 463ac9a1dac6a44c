"""Models fetched by a command: ``bench model pull``, and a hub id that is to be served for the first time."""

from __future__ import annotations

from pathlib import Path

from engine.model.fetch import PullError
from engine.model.hub import is_hub_id
from engine.model.pull import is_pulled, model_folder, pull
from headrace import console
from headrace.errors import BenchError, UsageFailed


def pull_shown(name: str, to: Path | None = None, quiet: bool = False) -> Path:
    """Pull with a progress bar; the model's folder. Raises BenchError."""
    try:
        with console.progress(f"pulling {name}", quiet) as advance:
            return pull(name, to, advance)
    except PullError as error:
        raise BenchError(str(error)) from error


def obtain(model: str) -> bool:
    """Pull a hub id (org/name) that is neither here yet nor a folder; whether it was. Raises UsageFailed."""
    if not is_hub_id(model) or Path(model).is_dir() or is_pulled(model_folder(model)):
        return False
    try:
        pull_shown(model)
    except BenchError as error:
        raise UsageFailed(*error.lines) from error
    return True
