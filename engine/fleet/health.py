"""Who is in rotation: silence, loss, stalls, the breaker, and the way back (FLEET F35-F38).

gone ──Hello──> warming ──ready heartbeats──> in_rotation <──> draining
 ^ └──────────────<──────────────┐               │ silence, stall, not ready, breaker
 └── connection lost, from every state           v
                                              ejected ──ready heartbeats──> in_rotation
"""

from __future__ import annotations

import random
from collections import deque
from enum import StrEnum

from engine.config import HealthConfig
from engine.messages import Heartbeat, Hello

RETURN_BEATS = 2
"""F38: a worker that was ejected is back after so many ready heartbeats."""
STEP_FLOOR_S = 10.0
STEP_FACTOR = 20.0
"""F35: an attempt is stalled after max(10 s, 20 * p99 of a step) without a sign of life."""

_TRIP_IN_A_ROW = 3
_TRIP_WINDOW = 20
_OPEN_S = 5.0
_OPEN_MAX_S = 60.0


class State(StrEnum):
    """Of these exactly one is true of a worker (OBSERVABILITY O14)."""

    IN_ROTATION = "in_rotation"
    WARMING = "warming"
    DRAINING = "draining"
    EJECTED = "ejected"
    GONE = "gone"


class Breaker:
    """3 failures in a row, or more than half of the last 20: no selection for 5 s, doubling to 60 s,
    then one trial request (F36)."""

    def __init__(self) -> None:
        self.open_until: int | None = None
        self.trial = False
        self._row = 0
        self._last: deque[bool] = deque(maxlen=_TRIP_WINDOW)
        self._pause = _OPEN_S

    def allows(self, now: int) -> bool:
        """True if a request may be sent now; while half open only one at a time."""
        return self.open_until is None or (now >= self.open_until and not self.trial)

    def sent(self) -> None:
        """A request goes out; in the half-open state it is the trial."""
        self.trial = self.open_until is not None

    def succeeded(self) -> None:
        self._row = 0
        self._last.append(True)
        if self.open_until is not None:
            self._last.clear()
            self.open_until, self.trial, self._pause = None, False, _OPEN_S

    def withdrawn(self) -> None:
        """The trial ended without a verdict (cancelled, recalled): the next one may try."""
        self.trial = False

    def failed(self, now: int) -> bool:
        """True if this failure opens it."""
        self._row += 1
        self._last.append(False)
        failures = self._last.count(False)
        full = len(self._last) == _TRIP_WINDOW
        if self.open_until is not None:  # the trial failed, or one sent before it opened
            if self.trial:
                self.trial = False
                self._pause = min(2 * self._pause, _OPEN_MAX_S)
                self.open_until = now + int(self._pause * 1e9)
                return True
            return False
        if self._row >= _TRIP_IN_A_ROW or (full and failures > _TRIP_WINDOW // 2):
            self.open_until = now + int(self._pause * 1e9)
            return True
        return False


class WorkerHealth:
    """What the gateway believes of one worker."""

    def __init__(self, config: HealthConfig) -> None:
        self.config = config
        self.state = State.GONE
        self.reason = "not_started"
        self.since = 0
        self.hello: Hello | None = None
        self.seen: int | None = None
        """ns of the last sign of life, None before the first Hello."""
        self.beats = 0
        self.draining = False
        self.heartbeat: Heartbeat | None = None
        self.step_at: int | None = None
        """ns when its step number last moved, or when it last got work."""
        self.breaker = Breaker()
        self._steps: deque[float] = deque(maxlen=200)
        self._pulse: int | None = None

    @property
    def incarnation(self) -> str | None:
        return self.hello.incarnation if self.hello else None

    def selectable(self, now: int) -> bool:
        """May be chosen: in rotation, heard of within the last second, breaker not open (F20, F35)."""
        return self.state is State.IN_ROTATION and not self.suspect(now) and self.breaker.allows(now)

    def suspect(self, now: int) -> bool:
        return self.seen is not None and now - self.seen >= self.config.suspect_after * 1e9

    def silent(self, now: int) -> bool:
        return self.seen is not None and now - self.seen >= self.config.eject_after * 1e9

    def hears_hello(self, hello: Hello, now: int) -> None:
        """A new incarnation: breaker closed, no heartbeat yet."""
        self.hello, self.heartbeat = hello, None
        self.seen, self.step_at, self.beats = now, now, 0
        self.draining = False
        self.breaker = Breaker()
        self._enter(State.WARMING, "warming", now)

    def hears_heartbeat(self, heartbeat: Heartbeat, now: int) -> bool:
        """True if the state changes by it. The caller has checked the incarnation."""
        before = self.state
        if self.heartbeat is None or heartbeat.step != self.heartbeat.step:
            self.step_at = now
        self.heartbeat, self.seen = heartbeat, now
        stalled = self._stalled(heartbeat, now)
        self.beats = self.beats + 1 if heartbeat.state == "ready" and not stalled else 0
        if heartbeat.state == "draining" or self.draining:
            self._enter(State.DRAINING, "draining", now)
        elif heartbeat.state != "ready":
            self._enter(State.WARMING, heartbeat.state, now)
        elif stalled:
            self.eject("stalled", now)
        elif self.state in (State.WARMING, State.DRAINING) or (
            self.state is State.EJECTED and self.beats >= RETURN_BEATS
        ):
            self._enter(State.IN_ROTATION, "ready", now)
        return self.state is not before

    def _stalled(self, heartbeat: Heartbeat, now: int) -> bool:
        """The same step has been running for ``stall_after``: none has started since (E52)."""
        started = heartbeat.step_started
        return started is not None and now - started >= self.config.stall_after * 1e9

    def eject(self, reason: str, now: int) -> None:
        """Out of rotation, but its process may still be there: ``silent``, ``stalled`` or ``not_ready``."""
        self.beats = 0
        self.breaker.withdrawn()
        self._enter(State.EJECTED, reason, now)

    def drain(self, now: int) -> None:
        """It takes nothing new until its next life, whatever its heartbeats under way still say."""
        self.draining = True
        if self.state is not State.GONE:
            self._enter(State.DRAINING, "draining", now)

    def lose(self, reason: str, now: int) -> None:
        """Its process is gone."""
        self.hello = self.heartbeat = self.seen = None
        self._enter(State.GONE, reason, now)

    def pulse(self, now: int) -> None:
        """Output of a step has come; the time since the one before is what a step takes."""
        if self._pulse is not None and now > self._pulse:
            self._steps.append((now - self._pulse) / 1e9)
        self._pulse = self.step_at = now

    def rest(self) -> None:
        """It has nothing left to do: the next pulse ends no step."""
        self._pulse = None

    def stall_limit(self) -> int:
        """ns that an attempt may stay without a sign of life (F35)."""
        steps = sorted(self._steps)
        p99 = steps[min(len(steps) - 1, int(0.99 * len(steps)))] if steps else 0.0
        return int(max(STEP_FLOOR_S, STEP_FACTOR * p99) * 1e9)

    def _enter(self, state: State, reason: str, now: int) -> None:
        if state is not self.state:
            self.state, self.since = state, now
        self.reason = reason


class RetryBudget:
    """F40: retries may be 10 % of the requests. A purse of ``START`` retries lets a small fleet survive
    its first loss; what is not spent is kept up to ``MOST``."""

    START = 10
    MOST = 100
    PRICE = 10
    """Requests that pay for one retry."""

    def __init__(self) -> None:
        self._purse = self.START * self.PRICE

    def earn(self) -> None:
        self._purse = min(self._purse + 1, self.MOST * self.PRICE)

    def spend(self) -> bool:
        if self._purse < self.PRICE:
            return False
        self._purse -= self.PRICE
        return True


def backoff_ns(failures: int, rng: random.Random) -> int:
    """F40: 50 ms before the second attempt, 100 ms before the third, each with up to 25 % jitter."""
    return int(0.05e9 * 2 ** (failures - 1) * (1 + rng.uniform(0.0, 0.25)))
