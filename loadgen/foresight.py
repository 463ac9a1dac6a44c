"""Before the start: are there descriptors and ports for what the plan may hold open at once?

A load process that runs out of either loses requests that the target never sees. What surely does not
fit is to be refused, what would not fit if the target stalled is to be warned of.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.plan import Shot

SPARE_DESCRIPTORS = 64
"""For all of a process that is no connection: files, pipes, the event loop's own."""

_SYSCTL = Path("/proc/sys")

Instants = NDArray[np.int64]


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


def in_flight_bounds(
    shots: Sequence[Shot], total_timeout_s: float, load_ns: int, users: int = 0
) -> tuple[int, int]:
    """(surely, at most) requests in the air at once.

    Surely: the requests due at one instant, the branches that one answer makes due at once if it comes at
    all, or ``users`` of a closed loop who never pause. At most: if each answer takes as long as is least
    convenient, up to the total timeout; a session then has all of its branches in the air.
    """
    timeout = round(total_timeout_s * 1e9)
    parents = {shot.parent for shot in shots if shot.parent is not None}
    alone = (shot.due_ns for shot in shots if shot.due_ns is not None and shot.id not in parents)
    starts = np.fromiter(alone, np.int64)
    lives, forked = _lives(shots, parents, timeout, load_ns)
    many = np.array([(life.due, min(life.end, load_ns + timeout), life.widest) for life in lives], np.int64)
    many = many.reshape(-1, 3)
    begins = np.concatenate([starts, many[:, 0]])
    ends = np.concatenate([starts + timeout, many[:, 1]])
    most = _most_at_once(begins, ends, np.concatenate([np.ones_like(starts), many[:, 2]]))
    at_once = np.unique(begins, return_counts=True)[1].max(initial=0)
    return max(int(at_once), forked, users), max(most, int(at_once))


@dataclass(slots=True)
class _Life:
    """Of a session, or of a user with one session after the other; in ns since t0."""

    due: int
    end: int
    """The latest that its last request can be given up, were there no end of load."""
    width: int = 1
    """Ends of the paths of its present session: so many can be in the air at once, as each turn waits for
    the one before it."""
    widest: int = 1


def _lives(shots: Sequence[Shot], parents: set[int], timeout: int, load_ns: int) -> tuple[list[_Life], int]:
    """Of all that have later turns; and the most turns that one answer surely makes due at once."""
    lives: list[_Life] = []
    life_of: dict[int, _Life] = {}
    spans: dict[int, tuple[int, int]] = {}
    """The earliest and the latest that a turn can be due."""
    forked: Counter[tuple[int, int]] = Counter()
    followed: set[int] = set()
    for shot in shots:
        if shot.parent is None:
            if shot.id in parents and shot.due_ns is not None:
                lives.append(_Life(shot.due_ns, shot.due_ns + timeout))
                life_of[shot.id] = lives[-1]
                spans[shot.id] = shot.due_ns, shot.due_ns
            continue
        pause = shot.after_ns or 0
        if shot.parent not in spans or (early := spans[shot.parent][0] + pause) >= load_ns:
            continue  # never due
        late = spans[shot.parent][1] + timeout + pause
        life = life_of[shot.id] = life_of[shot.parent]
        spans[shot.id] = early, late
        life.end = max(life.end, late + timeout)
        life.width = 1 if shot.fresh else life.width + (shot.parent in followed)
        life.widest = max(life.widest, life.width)
        followed.add(shot.parent)
        if late < load_ns and not shot.fresh:
            forked[shot.parent, pause] += 1
    return lives, max(forked.values(), default=0)


def _most_at_once(begins: Instants, ends: Instants, widths: Instants) -> int:
    """The largest sum of widths over all that have begun and not ended."""
    at = np.concatenate([ends, begins])  # at one instant, what ends does so first
    order = np.argsort(at, kind="stable")
    return int(np.cumsum(np.concatenate([-widths, widths])[order]).max(initial=0))


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
