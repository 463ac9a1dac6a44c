"""Whatever is planned and whatever the target does: one record each, never early, nothing beyond a cap.

Random plans against random answers in virtual time, with a desk that works at once and with a clerk behind
a real socket.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.books import Books
from loadgen.clerk import Clerk
from loadgen.clerk_desk import ClerkDesk
from loadgen.clock import Clock, run_virtual
from loadgen.desk import InlineDesk
from loadgen.driver import Driver
from loadgen.job import LoadJob, TargetJob
from loadgen.plan import Part, Phases, Plan, PlannedCancel, Shot
from loadgen.plan_io import write_plan
from loadgen.render import Renderer
from loadgen.rules import Cap, Retries, Rules, Timeouts
from loadgen.targets import OpenAIChat
from loadgen.text import Prompter, TextMaker
from loadgen.transport import HttpRequest, Request, Sink
from results.record import Outcome, Record
from results.recordfile import read_list

MS, S = 1_000_000, 1_000_000_000
NS = 8
"""The event loop keeps its time as a float: each timer may be off by some ns."""
PHASES = Phases(window=1.5, warmup=0.5, cooldown=0.5, drain=1.0)
END = PHASES.load_ns + S

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"t "},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"m","code":"worker_lost"}}\n\n'

Steps = tuple[tuple[float, Any], ...]
"""(ms after the send, what): bytes, a status, or an Ending. At 0 it comes before `send` has returned."""


def answered(first: float, gap: float, end: Any = "complete") -> Steps:
    tokens = tuple((first + k * gap, TOKEN) for k in range(3))
    return ((first, 200), *tokens, (first + 3 * gap, FINISH + DONE), (first + 3 * gap + 1, end))


BEHAVIOURS: dict[str, Steps] = {
    "quick": answered(5, 2),
    "slow": answered(300, 150),
    "endless": ((20, 200), *((20 + 90 * k, TOKEN) for k in range(60))),
    "silent": ((10, 200),),
    "deaf": (),
    "kept open": ((5, 200), (6, TOKEN + FINISH + DONE)),
    "refused": ((3, "connect_error"),),
    "refused at once": ((0, "connect_error"),),
    "reset before": ((4, "reset"),),
    "reset after": ((4, 200), (6, TOKEN), (8, "reset")),
    "cut short": ((4, 200), (6, TOKEN), (8, "eof")),
    "busy": ((2, 503), (2, "complete")),
    "busy at once": ((0, 429), (0, "complete")),
    "wrong": ((2, 400), (2, b'{"error":{"message":"no"}}'), (2, "complete")),
    "lost": ((4, 200), (6, TOKEN), (7, ERROR), (8, "complete")),
}


@dataclass
class Target:
    """Plays a behaviour for each (shot, attempt)."""

    clock: Clock
    behave: Callable[[int, int], str]
    sends: list[tuple[int, int, int]] = field(default_factory=list)

    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        name = _request_id(request).rpartition("-")[2]
        shot, attempt = (int(n) for n in (name if "." in name else f"{name}.1").split("."))
        self.sends.append((shot, attempt, self.clock()))
        return _Exchange(self.clock, sink, BEHAVIOURS[self.behave(shot, attempt)]).end

    async def close(self) -> None: ...


def _request_id(request: Request) -> str:
    if isinstance(request, HttpRequest):
        return dict(request.headers)["X-Request-Id"]
    return request.partition(b"X-Request-Id: ")[2].partition(b"\r\n")[0].decode()


class _Exchange:
    def __init__(self, clock: Clock, sink: Sink, steps: Steps) -> None:
        self.clock, self.sink, self.over = clock, sink, False
        if not (steps and steps[0][1] == "connect_error"):
            sink.connected(clock(), False)
            sink.sent(clock())
        self.start, self.left = clock(), list(steps)
        self.play()

    def play(self) -> None:
        """All that is due by now, then a timer for the rest."""
        while self.left and not self.over:
            at, what = self.left[0]
            if (wait := self.start + round(at * MS) - self.clock()) > 0:
                asyncio.get_running_loop().call_later(wait / 1e9, self.play)
                return
            del self.left[0]
            if isinstance(what, int):
                self.sink.headers(self.clock(), what, {"content-type": "text/event-stream"})
            elif isinstance(what, bytes):
                self.sink.data(self.clock(), what)
            else:
                self.end(what)

    def end(self, how: Any = "aborted") -> None:
        if not self.over:
            self.over = True
            self.sink.closed(self.clock(), how, "")


# --- random plans


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Sessions with branches, sub-agents and users of a closed loop, due in steps of 50 ms."""
    shots: list[Shot] = []
    for number in range(draw(st.integers(1, 6))):
        class_ = draw(st.sampled_from(["chat", "docs"]))
        root = len(shots)
        for turn in range(draw(st.integers(1, 5))):
            first = turn == 0
            parent = None if first else draw(st.integers(root, len(shots) - 1))
            fresh = not first and draw(st.booleans())
            agent = not first and not fresh and draw(st.integers(0, 3)) == 0
            quoted = () if parent is None or fresh else (Part("assistant", 3, answer_of=parent),)
            due = draw(st.integers(0, 49)) * 50 * MS if first else None
            shots.append(
                Shot(
                    len(shots),
                    class_,
                    PHASES.of(due or 0),
                    session=100 * number + (len(shots) if fresh or agent else 0),
                    turn=0 if fresh or agent else turn,
                    prompt=(Part("user", 4, f"u{len(shots)}"), *quoted),
                    n_in_asked=8,
                    n_out_asked=3,
                    due_ns=due,
                    after_ns=None if first else draw(st.sampled_from([0, 10, 200, 1000])) * MS,
                    parent=parent,
                    fresh=fresh,
                    cancel=draw(st.sampled_from(CANCELS)),
                )
            )
    return Plan(tuple(shots), PHASES, 1)


CANCELS = [None, None, None, PlannedCancel("decode", 2), PlannedCancel("after", 8_300_000)]
LIMITS = Timeouts(connect=0.2003, first_token=0.4003, between_tokens=0.3003, total=1.2003)


@st.composite
def rule_sets(draw: st.DrawFn, caps: bool = True) -> Rules:
    retries = Retries(draw(st.integers(0, 2)), backoff=draw(st.sampled_from([0.0, 0.03, 0.5])))
    cap = st.builds(Cap, st.integers(1, 2), st.sampled_from(["queue", "drop"]))
    return Rules(LIMITS, retries, draw(st.dictionaries(st.just("chat"), cap)) if caps else {})


MOODS = st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=5)
STOPS = st.one_of(st.none(), st.integers(-50, 350).map(lambda t: (10 * t + 3) * MS + 7_001))
"""ns since t0; never at the very time at which something else happens."""
HANGUPS = st.lists(st.tuples(st.integers(-100, 3000), st.integers(0, 30)), max_size=4)


@dataclass
class Case:
    plan: Plan
    rules: Rules
    moods: list[str]
    stop: int | None
    hangups: list[tuple[int, int]]
    lead: int = S
    """How long before t0 the driver is started; it may be too late."""

    def behave(self, shot: int, attempt: int) -> str:
        return self.moods[(3 * shot + attempt) % len(self.moods)]


def cases(caps: bool = True) -> st.SearchStrategy[Case]:
    leads = st.sampled_from([S, 0, -S])
    return st.builds(Case, plans(), rule_sets(caps), MOODS, STOPS, HANGUPS, leads)


@dataclass
class Fired:
    case: Case
    records: list[Record]
    attempts: list[Record]
    target: Target
    driver: Driver
    t0: int
    littles_sum: int


# --- two desks


async def _drive(case: Case, driver: Driver, clock: Clock, t0: int) -> None:
    loop = asyncio.get_running_loop()
    if case.stop is not None:
        loop.call_later((t0 + case.stop - clock()) / 1e9, driver.stop)
    for at, shot in case.hangups:
        loop.call_later((t0 - clock()) / 1e9 + at / 1e3 + 4e-6, driver.cancel, shot)
    await driver.run()


async def fire_inline(case: Case, clock: Clock) -> Fired:
    records: list[Record] = []
    attempts: list[Record] = []
    renderer = Renderer(Prompter(TextMaker(), "n"), OpenAIChat("m"), "t")
    desk = InlineDesk(
        case.plan.shots, PHASES, renderer, lambda e, _: records.append(e.record), attempts.append
    )
    target, t0 = Target(clock, case.behave), clock() + case.lead
    driver = Driver(case.plan.shots, PHASES, desk, renderer.dialect, target, clock, t0, case.rules)
    await _drive(case, driver, clock, t0)
    assert desk._rendered == {}
    _nothing_is_kept(desk._books)
    return Fired(case, records, attempts, target, driver, t0, desk.tallies.littles_sum)


def _nothing_is_kept(books: Books) -> None:
    """What was needed for a while is gone with the last request."""
    assert books.scribe._texts == {}
    assert books.scribe._opened_in == {}


async def fire_with_clerk(case: Case, clock: Clock) -> Fired:
    """The clerk of a load process in this one: it works whenever it is told something."""
    loop = asyncio.get_running_loop()
    with TemporaryDirectory() as folder:
        here = Path(folder)
        write_plan(case.plan, here / "plan.parquet")
        files = {name: str(here / name) for name in ("plan.parquet", "records.arrow", "attempts.arrow")}
        to = TargetJob("http://127.0.0.1:1", "openai_chat", {"model": "m"})
        plan, records, attempts = files.values()
        job = LoadJob(plan, records, to, attempts, tag="t", nonce="n", rules=case.rules)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            failures: list[BaseException] = []
            desk = ClerkDesk(ours, failures.append)
            clerk = Clerk(LoadJob.of(json.loads(json.dumps(job.as_dict()))), theirs, clock)
            loop.add_reader(theirs.fileno(), clerk.step)
            ticking = asyncio.create_task(_tick(clerk))
            target, t0 = Target(clock, case.behave), clock() + case.lead
            driver = Driver(case.plan.shots, PHASES, desk, OpenAIChat("m"), target, clock, t0, case.rules)
            await _drive(case, driver, clock, t0)
            saying = asyncio.create_task(desk.finish())
            while not clerk.over:
                await asyncio.sleep(0.01)
            loop.remove_reader(theirs.fileno())
            ticking.cancel()
            clerk.finish()
            said = await saying
            desk.close()
            assert failures == []
            assert case.stop is not None or desk._bodies == desk._wanted == {}
            _nothing_is_kept(clerk._work._books)
        tried = read_list(Path(attempts)) if Path(attempts).exists() else []
        return Fired(case, read_list(Path(records)), tried, target, driver, t0, said["littles_sum"])


async def _tick(clerk: Clerk) -> None:
    while True:
        clerk.step()
        await asyncio.sleep(0.05)


Fire = Callable[[Case, Clock], Awaitable[Fired]]


async def fired(fire: Fire, case: Case, clock: Clock) -> Fired:
    return await fire(case, clock)


# --- what holds


def check(run: Fired) -> None:
    plan, records = run.case.plan, {record.id: record for record in run.records}
    assert sorted(r.id for r in run.records) == list(range(len(plan.shots))), "one record each"
    assert run.driver.in_flight.now == 0
    assert run.driver.in_flight.integral == run.littles_sum, "Little's law, C35"
    _check_attempts(run)
    for shot in plan.shots:
        record = records[shot.id]
        _check_times(record)
        if record.due is not None:
            assert record.phase == PHASES.of(record.due)
            _check_due(shot, record, records)
        elif record.outcome is Outcome.NOT_SENT:
            _check_never_due(shot, record, records)
        drops = (cap := run.case.rules.caps.get(shot.class_)) is not None and cap.over == "drop"
        assert drops or record.outcome is not Outcome.DROPPED
    for name, cap in run.case.rules.caps.items():
        lives = [(r.start, r.closed) for r in [*run.records, *run.attempts] if r.class_ == name and r.closed]
        for start, _ in lives:
            assert sum(a <= start < b for a, b in lives) <= cap.in_flight


def _check_times(record: Record) -> None:
    """Never early, never after the run's end."""
    if record.start is None:
        assert record.closed is None
        assert record.outcome in (Outcome.NOT_SENT, Outcome.DROPPED, Outcome.CENSORED_BY_RUN_END)
        return
    assert record.due is not None
    assert record.dequeued is not None
    assert record.closed is not None
    assert record.due <= record.dequeued <= record.start <= record.closed <= END + NS
    assert 0 <= record.cap_wait <= record.start - record.dequeued
    if record.retry_due is not None:
        assert record.retry_due <= record.start


def _check_due(shot: Shot, record: Record, records: dict[int, Record]) -> None:
    """C20: first turns by plan, later ones by the end of what they follow."""
    assert record.due is not None
    if shot.due_ns is not None:
        assert record.due == shot.due_ns
        return
    assert shot.parent is not None
    before = records[shot.parent]
    while before.outcome is Outcome.NOT_SENT and before.parent is not None:
        assert shot.fresh, "its session had ended"
        before = records[before.parent]
    if before.outcome is Outcome.COMPLETED:
        ended = before.terminal
    else:
        assert shot.fresh
        ended = before.due if before.outcome is Outcome.DROPPED else before.closed
    assert ended is not None
    assert record.due == ended + (shot.after_ns or 0)


def _check_never_due(shot: Shot, record: Record, records: dict[int, Record]) -> None:
    """C23: it counts where the last turn of its session was due."""
    assert record.error is not None
    if shot.fresh:
        assert record.phase == ("cooldown" if record.error == "load_ended" else shot.phase)
    elif shot.parent is not None:
        assert record.phase == records[shot.parent].phase
        ended = record.error.startswith("session_ended")
        assert not (ended and records[shot.parent].outcome is Outcome.COMPLETED)


def _check_attempts(run: Fired) -> None:
    """Attempts are numbered without a gap, each was sent once, and each begins after the one before."""
    tried: dict[int, list[Record]] = defaultdict(list)
    for record in run.attempts:
        tried[record.id].append(record)
    for record in run.records:
        lives = [*sorted(tried[record.id], key=lambda r: r.attempt), record]
        assert [life.attempt for life in lives] == list(range(1, len(lives) + 1))
        assert len({life.due for life in lives}) == 1
        assert len(lives) <= 1 + run.case.rules.retries.max
        sent = [life for life in lives if life.start is not None]
        assert sent == lives or sent == lives[:-1]
        for before, after in pairwise(sent):
            assert before.closed is not None
            assert after.start is not None
            assert before.closed + round(run.case.rules.retries.backoff * 1e9) <= after.start
    sends = Counter((shot, attempt) for shot, attempt, _ in run.target.sends)
    expected = [r for r in [*run.attempts, *run.records] if r.start is not None]
    assert sends == Counter((r.id, r.attempt) for r in expected)


@pytest.mark.parametrize("fire", [fire_inline, fire_with_clerk])
def test_whatever_happens_the_records_add_up(fire: Fire) -> None:
    """Exactly one record per shot, Little's law exact, no send early, no cap exceeded, attempts in order."""
    examples = 150 if fire is fire_inline else 40

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(cases())
    def holds(case: Case) -> None:
        check(run_virtual(lambda clock: fired(fire, case, clock)))

    holds()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(caps=False))
def test_a_clerk_does_what_a_desk_at_once_does(case: Case) -> None:
    """The same outcomes at the same times, whether the thinking is done here or behind a socket."""
    here = run_virtual(lambda clock: fire_inline(case, clock))
    there = run_virtual(lambda clock: fire_with_clerk(case, clock))

    def told(run: Fired) -> list[tuple[Any, ...]]:
        rows = [*run.records, *run.attempts]
        return sorted((r.id, r.attempt, r.outcome.value, r.phase, r.error or "", r.due or -1) for r in rows)

    assert [row[:5] for row in told(here)] == [row[:5] for row in told(there)]
    for one, other in zip(told(here), told(there), strict=True):
        assert one[5] == pytest.approx(other[5], abs=100 * NS)
