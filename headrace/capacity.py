"""Where this machine's limit is: what a step of load says, and which rate to try next. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Limit = Literal["client", "server", "machine", "fds", "ports"]
"""``machine``: neither of the two was busy, so something else held them up."""

SERVER_BUSY = 0.95
"""Share of its core at which the reference server is taken to be at its limit."""
CLIENT_BUSY = 0.9
"""The same for a load process; it is no limit by itself, but says why others were reached."""
IDLE = 0.8
"""Below this a process that was late was not late by its own work."""
OTHERS = 0.25
"""Cores that other processes may use without being named."""
STEAL = 0.05
_HARD = 5.0
"""A miss by more than this factor is no noise."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rate that was tried. Times in ms, shares of one core; None = not measured."""

    rate: float
    """Streams/s asked."""
    tokens: int = 50
    """Of each stream."""
    delivered: float = 0.0
    """Streams/s completed in the window."""
    planned: int = 0
    lost: int = 0
    """Requests and tokens that are missing on one of the sides."""
    early: int = 0
    """Stamps before their cause."""
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    token_p50: float | None = None
    token_p99: float | None = None
    one_event_p99: float | None = None
    one_event_share: float | None = None
    lateness_p99: float | None = None
    lateness_least: float | None = None
    server_late_p99: float | None = None
    bodies_late: int = 0
    """Requests that had to wait for their body, which a clerk had not made in time."""
    client_cpu: float | None = None
    """Of the busiest load process."""
    clerk_cpu: float | None = None
    server_cpu: float | None = None
    """Of the busiest process of the reference server."""
    us_per_event: float | None = None
    """CPU of the load processes in the window, µs per token event."""
    others_cpu: float | None = None
    """Cores that all other processes used together."""
    steal: float | None = None
    stamp: str | None = None
    prevented: Limit | None = None
    """Not run, or not to its end: by what."""
    why: str | None = None
    """Words for ``prevented``."""

    @property
    def core(self) -> float | None:
        """What the busiest load process and its clerk used of the core that they share."""
        return None if self.client_cpu is None else self.client_cpu + (self.clerk_cpu or 0.0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a step held, and if not, who did not hold and in which words."""

    holds: bool
    limit: Limit | None = None
    reasons: tuple[str, ...] = ()
    hard: bool = False
    """So far off that trying it again would be a waste."""


def judge(step: Step, bound: float) -> Judged:
    """A step holds if nothing was lost and no p99 of an error or a lateness is over ``bound`` ms, the
    server's own included: above that, nobody knows what the client would have done."""
    if step.prevented is not None:
        return Judged(False, step.prevented, (step.why or step.prevented,), hard=True)
    server = _server_misses(step, bound)
    client = _client_misses(step, bound)
    if not server and not client:
        return Judged(True)
    limit: Limit = "machine" if _held_up(step) else "server" if server else "client"
    hard = limit != "machine" and _hard(step, bound)
    return Judged(False, limit, (*server, *client, *_circumstances(step)), hard)


def _held_up(step: Step) -> bool:
    """Late without being busy."""
    used = [share for share in (step.core, step.server_cpu) if share is not None]
    return bool(used) and max(used) < IDLE


def _hard(step: Step, bound: float) -> bool:
    times = (step.ttft_p99, step.token_p99, step.lateness_p99, step.server_late_p99)
    far = max((value for value in times if value is not None), default=0.0) > _HARD * bound
    return far or step.lost > 0 or (step.server_cpu or 0.0) >= SERVER_BUSY


def _server_misses(step: Step, bound: float) -> list[str]:
    found = []
    if step.server_late_p99 is not None and step.server_late_p99 > bound:
        found.append(f"the reference server wrote late: p99 {step.server_late_p99:.2f} ms")
    if step.server_cpu is not None and step.server_cpu >= SERVER_BUSY:
        found.append(f"the reference server used {step.server_cpu:.0%} of its core")
    return found


def _client_misses(step: Step, bound: float) -> list[str]:
    named = (
        ("certified TTFT error", step.ttft_p99),
        ("certified token error", step.token_p99),
        ("lateness of sends", step.lateness_p99),
    )
    found = [f"{name} p99 {value:.2f} ms" for name, value in named if value is not None and value > bound]
    if step.lost:
        found.append(f"{step.lost} requests or tokens lost")
    if step.early:
        found.append(f"{step.early} stamps before their cause: a clock fault")
    if step.lateness_least is not None and step.lateness_least < 0:
        found.append("a request was sent before it was due")
    return found


def _circumstances(step: Step) -> list[str]:
    found = []
    if step.client_cpu is not None and step.client_cpu >= CLIENT_BUSY:
        found.append(f"a load process used {step.client_cpu:.0%} of its core")
    elif step.core is not None and step.core >= CLIENT_BUSY:
        both = f"{step.client_cpu:.0%} and {step.clerk_cpu:.0%}"
        found.append(f"a load process and its clerk used {both} of their core")
    if step.bodies_late:
        found.append(f"{step.bodies_late} requests waited for their body, which the clerk made too late")
    if step.others_cpu is not None and step.others_cpu > OTHERS:
        found.append(f"other processes used {step.others_cpu:.1f} cores meanwhile")
    if step.steal is not None and step.steal > STEAL:
        found.append(f"{step.steal:.0%} of the machine's CPU time was stolen by its host")
    return found


@dataclass(frozen=True, slots=True)
class Search:
    """Doubling from ``start``, then bisection, until the bracket is no wider than ``width``. A rate that
    missed narrowly is tried once more: one hiccup must not decide."""

    bound: float = 1.0
    """ms."""
    start: float = 500.0
    least: float = 10.0
    most: float = 64_000.0
    width: float = 1.15

    def bracket(self, steps: Sequence[Step]) -> tuple[float | None, float | None]:
        """(highest rate that held below the lowest that did not, that one); what held above it is luck."""
        held = {step.rate for step in steps if judge(step, self.bound).holds}
        missed = min((step.rate for step in steps if step.rate not in held), default=None)
        below = [rate for rate in held if missed is None or rate < missed]
        return max(below, default=None), missed

    def next(self, steps: Sequence[Step]) -> float | None:
        """The rate to try next; None = there is nothing more to learn."""
        if not steps:
            return self.start
        if self._worth_another_try(steps):
            return steps[-1].rate
        held, missed = self.bracket(steps)
        if missed is None:
            assert held is not None
            following = min(held * 2, self.most)
        elif held is None:
            following = max(missed / 2, self.least)
        elif missed / held <= self.width:
            return None
        else:
            following = _rounded(math.sqrt(held * missed))
        tried = {step.rate for step in steps}
        return None if following in tried else following

    def _worth_another_try(self, steps: Sequence[Step]) -> bool:
        last = steps[-1]
        judged = judge(last, self.bound)
        return not judged.holds and not judged.hard and [step.rate for step in steps].count(last.rate) == 1


def _rounded(rate: float) -> float:
    """Two digits, and a third one of 5: as exact as such a search is."""
    digit = 10.0 ** (math.floor(math.log10(rate)) - 1)
    return float(round(rate / digit * 2) / 2 * digit)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was found: the highest rate that held, and what stopped the next one."""

    rate: float | None
    tokens_per_s: float | None
    missed: float | None
    """The lowest rate that did not hold; None = none was found."""
    limit: Limit | None
    reasons: tuple[str, ...] = ()
    bound: float = 1.0
    steps: tuple[Step, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        said = asdict(self)
        said["bound_ms"] = said.pop("bound")
        return said


def capacity(steps: Sequence[Step], search: Search) -> Capacity:
    held, missed = search.bracket(steps)
    at_limit = [judge(step, search.bound) for step in steps if step.rate == missed]
    last = at_limit[-1] if at_limit else Judged(True)
    tokens = next((step.tokens for step in steps if step.rate == held), None)
    return Capacity(
        held,
        held * tokens if held is not None and tokens is not None else None,
        missed,
        last.limit,
        last.reasons,
        search.bound,
        tuple(steps),
    )
