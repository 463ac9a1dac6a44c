"""Before the start: are there descriptors and ports for what the plan may hold open at once?

A load process that runs out of either loses requests that the target never sees. What surely does not
fit is to be refused, what would not fit if the target stalled is to be warned of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPARE_DESCRIPTORS = 64
"""For all of a process that is no connection: files, pipes, the event loop's own."""

_SYSCTL = Path("/proc/sys")


@dataclass(frozen=True, slots=True)
class Problem:
    sure: bool
    """True: a part of the load surely cannot be sent, refuse it. False: it may come to that, warn."""
    text: str
    """What, the numbers, and the remedy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What it allows; None = not known, or no limit."""

    descriptors: int | None = None
    """Files that one process may have open."""
    ports: int | None = None
    """Local ports for connections to one address."""
    room: int | None = None
    """Files that all processes together may still open."""


def in_flight_bounds(plan_dues_ns: Iterable[int], total_timeout_s: float, users: int = 0) -> tuple[int, int]:
    """(surely, at most) requests in the air at once.

    ``users``: those of a closed loop, and sessions whose later turns have no due time yet; each has one
    request in the air. Surely: the requests due at one instant, or the users. At most: if the target
    stalls, all that is due within one total timeout, and the users.
    """
    dues = np.sort(np.fromiter(plan_dues_ns, np.int64))
    if not dues.size:
        return users, users
    _, at_once = np.unique(dues, return_counts=True)
    given_up = np.searchsorted(dues, dues - round(total_timeout_s * 1e9), side="right")
    stalled = int((np.arange(1, dues.size + 1) - given_up).max())
    burst = int(at_once.max())
    return max(burst, users), max(burst, stalled) + users


def foresee(peak_in_flight: int, sure: int, processes: int, same_host: bool) -> list[Problem]:
    """What will not fit this machine, or may not. ``processes``: load processes that share the requests
    evenly; ``same_host``: the target runs here too. Raises the limit on descriptors as far as it goes."""
    raise_descriptor_limit()
    return problems(this_machine(), peak_in_flight, sure, processes, same_host)


def problems(machine: Machine, peak: int, sure: int, processes: int, same_host: bool) -> list[Problem]:
    """`foresee` for any machine."""
    ends = 2 if same_host else 1
    found = [
        _problem(
            -(-sure // processes) + SPARE_DESCRIPTORS,
            -(-peak // processes) + SPARE_DESCRIPTORS,
            machine.descriptors,
            "files open in one load process",
            "raise the hard limit (ulimit -Hn, LimitNOFILE of a service), or use more load processes",
        ),
        _problem(
            sure,
            peak,
            machine.ports,
            "connections to one address",
            "widen net.ipv4.ip_local_port_range, or spread the load over more machines",
        ),
        _problem(
            sure * ends,
            peak * ends,
            machine.room,
            "more files open on this machine",
            "raise fs.file-max" + (", or run the target elsewhere" if same_host else ""),
        ),
    ]
    if same_host and processes > 1:
        # Its limit is not ours to know; started from here it is the same.
        found.append(
            _problem(
                0,
                peak + SPARE_DESCRIPTORS,
                machine.descriptors,
                "files open in the target, should it be one process with this limit",
                "raise the hard limit of whoever starts it",
            )
        )
    return [problem for problem in found if problem is not None]


def _problem(sure: int, peak: int, allowed: int | None, what: str, remedy: str) -> Problem | None:
    if allowed is None or peak <= allowed:
        return None
    if sure > allowed:
        return Problem(True, f"the plan needs {sure} {what}, {allowed} are possible: {remedy}")
    return Problem(
        False, f"if the target stalls, the plan needs up to {peak} {what}, {allowed} are possible: {remedy}"
    )


def raise_descriptor_limit() -> int | None:
    """Let this process and those it starts open as many files as they may at all; returns how many, None
    where there is no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):
        pass  # some systems say "unlimited" and do not take it; what there is stays
    return None if soft == resource.RLIM_INFINITY else soft


def this_machine(sysctl: Path = _SYSCTL) -> Machine:
    """As the kernel says; the descriptors are those of `raise_descriptor_limit`."""
    room = _numbers(sysctl / "fs/file-nr")
    return Machine(raise_descriptor_limit(), _ports(sysctl), room[2] - room[0] if len(room) == 3 else None)


def _ports(sysctl: Path) -> int | None:
    span = _numbers(sysctl / "net/ipv4/ip_local_port_range")
    if len(span) != 2:
        return None
    low, high = span
    reserved = _text(sysctl / "net/ipv4/ip_local_reserved_ports")
    taken = {
        port
        for part in reserved.split(",")
        if part.strip()
        for port in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
    }
    return high - low + 1 - sum(low <= port <= high for port in taken)


def _numbers(path: Path) -> list[int]:
    return [int(word) for word in _text(path).split()]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # not this kind of machine
