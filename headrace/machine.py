"""Facts of this machine that decide how much load it can make, and how well it can time it."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import os
import re
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from loadgen import native
from loadgen.owncores import can_be_kept_awake
from loadgen.sockets import kernel_stamps_here

_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class Machine:
    """None = this system does not say."""

    cores: int | None
    usable_cores: tuple[int, ...]
    """Where this process may run."""
    clock_source: str | None
    kernel_stamps: bool
    """TCP reads carry the kernel's receive stamp."""
    fds: tuple[int, int]
    """File descriptors of a process: the limit now, and the one it may be raised to."""
    ports: tuple[int, int] | None
    """Local ports of outgoing connections."""
    torch: str | None
    """Version and build, such as 2.13.0+cpu; None = not installed."""
    load_average: tuple[float, float, float]
    reads: Literal["native", "python"] = "native"
    """Whether the load generator's reads are kept by its extension; see loadgen.native."""
    awake: bool = False
    """Whether idle cores can be kept from sleeping; see loadgen.owncores."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def machine() -> Machine:
    return Machine(
        cores=os.cpu_count(),
        usable_cores=usable_cores(),
        clock_source=_text(_CLOCK),
        kernel_stamps=kernel_stamps_here(),
        fds=resource.getrlimit(resource.RLIMIT_NOFILE),
        ports=_port_range(_text(_PORTS)),
        torch=torch_build(),
        load_average=os.getloadavg(),
        reads=native.reads(),
        awake=can_be_kept_awake(),
    )


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on, where the system says."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _port_range(text: str | None) -> tuple[int, int] | None:
    words = (text or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def torch_build() -> str | None:
    """``torch.__version__`` without importing it, which would take seconds."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    if "+" in version:
        return version
    # A wheel from PyPI leaves the build out of its name; the package itself knows.
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    text = _text(Path(folders[0]) / "version.py") if folders else None
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text or "")
    return found[1] if found else version


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far; None if it is gone or the system does not say."""
    text = _text(Path(f"/proc/{pid}/stat"))
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float | None:
    """CPU time of all processes together since the machine started, and of the kernel for them."""
    words = (_text(Path("/proc/stat")) or "").split("\n", 1)[0].split()
    if len(words) < 9:
        return None
    user, nice, system, _, _, irq, softirq = (int(word) for word in words[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Processes that ``pid`` started and that still run."""
    text = _text(Path(f"/proc/{pid}/task/{pid}/children"))
    return [int(word) for word in (text or "").split()]


def resident_peak(pid: int) -> int | None:
    """Most memory that a process has held at once, bytes."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", _text(Path(f"/proc/{pid}/status")) or "", re.M)
    return int(found[1]) * 1024 if found else None


def shares(
    before: Mapping[int, float | None], after: Mapping[int, float | None], span_s: float
) -> list[float]:
    """Shares of a core that processes used between two looks at their CPU time."""
    return [
        (now - then) / span_s
        for pid, then in before.items()
        if then is not None and (now := after.get(pid)) is not None
    ]
