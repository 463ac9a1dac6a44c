"""EngineConfig as a JSON file: how a process hands its configuration to the ones it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.config_bounds import problems
from engine.plain import PlainError, from_plain, to_plain


def config_to_dict(config: EngineConfig) -> dict[str, Any]:
    """Plain values, complete: defaults are written out."""
    plain: dict[str, Any] = to_plain(config)
    return plain


def config_from_dict(plain: Mapping[str, Any]) -> EngineConfig:
    """The inverse. Absent keys take their defaults; an unknown key, a wrong type or a value with which no
    engine could work raises PlainError naming the path to it."""
    config = from_plain(EngineConfig, plain)
    if wrong := [f"{'.'.join(place)}: {message}" for place, message in problems(config)]:
        raise PlainError("; ".join(wrong))
    return config


def read_config(path: Path) -> EngineConfig:
    """Read a JSON file. Raises PlainError naming the file and the key, or OSError."""
    try:
        return config_from_dict(json.loads(path.read_text()))
    except ValueError as error:  # PlainError and JSONDecodeError are both
        raise PlainError(f"{path}: {error}") from error


def write_config(path: Path, config: EngineConfig) -> None:
    path.write_text(json.dumps(config_to_dict(config), indent=1))
