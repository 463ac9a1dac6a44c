"""All packages of headrace must come from one place, or an alien ``results`` answers our imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from headrace.errors import UsageFailed

_PACKAGES = ("dashboards", "scenarios", "faults", "loadgen", "results", "engine")


def check_origin() -> None:
    """Raise UsageFailed naming each of our packages that another folder on the path shadows."""
    home = Path(__file__).resolve().parent.parent
    strangers = [f"  {name}: {origin}" for name in _PACKAGES if (origin := _origin(name)) != home / name]
    if strangers:
        raise UsageFailed(
            f"headrace runs from {home}, but these of its packages are shadowed by others:",
            *strangers,
            "Install headrace in an environment of its own (uv tool install, pipx) and start bench there.",
        )


def _origin(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent
