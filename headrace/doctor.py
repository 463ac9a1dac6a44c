"""``bench doctor``: the rate that this machine can hold, and why not more."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.capacity import Capacity, Limit, Search, Step, capacity, judge
from headrace.errors import TargetFailed, UsageFailed
from headrace.machine import Machine, machine
from headrace.probe import ProbeFailed, prevented, probe
from headrace.probed import Order
from loadgen.health import read_steal
from loadgen.owncores import PM_QOS
from loadgen.reference.group import ReferenceServer, ServerFailed
from loadgen.reference.log import LogTail
from loadgen.reference.script import Script

STEP_S = 8.0
"""About what a step takes: processes start, bodies are made ahead, streams run out, files are read."""

Say = Callable[[str], None]
TryRate = Callable[[float], Step]


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """``budget`` in s; ``bound`` in ms."""

    bound: float = 1.0
    budget: float = 55.0
    start: float = 500.0
    processes: int = 1
    server_processes: int = 1

    def __post_init__(self) -> None:
        for name in ("bound", "budget", "start"):
            if not getattr(self, name) > 0:
                raise UsageFailed(f"--{name} must be above 0, not {getattr(self, name):g}")
        for name in ("processes", "server_processes"):
            if getattr(self, name) < 1:
                raise UsageFailed(f"--{name.replace('_', '-')} must be at least 1")

    @property
    def search(self) -> Search:
        least = min(Search().least, self.start)
        return Search(self.bound, self.start, least=least, most=max(Search().most, self.start))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    machine: Machine
    found: Capacity
    us_per_write: float
    """CPU of the reference server for one write, measured before it served."""
    seconds: float
    steal: float | None
    """Share of the machine's CPU time that its host took meanwhile."""
    cut_short: bool
    """The time was over before the bracket was narrow."""

    @property
    def exit_code(self) -> int:
        return 0 if self.found.rate is not None else TargetFailed.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "rate": self.found.rate,
            "tokens_per_s": self.found.tokens_per_s,
            "verdict": verdict(self),
            "remedies": list(remedies(self)),
            "exit": self.exit_code,
            "cut_short": self.cut_short,
            "seconds": round(self.seconds, 1),
            "steal": self.steal,
            "server_us_per_write": self.us_per_write,
            "capacity": self.found.as_dict(),
            "machine": self.machine.as_dict(),
        }


def diagnose(options: DoctorOptions, say: Say) -> Diagnosis:
    """Start a reference server, try rates, end it. Raises TargetFailed if that cannot be done here."""
    facts, script = machine(), Script()
    server_cpus, client_cpus = placed(facts.usable_cores, options.server_processes)
    began, steal = time.monotonic(), read_steal()
    server = ReferenceServer(script, processes=options.server_processes, cpus=server_cpus)
    try:
        with server:
            say(f"reference server on {server.url}: {server.us_per_write:.1f} µs per write")
            cost, tail = server.us_per_write, server.tail()

            def try_rate(rate: float) -> Step:
                order = Order.poisson(rate, script, processes=options.processes, cpus=client_cpus)
                return prevented(order, facts) or _tried(order, server, tail, first=rate == options.start)

            steps, cut_short = searched(options, try_rate, say, time.monotonic)
    except (ServerFailed, ProbeFailed, OSError) as error:
        raise TargetFailed(f"the doctor cannot measure here: {error}") from error
    found = capacity(steps, options.search)
    return Diagnosis(facts, found, cost, time.monotonic() - began, _stolen(steal, read_steal()), cut_short)


def _tried(order: Order, server: ReferenceServer, tail: LogTail, first: bool) -> Step:
    """A load process that fails under a higher rate has found its limit; one that cannot serve the first
    is broken. Raises ProbeFailed."""
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        try:
            return asyncio.run(probe(order, server, tail, Path(folder))).step
        except ProbeFailed as error:
            if first:
                raise
            return Step(order.rate, order.tokens, prevented="client", why=str(error))


def searched(
    options: DoctorOptions, try_rate: TryRate, say: Say, now: Callable[[], float]
) -> tuple[list[Step], bool]:
    """Try rates until nothing more is to be learnt or the budget leaves no time for another step; whether
    it was the budget. At least one step is tried."""
    search, steps, until = options.search, list[Step](), now() + options.budget
    while (rate := search.next(steps)) is not None:
        if steps and now() + STEP_S > until:
            return steps, True
        steps.append(try_rate(rate))
        say(line(steps[-1], options.bound))
    return steps, False


def placed(usable: tuple[int, ...], servers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(cores of the server, cores of the client): apart if there are enough, else not pinned."""
    return (usable[-servers:], usable[:-servers]) if len(usable) > servers else ((), ())


def _stolen(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


# --- in words


def line(step: Step, bound: float) -> str:
    """One step as a line of progress."""
    judged = judge(step, bound)
    if step.prevented is not None:
        return f"{step.rate:>7,.0f} streams/s  {step.why}"
    return (
        f"{step.rate:>7,.0f} streams/s  TTFT error p99 {_ms(step.ttft_p99)}  token {_ms(step.token_p99)}  "
        f"late {_ms(step.lateness_p99)}  lost {step.lost}  CPU client {_share(step.client_cpu)} "
        f"server {_share(step.server_cpu)} (late {_ms(step.server_late_p99)})  "
        f"{'holds' if judged.holds else f'does not hold ({judged.limit})'}"
    )


def verdict(diagnosis: Diagnosis) -> str:
    """One sentence, or two."""
    found, bound = diagnosis.found, diagnosis.found.bound
    if found.rate is None:
        return f"No rate was held within {bound:g} ms. {_why(found)}"
    rates = f"{found.rate:,.0f} streams/s ({found.tokens_per_s:,.0f} tokens/s)"
    held = f"This machine holds {rates} within {bound:g} ms"
    if found.missed is None:
        return f"{held}; no limit was found {'in the time given' if diagnosis.cut_short else 'up to there'}."
    more = " The time was over before the bracket was narrow." if diagnosis.cut_short else ""
    return f"{held}, not {found.missed:,.0f}. {_why(found)}{more}"


_WHO: Mapping[Limit, str] = {
    "client": "The load generator was at its limit",
    "server": "The reference server was at its limit first, and the load generator's own is not known",
    "machine": "Something else held both up, for neither was busy",
    "fds": "File descriptors would run out",
    "ports": "Local ports would run out",
}


def _why(found: Capacity) -> str:
    if found.limit is None:
        return ""
    return f"{_WHO[found.limit]}: {'; '.join(found.reasons)}."


def remedies(diagnosis: Diagnosis) -> tuple[str, ...]:
    """What would help, the likeliest first."""
    found, facts, advice = diagnosis.found, diagnosis.machine, list[str]()
    cores = len(facts.usable_cores)
    if found.limit == "server":
        advice.append("give the reference server more cores: bench doctor --server-processes 2")
    if found.limit == "client":
        advice.append("use more load processes: bench doctor --processes 2, and the same in a run")
    if found.limit == "machine":
        advice.append("end what else runs on this machine, and on its host, and look again")
    if found.limit == "machine" and not facts.awake and cores > 1 and PM_QOS.exists():
        advice.append(f"let it keep the cores awake: run it as root, or give it write access to {PM_QOS}")
    if found.limit in ("client", "server") and cores < 3:
        advice.append(f"only {cores} core(s) may be used here, and the target takes one: use more cores")
    if found.limit == "fds":
        advice.append(
            f"raise the limit of file descriptors (ulimit -Hn is {facts.fds[1]:,}), or use --processes"
        )
    if found.limit == "ports":
        advice.append("widen net.ipv4.ip_local_port_range")
    if cores and facts.load_average[0] > cores / 2:
        advice.append(f"the load average was {facts.load_average[0]:.1f} before it began, on {cores} core(s)")
    if diagnosis.steal is not None and diagnosis.steal > 0.05:
        advice.append(
            f"{diagnosis.steal:.0%} of the CPU time went to others on the host: use a machine alone"
        )
    if facts.reads == "python":
        advice.append(
            "the load generator's extension is not in use: install a C compiler, then headrace again"
        )
    if not facts.kernel_stamps:
        advice.append("without the kernel's receive stamps a late event loop moves latencies: use Linux")
    return tuple(advice)


def facts_of(diagnosis: Diagnosis) -> dict[str, str]:
    """The machine, in words."""
    facts = diagnosis.machine
    ports = "unknown" if facts.ports is None else f"{facts.ports[0]} to {facts.ports[1]}"
    return {
        "cores": f"{facts.cores}, of which {len(facts.usable_cores)} may be used",
        "clock source": facts.clock_source or "unknown",
        "kernel receive stamps": "yes" if facts.kernel_stamps else "no",
        "reads": facts.reads,
        "idle cores": "can be kept awake" if facts.awake else "sleep",
        "file descriptors": f"{facts.fds[0]:,} now, {facts.fds[1]:,} at most",
        "local ports": ports,
        "torch": facts.torch or "not installed",
        "load average before": " ".join(f"{value:.2f}" for value in facts.load_average),
        "load average after": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "CPU steal meanwhile": _share(diagnosis.steal),
        "reference server": f"{diagnosis.us_per_write:.1f} µs per write",
    }


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ms"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
