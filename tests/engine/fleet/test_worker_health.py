"""Silence, breaker and return of one worker (FLEET F35, F36, F38, F40)."""

from __future__ import annotations

import random

from engine.config import HealthConfig
from engine.fleet.health import Breaker, RetryBudget, State, WorkerHealth, backoff_ns
from engine.messages import Heartbeat, Hello, Load

S = 1_000_000_000


def worker() -> WorkerHealth:
    health = WorkerHealth(HealthConfig())
    health.hears_hello(Hello(0, "a", 1, 100, 16, 1600), 0)
    return health


def beat(state: str = "ready", step: int = 0) -> Heartbeat:
    return Heartbeat("a", 1, step, None, state, Load())


def test_a_worker_is_selectable_from_its_first_ready_heartbeat() -> None:
    """Hello alone is not enough; loading is not ready."""
    health = worker()
    assert not health.selectable(0)
    health.hears_heartbeat(beat("loading"), 0)
    assert health.state is State.WARMING
    health.hears_heartbeat(beat(), 0)
    assert health.selectable(0)


def test_silence_of_a_second_stops_selection_and_of_two_means_out() -> None:
    """Suspect at 1 s, silent at 2 s (F35)."""
    health = worker()
    health.hears_heartbeat(beat(), 0)
    assert health.selectable(S - 1)
    assert not health.selectable(S)
    assert not health.silent(2 * S - 1)
    assert health.silent(2 * S)


def test_an_ejected_worker_is_back_after_two_ready_heartbeats() -> None:
    """One could be the last of a queue of old ones (F38)."""
    health = worker()
    health.hears_heartbeat(beat(), 0)
    health.eject("silent", 2 * S)
    health.hears_heartbeat(beat(), 3 * S)
    assert health.state is State.EJECTED
    health.hears_heartbeat(beat(), 3 * S)
    assert health.selectable(3 * S)


def test_a_draining_worker_stays_out_whatever_is_still_under_way() -> None:
    """A ready heartbeat that was sent before the drain does not bring it back (F43)."""
    health = worker()
    health.hears_heartbeat(beat(), 0)
    health.drain(0)
    health.hears_heartbeat(beat("ready"), 0)
    assert health.state is State.DRAINING
    health.hears_hello(Hello(0, "b", 2, 100, 16, 1600), S)
    health.hears_heartbeat(beat(), S)
    assert health.state is State.IN_ROTATION


def test_three_failures_in_a_row_open_the_breaker_for_5_s_then_one_trial() -> None:
    """A failed trial doubles the pause, a good one closes it (F36)."""
    breaker = Breaker()
    assert [breaker.failed(0) for _ in range(3)] == [False, False, True]
    assert not breaker.allows(5 * S - 1)
    assert breaker.allows(5 * S)
    breaker.sent()
    assert not breaker.allows(5 * S), "one trial at a time"
    assert breaker.failed(6 * S)
    assert not breaker.allows(16 * S - 1)
    assert breaker.allows(16 * S)
    breaker.sent()
    breaker.succeeded()
    assert breaker.allows(16 * S)
    assert [breaker.failed(17 * S) for _ in range(3)] == [False, False, True]
    assert breaker.allows(22 * S), "the pause began again at 5 s"


def test_more_than_half_of_twenty_failures_open_the_breaker() -> None:
    """Ten of twenty do not; eleven do."""
    breaker = Breaker()
    for _ in range(9):
        breaker.succeeded()
        breaker.failed(0)
    breaker.succeeded()
    assert not breaker.failed(0)
    breaker.failed(0)
    assert not breaker.allows(0)


def test_a_trial_without_verdict_leaves_room_for_the_next() -> None:
    """A trial request that its client cancelled proves nothing."""
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(0)
    breaker.sent()
    breaker.withdrawn()
    assert breaker.allows(5 * S)


def test_the_stall_limit_follows_the_steps() -> None:
    """10 s, or 20 times the p99 of a step if that is longer; idling is no step (F35)."""
    health = worker()
    assert health.stall_limit() == 10 * S
    health.pulse(0)
    health.pulse(2 * S)
    assert health.stall_limit() == 40 * S
    health.rest()
    health.pulse(100 * S)
    assert health.stall_limit() == 40 * S


def test_retries_are_a_tenth_of_the_requests_after_the_first_ten() -> None:
    """The purse begins with ten and earns a tenth of a retry per request (F40)."""
    budget = RetryBudget()
    assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(10):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]


def test_backoff_doubles_with_jitter() -> None:
    """50 ms and 100 ms, each up to a quarter more."""
    rng = random.Random(0)
    for failures, least in ((1, 50_000_000), (2, 100_000_000)):
        assert all(least <= backoff_ns(failures, rng) <= 1.25 * least for _ in range(50))
