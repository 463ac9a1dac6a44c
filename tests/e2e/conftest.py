"""`bench` as a process of its own, as a user starts it, and a look at whatever it leaves behind."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from loadgen.reference.group import ReferenceServer
from loadgen.reference.script import Script
from results.recordfile import read_stream

_MARK = "HEADRACE_TEST_MARK"
LIMIT_S = 120.0
"""For what takes a few seconds on a machine with nothing else to do."""


def until(condition: Callable[[], Any], seconds: float = LIMIT_S) -> Any:
    """Poll real processes; returns what made the condition true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
    return found


def _hear_ctrl_c() -> None:
    """Also where the tests run in the background of a script, which has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Bench:
    """One `bench` process and all its descendants, which carry a mark in their environment.

    ``private`` is where they put temporary files: short, since unix sockets live there. ``environment`` is
    added to ours; ``files`` is how many a process may have open, a hard limit.
    """

    folder: Path
    private: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    files: int | None = None

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        own = {_MARK: self.mark, "TMPDIR": str(self.private), "OMP_NUM_THREADS": "1"}
        limited = [] if self.files is None else ["sh", "-c", f'ulimit -n {self.files} && exec "$@"', "sh"]
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self.process = subprocess.Popen(
                [*limited, sys.executable, "-m", "headrace.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **own, **self.environment},
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=_hear_ctrl_c,
            )
        return self.process

    def run(self, *arguments: str) -> int:
        """Start and wait; returns the exit code."""
        self.start(*arguments)
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    @property
    def stdout(self) -> Path:
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        return self.folder / "stderr"

    def said(self, text: str) -> bool:
        """Whether ``text`` stands on stderr by now."""
        self._check_alive()
        return text in self.stderr.read_text()

    def _check_alive(self) -> None:
        """Whoever waits for something of a `bench` that has ended waits in vain."""
        assert self.process is not None
        assert self.process.poll() is None, self.stderr.read_text()

    def last_line(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(self.stdout.read_text().splitlines()[-1])
        return line

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary

    def faults(self) -> dict[str, dict[str, Any]]:
        lines = (self.run_dir / "faults.jsonl").read_text().splitlines()
        return {fault["id"]: fault for fault in map(json.loads, lines)}

    def closed_records(self) -> int:
        """How many records the load process has handed to the disk so far."""
        self._check_alive()
        with suppress(FileNotFoundError, pa.ArrowInvalid):
            return int(read_stream(self.run_dir / "records-0.arrow")[0].num_rows)
        return 0

    def processes(self, command: str = "") -> list[int]:
        """Living processes of this run whose command line contains ``command``; `bench` itself is one."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    mine = f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                    if mine and command.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                        found.append(int(entry.name))
        return found

    def started(self, command: str) -> list[int]:
        """The same while `bench` lives."""
        self._check_alive()
        return self.processes(command)

    def the(self, command: str) -> int:
        """The one process with this in its command line."""
        (pid,) = self.started(command)
        return pid

    def nothing_left(self) -> bool:
        """No process, and so no socket that listens, and no temporary file."""
        return not self.processes() and not list(self.private.iterdir())

    def clear(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)
        shutil.rmtree(self.private, ignore_errors=True)


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Callable[[], Bench]]:
    """Makes benches with folders of their own; whatever a failed test leaves of them is ended."""
    made: list[Bench] = []

    def make() -> Bench:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Bench(folder, Path(tempfile.mkdtemp(prefix="hr"))))
        return made[-1]

    yield make
    for bench in made:
        bench.clear()


@pytest.fixture
def bench(benches: Callable[[], Bench]) -> Bench:
    return benches()


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[Callable[[Script], ReferenceServer]]:
    """Starts reference servers, which end with the test; their log is ``reference-N.log``."""
    with ExitStack() as stack:
        count = itertools.count()

        def start(script: Script) -> ReferenceServer:
            server = ReferenceServer(script, log=tmp_path / f"reference-{next(count)}.log")
            server.start()
            stack.callback(server.end)
            return server

        yield start


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    return until
