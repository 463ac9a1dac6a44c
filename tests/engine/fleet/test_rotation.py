"""When a worker is looked at, and when the times of health change meanwhile (FLEET F35, ENGINE E50)."""

from __future__ import annotations

import pytest

from engine.config import HealthConfig
from engine.fleet.controls import changed
from engine.fleet.health import State
from tests.engine.fleet.world import S, Yard, ask, config


def _apply(yard: Yard, key: str, seconds: float) -> None:
    yard.config, for_workers = changed(yard.config, {key: seconds})
    yard.gateway.configure(yard.config, for_workers, yard.now)
    yard.collect()


def _silent_from(yard: Yard, worker: int, seconds: float) -> float:
    """When a worker that is silent from now on is out, in s from now; ``seconds`` are waited at most."""
    began = yard.now
    while (due := yard.gateway.next_wakeup()) is not None and due <= began + int(seconds * S):
        yard.now = due
        yard.gateway.tick(due)
        if yard.gateway.health[worker].state is State.EJECTED:
            return (due - began) / S
    return float("inf")


@pytest.mark.parametrize(("before", "after"), [(60.0, 4.1), (4.1, 60.0), (60.0, 61.0), (7.0, 7.0)])
def test_silence_is_measured_by_the_new_time(before: float, after: float) -> None:
    """From the change on, whichever watch was running, and as long as the worker lives."""
    yard = Yard(config(health=HealthConfig(eject_after=before)))
    yard.pass_time(1.0)
    _apply(yard, "health.eject_after", after)
    assert _silent_from(yard, 1, 200.0) == pytest.approx(after)
    for worker in (0, 1):
        yard.beat(worker)
        yard.beat(worker)
    assert _silent_from(yard, 1, 200.0) <= 2 * after


def test_who_has_been_silent_for_longer_is_out_at_once() -> None:
    """Its requests go elsewhere, one that beats stays, and a watch of before does nothing."""
    yard = Yard(config(health=HealthConfig(eject_after=60.0)))
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.pass_time(3.0, beating=(1 - at,))
    _apply(yard, "health.eject_after", 2.0)
    assert yard.gateway.health[at].state is State.EJECTED
    assert yard.where(id) == [0, 1]
    yard.pass_time(60.0, beating=(1 - at,))
    assert yard.gateway.health[1 - at].state is State.IN_ROTATION
    assert yard.counter("ejections", reason="silent") == 1


def test_changes_leave_no_watches_behind() -> None:
    """However often the time is changed, one look per worker is under way."""
    yard = Yard(config(workers=1))
    looks, watch = [], yard.gateway.rotation._watch
    for seconds in (2.0, 1.0, 2.0, 1.0) * 5:
        _apply(yard, "health.eject_after", seconds)
    yard.gateway.rotation._watch = lambda *args: looks.append(args) or watch(*args)  # type: ignore
    yard.pass_time(10.0)
    assert 8 <= len(looks) <= 20


def test_suspicion_follows_at_the_next_choice() -> None:
    """It runs no timer: who was last heard of before that is not chosen."""
    yard = Yard()
    yard.pass_time(0.5, beating=(0,))
    assert yard.gateway.health[1].selectable(yard.now)
    _apply(yard, "health.suspect_after", 0.4)
    assert not yard.gateway.health[1].selectable(yard.now)
    assert [yard.where(yard.submit(ask(64, seed))) for seed in range(3)] == [[0]] * 3
