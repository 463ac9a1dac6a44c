"""The driver in virtual time, against a scripted transport."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Constant
from loadgen.clock import Clock, run_virtual
from loadgen.desk import InlineDesk
from loadgen.driver import Driver
from loadgen.plan import Load, Part, Phases, Plan, PlannedCancel, Shot
from loadgen.progress import Heard
from loadgen.render import Renderer
from loadgen.rules import Cap, Retries, Rules, Timeouts
from loadgen.targets import OpenAIChat
from loadgen.text import Prompter, TextMaker
from loadgen.timeline import Exchange
from loadgen.transport import Ending, HttpRequest, Sink
from loadgen.workload import Fixed, Sessions
from results.record import Outcome, Record

MS, S = 1_000_000, 1_000_000_000
NS = 2
"""The event loop keeps its time as a float: it may be off by as many ns."""
Step = tuple[int, Any]
"""(ns after the send, bytes to deliver or an Ending)."""


def token(text: str) -> bytes:
    delta = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return b"data: " + json.dumps(delta).encode() + b"\n\n"


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(tokens: int = 3, first: int = 50 * MS, gap: int = 10 * MS) -> list[Step]:
    steps: list[Step] = [(first + k * gap, token(f"t{k} ")) for k in range(tokens)]
    end = first + tokens * gap
    return [*steps, (end, FINISH), (end, DONE), (end + MS, "complete")]


@dataclass
class Scripted:
    """Answers each request by a script; ``cost`` ns pass in each call of send on a manual clock."""

    clock: Clock
    script: Callable[[int], list[Step]] = lambda shot: answer()
    sent: list[tuple[int, int]] = field(default_factory=list)
    bodies: dict[int, Any] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)

    def send(self, request: HttpRequest, sink: Sink) -> Callable[[], None]:
        shot = int(dict(request.headers)["X-Request-Id"].rpartition("-")[2].partition(".")[0])
        self.sent.append((shot, self.clock()))
        self.bodies[shot] = json.loads(request.body)
        steps = self.script(shot)
        task = asyncio.get_running_loop().create_task(self._play(steps, sink))

        def abort() -> None:
            if not task.done() or not isinstance(steps[-1][1], str):
                task.cancel()
                self.aborted.append(shot)
                sink.closed(self.clock(), "aborted", "")

        return abort

    async def _play(self, steps: list[Step], sink: Sink) -> None:
        start = self.clock()
        if steps and steps[0][1] != "connect_error":
            sink.connected(start, False)
            sink.sent(start)
        headed = False
        for at, what in steps:
            await asyncio.sleep((start + at - self.clock()) / 1e9)
            if isinstance(what, bytes):
                if not headed:
                    sink.headers(self.clock(), 200, {"content-type": "text/event-stream"})
                    headed = True
                sink.data(self.clock(), what)
            elif isinstance(what, int):
                sink.headers(self.clock(), what, {"content-type": "application/json", "retry-after": "3"})
                headed = True
            else:
                ending: Ending = what
                sink.closed(self.clock(), ending, "")

    async def close(self) -> None: ...


@dataclass
class Fired:
    records: dict[int, Record]
    exchanges: dict[int, Exchange]
    transport: Scripted
    driver: Driver
    desk: InlineDesk
    attempts: list[Record]
    t0: int


def renderer(nonce: str | None = None) -> Renderer:
    return Renderer(Prompter(TextMaker(), nonce), OpenAIChat("m"), "t")


def fire(
    plan: Plan,
    script: Callable[[int], list[Step]] = lambda shot: answer(),
    during: Callable[[Driver, Clock], Any] | None = None,
    rules: Rules = Rules(),  # noqa: B008  frozen
    slice: int | None = None,
) -> Fired:
    """Fire a plan on the virtual loop; ``during`` is a coroutine function that runs beside it."""

    async def main(clock: Clock) -> Fired:
        transport = Scripted(clock, script)
        exchanges: dict[int, Exchange] = {}

        def on_close(exchange: Exchange, rendered: object) -> None:
            assert exchange.record.id not in exchanges
            exchanges[exchange.record.id] = exchange

        t0 = clock() + 2 * S
        shots = plan.shots if slice is None else plan.of_slice(slice)
        attempts: list[Record] = []
        desk = InlineDesk(shots, plan.phases, renderer(), on_close, attempts.append)
        driver = Driver(shots, plan.phases, desk, OpenAIChat("m"), transport, clock, t0, rules)
        beside = asyncio.create_task(during(driver, clock)) if during else None
        await driver.run()
        if beside:
            await beside
        records = {k: e.record for k, e in sorted(exchanges.items())}
        return Fired(records, exchanges, transport, driver, desk, attempts, t0)

    return run_virtual(main)


TEN_SECONDS = Phases(window=10.0, drain=5.0)


def plan_of(*shots: Shot, phases: Phases = TEN_SECONDS) -> Plan:
    return Plan(tuple(shots), phases, 1)


def shot(id: int, due: float | None = 0.0, **changes: Any) -> Shot:
    base = Shot(
        id=id,
        class_="chat",
        phase="window",
        session=id,
        turn=0,
        prompt=(Part("user", 8, f"u{id}"),),
        n_in_asked=8,
        n_out_asked=3,
        due_ns=None if due is None else round(due * S),
    )
    return replace(base, **changes)


def chain(think: float = 1.0, turns: int = 3) -> tuple[Shot, ...]:
    load = Load("chat", Constant(0.1), Sessions(turns, 10, 5, 3, think))
    return Plan.make([load], Phases(window=10.0, drain=5.0), 1).shots


def test_every_shot_goes_out_at_its_due_time_and_closes_once() -> None:
    """In virtual time nothing is late; sum of records = planned."""
    plan = Plan.make([Load("chat", Constant(7.0), Fixed(8, 3))], Phases(1.0, 1.0, 1.0), 3)
    fired = fire(plan)
    assert [id for id, _ in fired.transport.sent] == [s.id for s in plan.shots]
    lags = [
        at - fired.t0 - (s.due_ns or 0) for s, (_, at) in zip(plan.shots, fired.transport.sent, strict=True)
    ]
    assert 0 <= min(lags) <= max(lags) <= NS
    assert len(fired.records) == len(plan.shots) == 21
    assert Counter(r.phase for r in fired.records.values()) == {"warmup": 7, "window": 7, "cooldown": 7}
    first = fired.records[0]
    times = [first.due, first.dequeued, first.start, first.first_token, first.terminal, first.closed]
    assert times == pytest.approx([0, 0, 0, 50 * MS, 80 * MS, 80 * MS], abs=NS)
    assert first.outcome is Outcome.COMPLETED
    assert (first.n_out, first.request_id, first.model) == (3, "t-0", "m")


def test_a_later_turn_is_due_at_the_answers_end_plus_think_time_with_the_live_answer() -> None:
    """C20: the rule makes the due time, and the history holds what was really answered."""
    fired = fire(plan_of(*chain(think=1.0)))
    dues = [fired.records[k].due for k in range(3)]
    assert dues == pytest.approx([0, 80 * MS + S, 2 * (80 * MS + S)], abs=2 * NS)
    messages = fired.transport.bodies[2]["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[2]["content"] == "t0 t1 t2 "
    assert messages[:2] == fired.transport.bodies[0]["messages"]


def test_a_failed_turn_ends_its_session() -> None:
    """The rest is not sent, in the phase of the last turn that was due."""
    fired = fire(plan_of(*chain()), lambda id: [(5 * MS, 500), (6 * MS, "complete")] if id == 1 else answer())
    outcomes = [fired.records[k].outcome for k in range(3)]
    assert outcomes == [Outcome.COMPLETED, Outcome.HTTP_ERROR, Outcome.NOT_SENT]
    last = fired.records[2]
    assert (last.phase, last.due, last.error) == ("window", None, "session_ended: request 1 http_error")
    assert fired.records[1].retry_after_s == 3.0


def test_a_turn_that_would_be_due_after_the_load_is_not_sent() -> None:
    """The drain follows what was sent; it sends nothing new."""
    fired = fire(plan_of(*chain(think=6.0)))
    assert [fired.records[k].outcome.value for k in range(3)] == ["completed", "completed", "not_sent"]
    assert fired.records[2].error == "load_ended"


def test_a_cancel_at_a_token_fires_at_that_token() -> None:
    """The stream is cut off when the n-th token is there; what was read still counts."""
    fired = fire(plan_of(shot(0, cancel=PlannedCancel("decode", 2), fault="hangup"), shot(1)))
    cut = fired.records[0]
    assert (cut.outcome, cut.n_out) == (Outcome.CANCELLED_BY_PLAN, 2)
    assert cut.closed == pytest.approx(60 * MS, abs=NS)
    assert cut.faults == ["hangup"]
    assert fired.transport.aborted == [0]
    assert fired.records[1].outcome is Outcome.COMPLETED


def test_a_cancel_after_a_time_fires_that_long_after_the_send() -> None:
    """`after` counts from the send, here before any token came."""
    fired = fire(plan_of(shot(0, cancel=PlannedCancel("after", 20 * MS))))
    record = fired.records[0]
    assert (record.outcome, record.first_token) == (Outcome.CANCELLED_BY_PLAN, None)
    assert record.closed == pytest.approx(20 * MS, abs=NS)


def test_a_cancel_that_comes_too_late_is_a_completed_request_that_missed_it() -> None:
    """C29: what happened counts, not the plan."""
    fired = fire(plan_of(shot(0, cancel=PlannedCancel("after", 300 * MS))))
    assert fired.records[0].outcome is Outcome.COMPLETED
    assert fired.records[0].cancel_missed


def test_a_cancel_from_outside_hits_a_request_in_flight_or_as_soon_as_it_is_sent() -> None:
    """Door 2; a shot that is closed already is left alone."""

    async def during(driver: Driver, clock: Clock) -> None:
        driver.cancel(1)
        await asyncio.sleep(2.02)
        driver.cancel(0)
        await asyncio.sleep(2)
        driver.cancel(1)
        driver.cancel(99)

    held = PlannedCancel("queued", 0)
    fired = fire(plan_of(shot(0, cancel=held), shot(1, 1.0, cancel=held)), during=during)
    assert [r.outcome.value for r in fired.records.values()] == ["cancelled_by_plan"] * 2
    assert [r.closed for r in fired.records.values()] == pytest.approx([20 * MS, S], abs=NS)


def test_what_is_alive_at_the_drain_limit_is_censored() -> None:
    """It is cut off there, and its session goes no further."""
    phases = Phases(window=1.0, drain=2.0)
    first, second = chain(turns=2)
    fired = fire(plan_of(first, second, phases=phases), lambda id: [(0, token("a"))])
    assert [r.outcome.value for r in fired.records.values()] == ["censored_by_run_end", "not_sent"]
    assert fired.records[0].closed == pytest.approx(3 * S, abs=NS)


def test_stop_accounts_for_every_shot() -> None:
    """An interrupt cuts what is in the air and marks the rest as not sent."""

    async def during(driver: Driver, clock: Clock) -> None:
        await asyncio.sleep(3.02)
        driver.stop()
        driver.stop()

    shots = [shot(k, float(k)) for k in range(4)]
    late = shot(4, None, parent=0, after_ns=S, session=0, turn=1)
    fired = fire(plan_of(*shots, late), during=during)
    got = [(r.outcome.value, r.error) for r in fired.records.values()]
    assert got == [
        ("completed", None),
        ("censored_by_run_end", None),
        ("not_sent", "interrupted"),
        ("not_sent", "interrupted"),
        ("not_sent", "interrupted"),
    ]
    assert fired.records[2].due is None


@pytest.mark.parametrize(
    ("steps", "limit", "at"),
    [
        ([], "connect", S),
        ([(0, b": keep-alive\n\n"), (2 * S, b": keep-alive\n\n")], "first_token", 3 * S),
        ([(0, token("a")), (S, b": keep-alive\n\n")], "between_tokens", 2 * S),
        ([(k * S, token("a")) for k in range(9)], "total", 6 * S),
        ([(0, b": hello\n\n"), (500 * MS, token("a"))], "between_tokens", 2 * S + 500 * MS),
    ],
)
def test_each_limit_ends_a_silent_request(steps: list[Step], limit: str, at: int) -> None:
    """C28: comments are no progress; the record names the limit."""
    limits = Timeouts(connect=1.0, first_token=3.0, between_tokens=2.0, total=6.0)
    fired = fire(plan_of(shot(0)), lambda id: steps or [(20 * S, "connect_error")], rules=Rules(limits))
    record = fired.records[0]
    assert (record.outcome, record.timeout_limit) == (Outcome.CLIENT_TIMEOUT, limit)
    assert record.closed == pytest.approx(at, abs=NS)


def test_a_request_is_over_at_its_terminal_event_even_if_the_connection_stays_open() -> None:
    """It closes at once; the connection gets a moment to be given back and is then closed."""
    fired = fire(plan_of(shot(0), shot(1, 2.0)), lambda id: [(0, token("a")), (MS, FINISH + DONE)])
    assert fired.records[0].closed == pytest.approx(MS, abs=NS)
    assert 0 in fired.transport.aborted


@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([(0, "connect_error")], Outcome.CONNECT_ERROR),
        ([(0, token("a")), (0, "reset")], Outcome.RESET),
        ([(0, "eof")], Outcome.RESET),
        ([(0, token("a")), (0, "eof")], Outcome.TRUNCATED),
        (
            [(0, token("a")), (0, b'data: {"error":{"message":"m","code":"worker_lost"}}\n\n')],
            "in_band_error",
        ),
        ([(0, b'data: {"error":{"message":"m","code":"deadline_exceeded"}}\n\n')], Outcome.EXPIRED),
        (
            [(0, 504), (0, b'{"error":{"message":"m","code":"deadline_exceeded"}}'), (0, "complete")],
            "expired",
        ),
        ([(0, 504), (0, "complete")], Outcome.HTTP_ERROR),
        ([(0, 429), (0, b'{"error":"busy"}'), (0, "complete")], Outcome.HTTP_ERROR),
    ],
)
def test_each_way_to_fail_has_its_outcome(steps: list[Step], outcome: str) -> None:
    """C23: one class each, with the peer's words kept."""
    assert fire(plan_of(shot(0)), lambda id: steps).records[0].outcome == outcome


def test_the_in_flight_integral_equals_the_sum_over_records() -> None:
    """C35, also when requests cross the edges of the window."""
    phases = Phases(window=1.0, warmup=0.5, cooldown=0.5)
    plan = Plan.make([Load("chat", Constant(40.0), Fixed(8, 3))], phases, 1)
    fired = fire(plan, lambda id: answer(first=(50 + 7 * id) * MS))
    assert fired.driver.in_flight.now == 0
    assert fired.driver.in_flight.integral == fired.desk.tallies.littles_sum > 0


def test_a_body_that_cannot_be_made_ends_the_run_with_its_reason() -> None:
    """An error inside is raised from `run`, not swallowed."""
    broken = shot(0, prompt=(Part("assistant", 3, answer_of=77),))
    with pytest.raises(KeyError, match="77"):
        fire(plan_of(broken))


def test_an_empty_slice_is_done_at_once() -> None:
    """A load process without shots has nothing to wait for."""
    assert fire(plan_of(shot(0)), slice=1).records == {}


def test_a_snapshot_counts_by_class() -> None:
    """Planned, sent, outcomes and the recent TTFT, without touching records."""

    async def during(driver: Driver, clock: Clock) -> None:
        await asyncio.sleep(3.02)
        snapshot = driver.counts.snapshot(S, driver.in_flight.now, {"chat": Heard({"completed": 1}, 0.05)})
        assert (snapshot.in_flight, snapshot.phase) == (1, "window")
        chat = snapshot.classes["chat"]
        assert (chat.planned, chat.sent, chat.outcomes, chat.ttft_sched_s) == (3, 2, {"completed": 1}, 0.05)

    fired = fire(plan_of(shot(0), shot(1, 1.0), shot(2, 2.0)), during=during)
    heard = fired.desk.tallies.heard()["chat"]
    assert (heard.outcomes, heard.tokens) == ({"completed": 3}, 9)
    assert (heard.ttft_sched_s, heard.itl_s) == (pytest.approx(0.05), pytest.approx(0.01))


def test_retries_are_off_unless_asked_for() -> None:
    """C27: one request is one attempt."""
    fired = fire(plan_of(shot(0)), lambda id: [(0, 429), (0, "complete")])
    assert (fired.records[0].attempt, fired.attempts, len(fired.transport.sent)) == (1, [], 1)


def test_a_retry_is_the_same_request_and_its_first_attempt_is_recorded_apart() -> None:
    """The record is that of the last attempt, due when the first was; the wait is no lateness."""
    fired = fire_twice(Retries(max=2, backoff=0.5))
    record, (first,) = fired.records[0], fired.attempts
    assert (first.attempt, first.outcome, first.request_id) == (1, Outcome.HTTP_ERROR, "t-0")
    assert (record.attempt, record.outcome, record.request_id) == (2, Outcome.COMPLETED, "t-0.2")
    assert record.due == first.due == pytest.approx(0, abs=NS)
    # The target's Retry-After of 3 s is longer than the backoff.
    assert record.start == pytest.approx(5 * MS + 3 * S, abs=4 * NS)
    assert record.retry_due == pytest.approx(record.start, abs=4 * NS)
    assert (first.retry_due, record.cap_wait) == (None, 0)
    assert fired.driver.in_flight.integral == fired.desk.tallies.littles_sum > 0


def fire_twice(retries: Retries) -> Fired:
    """The first attempt is turned away, the second answered."""
    tries = iter([[(5 * MS, 429), (5 * MS, "complete")], answer()])
    return fire(plan_of(shot(0)), lambda id: next(tries), rules=Rules(retries=retries))


@pytest.mark.parametrize(
    ("steps", "again"),
    [
        ([(0, "connect_error")], True),
        ([(0, "reset")], True),
        ([(0, 503), (0, "complete")], True),
        ([(0, 400), (0, "complete")], False),
        ([(0, token("a")), (0, "reset")], False),
        ([(0, b'data: {"error":{"message":"m"}}\n\n')], False),
    ],
)
def test_only_what_cannot_have_been_answered_is_tried_again(steps: list[Step], again: bool) -> None:
    """A stream that began is not sent twice: its tokens were paid for."""
    fired = fire(plan_of(shot(0)), lambda id: steps, rules=Rules(retries=Retries(max=1, backoff=0.1)))
    assert len(fired.transport.sent) == (2 if again else 1)
    assert len(fired.attempts) == (1 if again else 0)


def test_a_cap_holds_back_and_says_so() -> None:
    """Who waits for the cap has its due time, and the wait beside it."""
    rules = Rules(caps={"chat": Cap(1)})
    fired = fire(plan_of(shot(0), shot(1, 0.01), shot(2, 0.02)), rules=rules)
    starts = [fired.records[k].start for k in range(3)]
    assert starts == pytest.approx([0, 80 * MS, 160 * MS], abs=10 * NS)
    waits = [fired.records[k].cap_wait for k in range(3)]
    assert waits == pytest.approx([0, 70 * MS, 140 * MS], abs=10 * NS)


def test_what_still_waits_for_a_cap_at_the_end_was_held_back_by_it() -> None:
    """That it was not sent is the scenario's will, not the client's fault (H7)."""
    rules = Rules(caps={"chat": Cap(1)})
    fired = fire(
        plan_of(shot(0), shot(1, 0.01), shot(2, 0.02)), lambda id: [(50 * MS, token("a"))], rules=rules
    )
    assert [fired.records[k].outcome for k in range(3)] == ["censored_by_run_end", "not_sent", "not_sent"]
    assert [fired.records[k].error for k in (1, 2)] == ["cap", "cap"]


@pytest.mark.parametrize("done", [True, False])
def test_what_never_says_that_it_is_done_is_over_when_its_body_ends(done: bool) -> None:
    """C25: its turn ended with its last word; but nobody could know, and the next one is not late for it."""
    words = [(50 * MS, token("a")), (60 * MS, FINISH), *([(60 * MS, DONE)] if done else [])]
    steps: list[Step] = [*words, (960 * MS, "complete")]
    next_turn = shot(1, None, parent=0, after_ns=100 * MS, session=0, turn=1)
    fired = fire(plan_of(shot(0), next_turn), lambda id: answer() if id else steps)
    ended = 60 * MS if done else 960 * MS
    assert fired.records[0].terminal == pytest.approx(60 * MS, abs=4 * NS)
    assert fired.records[1].due == pytest.approx(ended + 100 * MS, abs=8 * NS)
    assert fired.records[1].start == fired.records[1].due


def test_a_cap_that_drops_ends_the_session_too() -> None:
    """`dropped` is an outcome of its own; what would have followed is not sent."""
    later = shot(2, None, parent=1, after_ns=S, session=1, turn=1)
    fired = fire(
        plan_of(shot(0), shot(1, 0.01), later, shot(3, 1.0)), rules=Rules(caps={"chat": Cap(1, "drop")})
    )
    outcomes = [fired.records[k].outcome.value for k in range(4)]
    assert outcomes == ["completed", "dropped", "not_sent", "completed"]
    assert fired.records[1].due == pytest.approx(10 * MS, abs=NS)


def test_a_closed_loop_goes_on_after_a_failure() -> None:
    """What begins anew comes after its user's last request, however that one ended."""
    second = shot(1, None, parent=0, after_ns=S, session=0, turn=1)
    anew = shot(2, None, parent=1, after_ns=S, session=1, turn=0, fresh=True)
    fired = fire(
        plan_of(shot(0), second, anew), lambda id: answer() if id else [(5 * MS, 500), (5 * MS, "complete")]
    )
    outcomes = [fired.records[k].outcome.value for k in range(3)]
    assert outcomes == ["http_error", "not_sent", "completed"]
    assert fired.records[2].due == pytest.approx(5 * MS + S, abs=4 * NS)


@given(st.integers(1, 3), st.lists(st.integers(0, 200), min_size=1, max_size=12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_cap_is_never_exceeded_and_loses_nobody(limit: int, dues: list[int], drop: bool) -> None:
    """Whatever comes when: at most the cap in flight, one outcome each."""
    rules = Rules(caps={"chat": Cap(limit, "drop" if drop else "queue")})
    fired = fire(plan_of(*(shot(k, due / 1000) for k, due in enumerate(dues))), rules=rules)
    assert len(fired.records) == len(dues)
    lives = [
        (r.start, r.closed) for r in fired.records.values() if r.start is not None and r.closed is not None
    ]
    for start, _ in lives:
        assert sum(a <= start < b for a, b in lives) <= limit
    assert drop or len(lives) == len(dues)
