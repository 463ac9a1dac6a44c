"""What the gateway must survive when two things happen at once: holds, deadlines, drains, lost workers."""

from __future__ import annotations

import pytest

from engine import messages as m
from engine.config import QueueConfig, RouterConfig
from engine.fleet.backend import Rejected
from engine.fleet.lives import PATIENCE_NS
from engine.request import Finish, WorkerTruth
from tests.engine.fleet.world import MS, S, Yard, ask, config

ONE = config(workers=1)


def test_the_last_tokens_of_an_expired_request_still_arrive() -> None:
    """A deadline that passes while the worker ends by itself neither hides tokens nor counts them twice."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, max_tokens=2, deadline_s=0.5))
    yard.token(0, id, 5)
    yard.pass_time(0.6)
    assert m.Cancel(id, Finish.EXPIRED) in yard.sent[0]
    yard.token(0, id, 6)
    yard.done(0, id, Finish.LENGTH, generated=2)
    assert yard.ended(id).finish == "length"
    assert len(yard.tokens_of(id)) == yard.ended(id).generated == 2


@pytest.mark.parametrize("reason", [Finish.EXPIRED, Finish.LENGTH, Finish.STOP])
def test_a_found_stop_string_is_the_end_whatever_the_worker_calls_it(reason: Finish) -> None:
    """The text was whole: a deadline that passes on the way to the worker makes no error of it."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, deadline_s=0.5))
    yard.token(0, id)
    yard.cancel(id, Finish.STOP)
    yard.done(0, id, reason, generated=1)
    assert (yard.ended(id).finish, yard.ended(id).code) == ("stop", None)


def test_a_stop_on_a_silent_worker_stays_a_stop_when_the_deadline_passes() -> None:
    """The first reason stands, also where the worker can no longer say so."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, deadline_s=1.5))
    yard.token(0, id)
    yard.cancel(id, Finish.STOP)
    yard.pass_time(1.6, beating=())
    assert yard.ended(id).finish == "stop"


def test_a_hold_reported_too_late_does_no_harm() -> None:
    """The worker was silent, its request waits at the gateway again: the breakpoint holds nothing."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, client_id="c1"))
    point = yard.gateway.hold("admitted", None, None, yard.now)
    yard.pass_time(2.5, beating=())
    yard.say(0, m.Held(point.id, id, "c1", "admitted"))
    assert point.held is None
    assert m.Release(point.id) in yard.sent[0]
    yard.hello(0)
    yard.beat(0)
    assert [request.attempt for request in yard.requests(0)] == [1, 2]


def test_a_request_is_free_again_when_the_worker_that_held_it_is_lost() -> None:
    """A breakpoint dies with its attempt; the next attempt does not wait for its release."""
    yard = Yard(config(workers=2))
    id = yard.submit(ask(64))
    (worker,) = yard.where(id)
    point = yard.gateway.hold("admitted", None, worker, yard.now)
    yard.say(worker, m.Held(point.id, id, "", "admitted"))
    yard.lose(worker)
    assert yard.where(id) == [0, 1]


def test_nobody_waits_for_ever_when_the_last_worker_drains() -> None:
    """A drained worker never comes back by itself: what waits is ended when patience is (E53)."""
    yard = Yard(config(workers=1, router=RouterConfig(max_dispatched=1)))
    running, waiting = yard.submit(ask(64)), yard.submit(ask(64, 1))
    yard.token(0, running)
    yard.gateway.drain(0, yard.now)
    yard.done(0, running, generated=1)
    yard.pass_time(PATIENCE_NS / S + 0.5)
    assert (yard.ended(waiting).finish, yard.ended(waiting).code) == ("error", "no_worker")


def test_a_request_handed_back_after_a_retry_is_not_forgotten() -> None:
    """Patience begins anew with every return to the queue, not only with a failure."""
    yard = Yard(config(workers=2))
    id = yard.submit(ask(64))
    (first,) = yard.where(id)
    second = 1 - first
    yard.done(first, id, Finish.ERROR)
    yard.pass_time(0.5)
    assert yard.where(id) == [0, 1]
    for step in range(1, 8):  # the worker is busy with others and has not begun it
        yard.pass_time(5)
        yard.beat(second, step)
    yard.say(second, m.Refused(id, 2, "draining"))
    yard.gateway.drain(second, yard.now)
    yard.pass_time(PATIENCE_NS / S + 0.5)
    assert yard.ended(id).code == "no_worker"


@pytest.mark.parametrize(
    ("seen", "phase"), [("nothing", "queued"), ("progress", "prefill"), ("token", "decode")]
)
def test_the_phase_of_a_cancel_is_told_also_without_its_worker(seen: str, phase: str) -> None:
    """Cancelled on a worker that is then lost: as far as the gateway saw the attempt come (E34)."""
    yard = Yard(ONE)
    id = yard.submit(ask(64))
    if seen == "progress":
        yard.progress(0, id, 16)
    elif seen == "token":
        yard.token(0, id)
    yard.cancel(id)
    yard.lose(0)
    (row,) = yard.gateway.lives.truth.after(0)
    assert (row["finish_reason"], row["cancel_phase"]) == ("cancelled", phase)


def test_a_cancel_between_two_attempts_is_one_in_the_queue() -> None:
    """What the lost worker had begun is no phase of the attempt that waits."""
    yard = Yard(ONE)
    id = yard.submit(ask(64))
    yard.progress(0, id, 16)
    yard.lose(0)
    yard.now += 10 * MS
    yard.cancel(id)
    (row,) = yard.gateway.lives.truth.after(0)
    assert (row["finish_reason"], row["cancel_phase"]) == ("cancelled", "queued")


def test_the_door_can_be_asked_without_a_prompt() -> None:
    """Count, readiness and class are judged and counted before there is a prompt (E32, case C14)."""
    yard = Yard(config(workers=1, queue=QueueConfig(max_requests=1), router=RouterConfig(max_dispatched=1)))
    yard.gateway.admits("default")
    yard.submit(ask(64))
    yard.submit(ask(64, 1))
    with pytest.raises(Rejected, match="1 requests wait") as full:
        yard.gateway.admits("default")
    assert (full.value.status, full.value.retry_after) == (429, 2)
    assert yard.counter("rejections", reason="queue_full", class_="default") == 1
    with pytest.raises(Rejected, match="none of default"):
        yard.gateway.admits("vip")
    yard.lose(0)
    with pytest.raises(Rejected, match="no worker is in rotation"):
        yard.gateway.admits("default")
    assert yard.counter("requests", class_="default") == 4


def test_a_request_that_is_its_own_fault_is_tried_nowhere_else() -> None:
    """Its error is final, and the worker keeps its good name however often that happens (F36)."""
    yard = Yard()
    for _ in range(5):
        id = yard.submit(ask(64))
        (at,) = yard.where(id)
        yard.say(at, m.Done(id, 1, Finish.ERROR, WorkerTruth(worker=at), "nothing fits", own_fault=True))
        end = yard.ended(id)
        assert (end.code, end.message, end.retriable) == ("dead_end", "nothing fits", False)
        assert all(health.breaker.open_until is None for health in yard.gateway.health.values())
