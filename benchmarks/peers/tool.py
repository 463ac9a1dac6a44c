"""What all load generators here have in common: what they are told, what they report."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from loadgen.reference.group import ReferenceServer
from loadgen.reference.script import Script

ArrivalLaw = Literal["poisson", "constant"]

PROMPT_TOKENS = 16
SPARE_S = 90.0
"""Over the load itself: imports, prompts, warm-up, reports, all on one core."""
_SLOWEST = 3.0
"""A tool that takes more than so many times as long as its load should is ended."""


class ToolFailed(Exception):
    """It gave no result; says why."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One run: a rate in streams/s, times in s."""

    rate: float
    script: Script
    seconds: float
    """That count; warm-up before and cool-down after them do not."""
    warmup: float
    cooldown: float
    tokens: int
    arrival: ArrivalLaw
    core: int
    """Where all of the tool runs."""
    model: Path
    """Folder with the tokenizer, for tools that want one."""
    hub: Path
    """The same in the layout of a model hub's cache, as ``hub_name``."""
    hub_name: str

    @property
    def in_flight(self) -> int:
        """Streams at a time, by the script, with room for chance."""
        return math.ceil(1.3 * self.rate * self.stream_s) + 10

    @property
    def stream_s(self) -> float:
        """How long one stream takes."""
        return self.script.ttft + (self.tokens - 1) * self.script.itl

    @property
    def limit_s(self) -> float:
        return SPARE_S + _SLOWEST * (self.warmup + self.seconds + self.cooldown)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of a run's requests, in ms; None = not given."""

    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """What a tool says of its run in its own files, and which requests it speaks of: those sent within
    ``span`` (ns since the epoch), those whose ids begin with ``prefix``, or those with ``ids``."""

    times: Quantiles
    completed: int
    failed: int
    rate: float | None
    """Requests/s as the tool reckons it; each by its own formula."""
    span: tuple[int, int] | None = None
    prefix: str = ""
    ids: frozenset[str] | None = None


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        """Load the server once; ``folder`` is empty and keeps the tool's files. Raises ToolFailed."""
        ...


def execute(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, core: int, limit_s: float
) -> None:
    """Run a tool on one core to its end; what it prints goes to ``folder/output.txt``. Raises ToolFailed
    with the last of it for another exit code than 0, or after ``limit_s`` s."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, {core})  # before it has started anything
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"not ready within {limit_s:.0f} s; {_last_of(output)}") from None
        finally:
            _end_group(process)
    if code != 0:
        raise ToolFailed(f"exit code {code}; {_last_of(output)}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The tool and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_of(output: Path) -> str:
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return f"it said: {' / '.join(lines[-3:])[-400:]}" if lines else "it said nothing"
