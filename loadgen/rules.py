"""What the client does by itself: give up, hold back, try again. Nothing is left to a library's default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loadgen.plan import Seconds
from loadgen.raw import Raw
from loadgen.retryafter import retry_after


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The client's own limits (MEASUREMENT C28), in s."""

    connect: Seconds = 5.0
    first_token: Seconds = 60.0
    between_tokens: Seconds = 30.0
    total: Seconds = 120.0

    @property
    def shortest_ns(self) -> int:
        """Of the limits on a stream that goes on."""
        return round(min(self.first_token, self.between_tokens, self.total) * 1e9)


@dataclass(frozen=True, slots=True)
class Retries:
    """Whether a request that was turned away or lost is sent again (MEASUREMENT C27). Off by default.

    At most ``max`` times, ``backoff`` s after the first failure and twice as long after each further one;
    a longer Retry-After is obeyed, up to ``longest``. Only what the target cannot have begun to answer is
    tried again: refused connections, resets before the answer, and the statuses in ``on``.
    """

    max: int = 0
    backoff: Seconds = 0.5
    longest: Seconds = 30.0
    on: tuple[int, ...] = (429, 500, 502, 503, 504)

    def __post_init__(self) -> None:
        if not 0 <= self.max <= 100:
            raise ValueError(f"max must be 0 (off) to 100 retries, not {self.max}")
        if self.backoff < 0 or self.longest < 0:
            raise ValueError("backoff and longest must not be negative")
        if wrong := [status for status in self.on if not 400 <= status <= 599]:
            raise ValueError(f"on lists statuses of failed answers, 400 to 599, not {wrong[0]}")

    def wait(self, raw: Raw, attempt: int) -> float | None:
        """Seconds until the next attempt after number ``attempt`` (the first is 1); None = no other one."""
        if attempt > self.max or not self._worth(raw):
            return None
        asked = retry_after(raw.headers) or 0.0
        return min(max(self.backoff * float(2 ** (attempt - 1)), asked), self.longest)

    def _worth(self, raw: Raw) -> bool:
        if raw.status is not None:
            return raw.status in self.on
        return raw.ending in ("connect_error", "reset", "eof")


@dataclass(frozen=True, slots=True)
class Cap:
    """At most ``in_flight`` requests of a class at a time, in all load processes together. What is due
    beyond it waits (``queue``, counted as cap_wait) or is not sent at all (``drop``). A class with a cap is
    no open loop: its gates must use the ``*_sched`` metrics (MEASUREMENT C17)."""

    in_flight: int
    over: Literal["queue", "drop"] = "queue"

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, not {self.in_flight}")

    def share(self, slice: int, slices: int) -> Cap:
        """What one of ``slices`` load processes may have of it. Raises ValueError if that is nothing:
        a cap must not be smaller than the number of load processes."""
        own = self.in_flight // slices + (slice < self.in_flight % slices)
        return Cap(own, self.over)


@dataclass(frozen=True, slots=True)
class Rules:
    """All of it; ``caps`` by class."""

    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    caps: Mapping[str, Cap] = field(default_factory=dict)

    def with_caps(self, caps: Mapping[str, Cap]) -> Rules:
        return Rules(self.timeouts, self.retries, caps)
