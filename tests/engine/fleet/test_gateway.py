"""The gateway as a state machine: its workers are the test (FLEET 1, 3, 5, 6)."""

from __future__ import annotations

import dataclasses

import pytest

from engine import messages as m
from engine.config import ClassConfig, QueueConfig, RouterConfig
from engine.fleet.backend import Rejected
from engine.fleet.health import State
from engine.fleet.lives import PATIENCE_NS
from engine.request import Finish, Miss, MissReason
from tests.engine.fleet.world import BASE, MS, S, Yard, ask, config, prompt

ONE = config(workers=1)


def test_a_request_runs_from_submit_to_its_one_end() -> None:
    """Dispatched at once, tokens passed on, one Ended with what the worker counted."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, client_id="c1"))
    (request,) = yard.requests(0)
    assert (request.id, request.out_max, len(request.digests), request.client_id) == (id, 16, 4, "c1")
    yard.progress(0, id, 64)
    yard.token(0, id, 5)
    yard.token(0, id, 6)
    yard.done(0, id, Finish.LENGTH, prompt=64, generated=2, hit_device=16, first_scheduled=1)
    end = yard.ended(id)
    assert yard.tokens_of(id) == [5, 6]
    assert (end.finish, end.cached, end.generated, end.worker, end.code) == ("length", 16, 2, 0, None)
    (row,) = yard.gateway.lives.truth.after(0)
    assert row["config_id"] == end.config_id == yard.gateway.lives.config_id
    assert (row["id"], row["finish_reason"], row["hit_device"]) == ("c1", "length", 16)
    assert row["route"]["reason"] == "only"
    assert not yard.gateway.dispatcher.on_worker[0]


def test_a_prompt_that_cannot_be_served_is_refused_at_the_door() -> None:
    """400 with the gate's code; nothing was sent and the refusal is counted."""
    yard = Yard(config(workers=1, classes={"default": ClassConfig(max_input=100)}))
    with pytest.raises(Rejected) as refused:
        yard.submit(ask(101))
    assert (refused.value.status, refused.value.code) == (400, "class_input_limit")
    assert yard.requests(0) == []
    assert yard.counter("rejections", reason="context_length", class_="default") == 1
    assert yard.counter("requests", class_="default") == 1
    with pytest.raises(Rejected, match="none of default"):
        yard.submit(ask(10, class_="vip"))


def test_an_unlabelled_request_is_of_the_least_urgent_class() -> None:
    """Where the classes have names, nobody gains rank by naming none (E28)."""
    yard = Yard(config(classes={"chat": ClassConfig(rank=0), "batch": ClassConfig(rank=1)}))
    yard.submit(ask(10))
    assert [r.class_ for w in (0, 1) for r in yard.requests(w)] == ["batch"]


def test_without_a_worker_in_rotation_it_is_503_with_retry_after() -> None:
    """At the start, and when the last worker is gone: never fail open (F20)."""
    yard = Yard(ONE, ready=False)
    with pytest.raises(Rejected) as refused:
        yard.submit(ask())
    assert (refused.value.status, refused.value.code) == (503, "not_ready")
    yard.hello(0)
    yard.beat(0)
    yard.submit(ask())
    yard.lose(0)
    with pytest.raises(Rejected) as refused:
        yard.submit(ask())
    assert refused.value.status == 503
    assert refused.value.retry_after is not None


def test_a_worker_gets_no_more_than_it_can_soon_start() -> None:
    """Backlog of one request or half a second of prefill; the rest waits at the gateway (F29)."""
    yard = Yard(ONE)
    ids = [yard.submit(ask(300, seed)) for seed in range(4)]
    assert [r.id for r in yard.requests(0)] == ids[:1]
    yard.progress(0, ids[0], 256)
    assert [r.id for r in yard.requests(0)] == ids[:2], "the first has started"
    small = Yard(ONE)
    ids = [small.submit(ask(100, seed)) for seed in range(9)]
    assert len(small.requests(0)) == 4, "half a second is about 400 tokens"


def test_running_requests_are_bounded_and_the_next_goes_when_one_ends() -> None:
    """max_dispatched requests at most are out; the queue serves in order."""
    yard = Yard(config(workers=1, router=RouterConfig(max_dispatched=2)))
    ids = [yard.submit(ask(32, seed)) for seed in range(4)]
    assert [r.id for r in yard.requests(0)] == ids[:2]
    yard.done(0, ids[1])
    assert [r.id for r in yard.requests(0)] == ids[:3]


def test_the_pools_blocks_bound_what_is_out() -> None:
    """Under lifetime admission a worker is full when prompt + out_max does not fit any more (E23)."""
    memory = dataclasses.replace(BASE.memory, kv_blocks=20)
    yard = Yard(config(workers=1, memory=memory))
    first = yard.submit(ask(150, 0, max_tokens=10))
    second = yard.submit(ask(150, 1, max_tokens=10))
    yard.progress(0, first, 150)
    assert [r.id for r in yard.requests(0)] == [first], "10 + 10 blocks and the headroom exceed 20"
    third = yard.submit(ask(32, 2, max_tokens=10))
    assert [r.id for r in yard.requests(0)] == [first], "nobody overtakes on the worker that it waits for"
    yard.done(0, first)
    assert [r.id for r in yard.requests(0)] == [first, second, third]


def test_a_request_waits_for_its_holder_and_does_not_hold_up_the_next() -> None:
    """Below the switch it waits at the gateway for W0, above it goes to W1; W1's request passes (C6 d)."""
    for backlog, goes_to in ((6, []), (14, [1])):
        yard = Yard(config(router=RouterConfig(decode_weight=0.0)))
        held = prompt(168, 1)
        template = yard.gateway.door.digests(held, "default")
        root = yard.gateway.door._identity.root(16, "default", None)
        yard.gateway.dispatcher.events.know_root(root)
        yard.say(0, m.KvEvents(1000, 1, (m.KvEvent("stored", template, root),)))
        # The session ties the backlog to W0, which then is full: one request of that many blocks.
        one = RouterConfig(max_dispatched=1, decode_weight=0.0)
        yard.gateway.dispatcher.configure(dataclasses.replace(yard.config, router=one))
        yard.gateway.dispatcher._sessions.remember("s", 0, "w0-1")
        first = yard.submit(ask(backlog * 16, 5, session="s"))
        assert yard.where(first) == [0]
        waits = yard.submit(dataclasses.replace(ask(1, 1), tokens=held))
        assert yard.where(waits) == goes_to
        other = yard.submit(ask(16, 9))
        if not goes_to:
            assert yard.where(other) == [1], "a request for W1 behind it is not held up"
            yard.done(0, first)
            assert yard.where(waits) == [0]
            (row,) = [r for r in [yard.gateway.lives.runs[waits].choice] if r]
            assert (row.reason, row.predicted_hit) == ("wait", 160)


def test_the_selection_follows_load_after_a_restart() -> None:
    """A restarted worker keeps no prefix credit, and the miss that follows is worker_restarted (C1)."""
    yard = Yard()
    yard.submit(ask(16, 99))
    first = yard.submit(ask(168, 1))
    (at,) = yard.where(first)
    request = next(r for r in yard.requests(at) if r.id == first)
    yard.stored(at, request, 10)
    yard.token(at, first)
    yard.done(at, first)
    yard.now += 3 * S
    for worker in (0, 1):
        yard.beat(worker)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 160
    yard.lose(at)
    yard.hello(at)
    yard.beat(at)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 0
    again = yard.submit(ask(168, 1))
    (now_at,) = yard.where(again)
    assert yard.gateway.lives.runs[again].choice is not None
    yard.done(
        now_at, again, first_scheduled=1, prompt=168, misses=[Miss(MissReason.NEVER_COMPUTED, 0, 10, 160)]
    )
    assert yard.ended(again).misses == (Miss(MissReason.WORKER_RESTARTED, 0, 10, 160),)
    assert yard.gateway.lives.truth.after(0)[-1]["route"]["predicted_hit"] == 0


def test_health_checks_leave_the_load_alone() -> None:
    """20 heartbeats that report nothing do not reset the reservations (C5)."""
    yard = Yard(config(router=RouterConfig(policy="round_robin")))
    for seed in range(5):
        id = yard.submit(ask(32, seed))
        for worker in yard.where(id):
            yard.progress(worker, id, 16)
    before = [yard.gateway.dispatcher.ledger.load(w).requests for w in (0, 1)]
    yard.pass_time(5.0)
    assert [yard.gateway.dispatcher.ledger.load(w).requests for w in (0, 1)] == before
    assert sum(before) == 5


def test_a_lost_worker_ends_its_streams_and_moves_the_rest() -> None:
    """One error event where bytes were sent, another worker where none were (F40, F41, C18)."""
    yard = Yard()
    streaming = yard.submit(ask(64, 1))
    (at,) = yard.where(streaming)
    other = 1 - at
    yard.progress(at, streaming, 64)
    yard.token(at, streaming)
    yard.gateway.health[other].drain(0)
    unstarted = yard.submit(ask(64, 2))
    assert yard.where(unstarted) == [at]
    yard.gateway.health[other].draining = False
    yard.beat(other)
    yard.lose(at)
    end = yard.ended(streaming)
    assert (end.finish, end.code, end.retriable) == (Finish.ERROR, "worker_lost", True)
    assert yard.where(unstarted) == sorted([at, other])
    assert yard.requests(other)[-1].attempt == 2
    assert yard.gateway.health[at].state is State.GONE
    assert yard.counter("retries", reason="worker_lost") == 1
    yard.token(other, unstarted, attempt=2)
    yard.done(other, unstarted, attempt=2, generated=1)
    assert yard.ended(unstarted).attempt == 2


def test_late_tokens_of_an_old_attempt_are_dropped_and_counted() -> None:
    """Also its Done: the client hears the living attempt only (F5)."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.lose(at)
    yard.token(at, id, token=666)
    yard.done(at, id)
    assert yard.counter("fenced_tokens") == 1
    assert yard.tokens_of(id) == []
    yard.token(1 - at, id, token=7, attempt=2)
    yard.done(1 - at, id, attempt=2)
    assert yard.tokens_of(id) == [7]
    assert yard.ended(id).worker == 1 - at


def test_a_silent_worker_is_out_after_two_seconds_and_told_to_drop_what_it_had() -> None:
    """Unstarted requests come back as recalled; streams end; its return takes two heartbeats (C3)."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    other = 1 - at
    yard.pass_time(1.75, beating=(other,))
    assert yard.gateway.health[at].state is State.IN_ROTATION
    assert not yard.gateway.health[at].selectable(yard.now), "suspect"
    yard.pass_time(0.5, beating=(other,))
    assert yard.gateway.health[at].state is State.EJECTED
    assert yard.where(id) == [0, 1]
    assert m.Cancel(id) in yard.sent[at]
    assert yard.counter("recalls", reason="ejected") == 1
    assert yard.counter("ejections", reason="silent") == 1
    assert yard.gateway.lives.runs[id].failures == 0
    yard.pass_time(0.5)
    assert yard.gateway.health[at].state is State.IN_ROTATION


def test_a_worker_that_beats_and_never_answers_is_tripped() -> None:
    """Its requests stall after 10 s, move on, and after three failures it is not chosen (C11)."""
    yard = Yard()
    ids = [yard.submit(ask(200, seed)) for seed in range(8)]
    dead = yard.where(ids[0])[0]
    for _ in range(600):
        for id, run in list(yard.gateway.lives.runs.items()):
            if run.worker == 1 - dead and run.stage == "dispatched":
                yard.progress(run.worker, id, 200, run.attempt)
                yard.token(run.worker, id, 1, run.attempt)
                yard.done(run.worker, id, attempt=run.attempt, generated=1)
        yard.pass_time(0.25)
    assert all(yard.ended(id).finish is Finish.LENGTH for id in ids)
    assert len(yard.requests(dead)) <= 4
    assert yard.counter("retries", reason="stalled") == len(yard.requests(dead))


def test_a_failed_step_is_tried_elsewhere_after_a_pause() -> None:
    """Never on the same worker; a second failure leaves nobody, and the error says so (F40)."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.done(at, id, Finish.ERROR)
    assert yard.where(id) == [at], "50 ms later"
    yard.pass_time(0.25)
    assert yard.where(id) == [0, 1]
    yard.done(1 - at, id, Finish.ERROR, attempt=2)
    end = yard.ended(id)
    assert (end.finish, end.code, end.message) == (Finish.ERROR, "step_failed", "boom")


def test_a_single_workers_requests_wait_for_its_next_life() -> None:
    """Nothing had been sent, so they are served when it is back; for ever they do not wait."""
    yard = Yard(ONE)
    id = yard.submit(ask(64))
    behind = yard.submit(ask(600, 2))
    yard.lose(0)
    yard.hello(0)
    yard.beat(0)
    assert [(r.id, r.attempt) for r in yard.requests(0)] == [(id, 1), (id, 2)]
    yard.lose(0)
    yard.pass_time(PATIENCE_NS / S + 1, beating=())
    for waiting in (id, behind):
        assert (yard.ended(waiting).code, yard.ended(waiting).retriable) == ("no_worker", True)


def test_a_refused_request_keeps_its_place_and_the_worker_is_left_alone() -> None:
    """No ping-pong: it is asked again after its next sign of life; no attempt is used (F29)."""
    yard = Yard(ONE)
    id = yard.submit(ask(64))
    behind = yard.submit(ask(32, 2))
    yard.say(0, m.Refused(id, 1, "backlog"))
    assert len(yard.requests(0)) == 2
    yard.say(0, m.Refused(behind, 1, "backlog"))
    assert len(yard.requests(0)) == 2
    yard.beat(0)
    assert [r.id for r in yard.requests(0)] == [id, behind, id, behind]
    assert yard.requests(0)[-1].attempt == 1


def test_cancel_ends_a_queued_request_at_once_and_a_running_one_by_its_worker() -> None:
    """Idempotent; tokens that come after the cancel are not passed on (E34)."""
    yard = Yard(ONE)
    running = yard.submit(ask(600))
    queued = yard.submit(ask(600, 2))
    yard.cancel(queued)
    assert yard.ended(queued).finish is Finish.CANCELLED
    assert yard.gateway.lives.truth.after(0)[0]["cancel_phase"] == "queued"
    yard.cancel(running)
    yard.cancel(running)
    assert yard.sent[0].count(m.Cancel(running)) == 1
    yard.token(0, running)
    yard.done(0, running, Finish.CANCELLED, cancel_phase="prefill")
    assert yard.tokens_of(running) == []
    assert yard.ended(running).finish is Finish.CANCELLED
    yard.cancel(running)
    yard.cancel(12345)


def test_a_stop_string_ends_with_stop_also_if_the_worker_is_lost() -> None:
    """The text layer has all that it wanted: no error event."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.token(at, id)
    yard.cancel(id, Finish.STOP)
    yard.lose(at)
    assert yard.ended(id).finish is Finish.STOP


def test_a_deadline_in_the_queue_ends_without_prefill() -> None:
    """504 material: expired, deadline_exceeded, and the queue's tokens are given back (E31, C15)."""
    yard = Yard(ONE)
    yard.submit(ask(600))
    late = yard.submit(ask(600, 2, deadline_s=0.05))
    yard.now += 49 * MS
    yard.gateway.tick(yard.now)
    yard.collect()
    assert late not in yard.heard
    yard.now += 1 * MS
    yard.gateway.tick(yard.now)
    yard.collect()
    end = yard.ended(late)
    assert (end.finish, end.code) == (Finish.EXPIRED, "deadline_exceeded")
    assert yard.where(late) == []
    assert yard.gateway.dispatcher.queue.tokens == 0


def test_a_deadline_while_running_is_the_workers_to_end() -> None:
    """It is told at the deadline; its Done brings the one terminal event."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, deadline_s=1.0))
    yard.token(0, id)
    yard.pass_time(1.0)
    assert m.Cancel(id, Finish.EXPIRED) in yard.sent[0]
    yard.done(0, id, Finish.EXPIRED, generated=1)
    end = yard.ended(id)
    assert (end.finish, end.code, end.generated) == (Finish.EXPIRED, "deadline_exceeded", 1)


def test_an_expired_request_does_not_wait_for_a_silent_worker() -> None:
    """Its worker froze before the deadline: it ends within a second after it (I17)."""
    yard = Yard(ONE)
    id = yard.submit(ask(64, deadline_s=1.0))
    yard.token(0, id)
    yard.pass_time(0.75)
    yard.pass_time(0.75, beating=())
    assert id not in yard.gateway.lives.runs or yard.now < 2 * S
    yard.pass_time(0.5, beating=())
    assert yard.ended(id).finish is Finish.EXPIRED
    assert yard.gateway.lives.truth.after(0)[0]["finished"] <= 2 * S
    assert yard.gateway.dispatcher.ledger.load(0).requests == 0


def test_a_full_queue_answers_429_and_accepts_again_when_it_empties() -> None:
    """Never more than the bound; Retry-After is 2 before any sample (E32, C14)."""
    yard = Yard(config(workers=1, queue=QueueConfig(max_requests=10)))
    accepted, refused = [], []
    for seed in range(50):
        try:
            accepted.append(yard.submit(ask(600, seed)))
        except Rejected as rejected:
            refused.append(rejected)
    assert (len(accepted), len(refused)) == (11, 39), "one is with the worker"
    assert {(r.status, r.code, r.retry_after) for r in refused} == {(429, "queue_full", 2)}
    assert yard.counter("rejections", reason="queue_full", class_="default") == 39
    for id in accepted[:5]:
        yard.cancel(id)
        yard.done(0, id, Finish.CANCELLED)
    yard.submit(ask(600, 99))


def test_a_hold_at_queued_keeps_one_request_at_the_gateway() -> None:
    """The first that matches; others pass; released it goes; deadlines run all the while (E48)."""
    yard = Yard(ONE)
    point = yard.gateway.hold("queued", "c1", None, yard.now)
    held = yard.submit(ask(32, 1, client_id="c1"))
    passes = yard.submit(ask(32, 2, client_id="c2"))
    assert point.held is not None
    assert (yard.where(held), yard.where(passes)) == ([], [0])
    yard.gateway.release(point.id, yard.now)
    yard.collect()
    assert yard.where(held) == [0]
    forgotten = yard.gateway.hold("queued", None, None, yard.now)
    lapses = yard.submit(ask(32, 3))
    yard.pass_time(10.0)
    assert yard.where(lapses) == [0], "10 s at most"
    assert yard.gateway.holds.get(forgotten.id) is None


def test_a_hold_on_any_worker_is_won_by_the_first() -> None:
    """The others are disarmed; a worker that is back is armed only while nobody has won."""
    yard = Yard()
    point = yard.gateway.hold("prefill:1", None, None, yard.now)
    yard.collect()
    assert all(m.Hold(point.id, "prefill:1") in yard.sent[w] for w in (0, 1))
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.lose(1 - at)
    yard.hello(1 - at)
    assert yard.sent[1 - at].count(m.Hold(point.id, "prefill:1")) == 2
    yard.say(at, m.Held(point.id, id, "", "prefill:1"))
    assert m.Release(point.id) in yard.sent[1 - at]
    assert (point.held_by, point.held is not None) == (at, True)
    yard.pass_time(9.0)
    assert yard.where(id) == [at], "a held request does not stall"
    with pytest.raises(ValueError, match="prefill:k"):
        yard.gateway.hold("prefill:0", None, None, 0)


def test_a_drained_worker_gets_nothing_and_its_backlog_goes_elsewhere() -> None:
    """What it hands back uses up no attempt (F43)."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.gateway.drain(at, yard.now)
    yard.collect()
    assert yard.sent[at][-1] == m.Drain()
    yard.say(at, m.Refused(id, 1, "draining"))
    assert yard.where(id) == [0, 1]
    assert yard.requests(1 - at)[-1].attempt == 1
    assert yard.where(yard.submit(ask(64, 2))) == [1 - at]
    assert yard.counter("recalls", reason="draining") == 1


def test_a_missed_loss_is_made_up_by_the_next_hello() -> None:
    """A new incarnation means that the old one is gone, and its heartbeats mean nothing."""
    yard = Yard(ONE)
    id = yard.submit(ask(64))
    yard.token(0, id)
    yard.hello(0)
    assert yard.ended(id).code == "worker_lost"
    yard.say(0, m.Heartbeat("w0-1", 1000, 1, None, "ready", m.Load()))
    assert yard.gateway.health[0].state is State.WARMING


def test_a_worker_that_gives_up_is_lost_at_once() -> None:
    """Failed is its last word; the loss of the connection that follows changes nothing."""
    yard = Yard()
    id = yard.submit(ask(64))
    (at,) = yard.where(id)
    yard.say(at, m.Failed("3 steps in a row failed"))
    assert yard.where(id) == [0, 1]
    yard.lose(at)
    assert yard.counter("ejections", reason="lost") == 1


def test_a_cleared_cache_ends_session_affinity_and_credit() -> None:
    """A heartbeat with a newer epoch is enough (C1 a, c)."""
    yard = Yard()
    id = yard.submit(ask(168, 1, session="s"))
    (at,) = yard.where(id)
    request = yard.requests(at)[0]
    yard.stored(at, request, 10)
    yard.token(at, id)
    yard.done(at, id)
    yard.now += 3 * S
    yard.beat(at)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 160
    yard.beat(at, epoch=1001)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 0
    assert not yard.gateway.dispatcher._sessions


def test_predictions_live_until_two_seconds_after_the_first_token() -> None:
    """Until then a second request of the same prompt is credited on the same worker (F31)."""
    yard = Yard()
    id = yard.submit(ask(168, 1))
    (at,) = yard.where(id)
    request = yard.requests(at)[0]
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 160
    yard.token(at, id)
    yard.done(at, id)
    yard.pass_time(1.75)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 160
    yard.pass_time(0.5)
    assert yard.gateway.dispatcher.hit_tokens(request, at) == 0
    second = yard.submit(ask(168, 2))
    (at,) = yard.where(second)
    yard.cancel(second)
    yard.done(at, second, Finish.CANCELLED)
    assert len(yard.gateway.dispatcher.predicted) == 0, "no token, no prediction"
