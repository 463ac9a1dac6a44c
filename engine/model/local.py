"""Folders that a person or a client names."""

from __future__ import annotations

from pathlib import Path

from engine.model.decoder_config import ModelError


def local_folder(name: str) -> Path:
    """The absolute path, ``~`` written out. Raises ModelError for what can be no path here: too long, or the
    home of a user whom there is not."""
    try:
        path = Path(name).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        shown = name if len(name) <= 200 else f"{name[:200]}..."
        why = getattr(error, "strerror", None) or error
        raise ModelError([f"{shown!r} can be no folder: {why}"]) from error
    return path
