"""A model of the Hugging Face hub, ``org/name`` or ``org/name@revision``: the files that this engine reads.

huggingface_hub does the fetching, in a process of its own (engine.model.hub_child): Ctrl-C ends it at once,
and whatever it is told by its environment and login (HF_ENDPOINT, HF_TOKEN, proxies) holds here too. The
small files come first, so that a model that cannot be served is refused before its weights are fetched.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.config_json import read_config
from engine.model.decoder_config import ModelError
from engine.model.fetch import Progress, PullError, fetch
from engine.model.hf_tokenizer import HfTokenizer, read_json
from engine.model.weights import check_weights

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARD = re.compile(r"[\w-]+\.safetensors")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    size: int
    """Bytes."""
    sha256: str | None
    """Known of large files only."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a model."""

    id: str
    commit: str
    endpoint: str
    files: dict[str, RemoteFile]


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None


def look(name: str) -> Repository:
    """What the hub has under this name now. Raises PullError."""
    id, _, revision = name.partition("@")
    found = _child(["look", id, revision or "main"])
    files = {file: RemoteFile(**facts) for file, facts in found["files"].items()}
    return Repository(id, found["commit"], found["endpoint"], files)


def prepare(repository: Repository, folder: Path) -> list[str]:
    """Fetch everything but the weights, see whether this engine can serve the model, and name the files that
    hold its weights. Raises PullError."""
    if _SINGLE not in repository.files and _INDEX not in repository.files:
        raise PullError(f"{repository.id} has no {_SINGLE}; this engine reads safetensors only")
    if "tokenizer.json" not in repository.files:
        raise PullError(
            f"{repository.id} has no tokenizer.json; this engine needs the tokenizer in that format"
        )
    download(repository, [name for name in _SMALL if name in repository.files], folder, None)
    try:
        read_config(folder)
        HfTokenizer(folder)
        return [_SINGLE] if _SINGLE in repository.files else _shards(repository, read_json(folder / _INDEX))
    except (ModelError, ValueError) as error:
        raise PullError(f"{repository.id} cannot be served: {error}") from error


def _shards(repository: Repository, index: dict[str, Any]) -> list[str]:
    shards = index.get("weight_map")
    names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
    wrong = [name for name in names if name not in repository.files or not _SHARD.fullmatch(name)]
    if wrong or not names:
        raise PullError(
            f"{repository.id}: {_INDEX} names {', '.join(wrong) or 'no files'}, which it does not have"
        )
    return names


def still_missing(repository: Repository, names: Iterable[str], folder: Path) -> int:
    """Bytes of these files that are not in ``folder`` yet."""
    return sum(repository.files[name].size for name in names if not (folder / name).is_file())


def download(repository: Repository, names: list[str], folder: Path, progress: Progress | None) -> None:
    """Fetch these files into ``folder``, going on where an earlier download broke off. Raises PullError."""
    total = sum(repository.files[name].size for name in names)
    _child(["fetch", repository.id, repository.commit, str(folder), *names], folder, total, progress)
    for name in names:
        path, size = folder / name, repository.files[name].size
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise PullError(f"{path}: {found} of {size} bytes came; pull again to go on from there")
    if progress is not None:
        progress(total, total)


def verify(repository: Repository, names: list[str], folder: Path) -> None:
    """Check the weights by sha256 and by what config.json promises. Raises PullError."""
    for name in names:
        expected = repository.files[name].sha256
        if expected is not None and (found := _sha256(folder / name)) != expected:
            (folder / name).unlink()
            raise PullError(f"{folder / name}: sha256 is {found}, the hub says {expected}; pull again")
    try:
        check_weights(folder, read_config(folder))
    except ModelError as error:
        raise PullError(f"{repository.id} cannot be served: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _child(
    words: list[str], folder: Path = Path(), total: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """What the child process answers. Raises PullError with what it says is wrong."""
    command = [sys.executable, "-m", "engine.model.hub_child", *words]
    code, output = fetch(command, {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}, folder, total, progress)
    lines = output.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise PullError(f"huggingface_hub ended with code {code}: {output.strip()[-1000:]}") from None
    if "error" in answer:
        raise PullError(answer["error"])
    return answer
