"""The facts around a run that make a number comparable: versions, hardware, load (JOINTS 5)."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.config_io import config_to_dict
from engine.model import identity

_PACKAGES = ("headrace", "numpy", "pyarrow", "aiohttp", "uvloop", "torch", "tokenizers")


def manifest(**extra: Any) -> dict[str, Any]:
    """Facts of this host and process now; ``extra`` is laid over them."""
    return {
        "wall_time": datetime.now(UTC).isoformat(),
        "host": {
            "platform": platform.platform(),
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg(),
        },
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in _PACKAGES},
        "git_revision": _git_revision(),
        "argv": sys.argv[1:],
        **extra,
    }


def engine_facts(config: EngineConfig) -> dict[str, Any]:
    """What of our own engine makes a run comparable: all its settings, and what the model is (digests)."""
    return {"engine": config_to_dict(config), "model": config.model, "identity": identity(config)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _git_revision() -> str | None:
    """Revision of the checkout that headrace runs from; None when installed from a wheel."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
