"""A local tokenizer for tools that insist on one: SmolLM2's, from the pulled model."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.model.pull import pull

MODEL = "smollm2-135m"
HUB_NAME = f"headrace/{MODEL}"
_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
_REVISION = "local"


def pulled_model() -> Path:
    """Its folder; fetched at the first time. Raises PullError."""
    return pull(MODEL)


def write_hub(model: Path, hub: Path) -> None:
    """The tokenizer of ``model`` as a hub's cache would hold ``HUB_NAME``. ``hub`` is what HF_HOME names."""
    home = hub / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
    snapshot = home / "snapshots" / _REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(_REVISION)
    for name in _FILES:
        shutil.copyfile(model / name, snapshot / name)
