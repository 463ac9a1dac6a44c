"""The clerk and its desk at every stage at which one of them may be gone, and what they hand each other."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loadgen import clerk
from loadgen.clerk import GATHER_S, LOOK_AHEAD_NS, SPELL_NS, Clerk
from loadgen.clerk_desk import ClerkDesk, ClerkLost
from loadgen.clock import Clock, monotonic, run_virtual
from loadgen.driver import Driver
from loadgen.frames import Frame, Splitter, framed, pack_closed, pack_unsent, unpacked
from loadgen.job import LoadJob, TargetJob
from loadgen.log import log_of
from loadgen.outbox import TOGETHER
from loadgen.outcomes import Cut
from loadgen.plan import Part, Phases, Plan, Shot
from loadgen.plan_io import write_plan
from loadgen.raw import Closed, Raw, Unsent
from loadgen.rules import Cap, Retries, Rules
from loadgen.targets import OpenAIChat
from loadgen.transport import Request, Sink
from results.record import Outcome, Record
from results.recordfile import read_list

MS, S = 1_000_000, 1_000_000_000
T0 = 100 * S
ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
)


def shot(id: int, due: float | None = 0.0, **changes: Any) -> Shot:
    one = Shot(id, "chat", "window", id, 0, (Part("user", 4, f"u{id}"),), 4, 1)
    return replace(one, due_ns=None if due is None else round(due * S), **changes)


def later(id: int, parent: int, **changes: Any) -> Shot:
    quoted = () if changes.get("fresh") else (Part("assistant", 1, answer_of=parent),)
    given: dict[str, Any] = {"after_ns": 0, "prompt": (*quoted, Part("user", 4, f"u{id}")), **changes}
    return shot(id, None, parent=parent, **given)


def job(folder: Path, *shots: Shot, **changes: Any) -> LoadJob:
    write_plan(Plan(shots, Phases(window=10.0, drain=5.0), 1), folder / "plan.parquet")
    names = {"records": "records.arrow", "attempts": "attempts.arrow"}
    files = {key: str(folder / name) for key, name in names.items()}
    target = TargetJob("http://127.0.0.1:1", "openai_chat", {"model": "m"})
    return LoadJob(plan=str(folder / "plan.parquet"), target=target, **{**files, **changes})


class LoadProcess:
    """The other end of a clerk's socket: says and hears whole frames. The clerk's clock stands at ``now``."""

    def __init__(self, to: LoadJob) -> None:
        self.now = T0 - 10 * S
        self.socket, link = socket.socketpair()
        self.socket.setblocking(False)
        self.clerk = Clerk(to, link, lambda: self.now)
        self.link = link
        self._splitter = Splitter()

    def says(self, *frames: Frame) -> list[Frame]:
        """What the clerk answers at once."""
        for frame in frames:
            self.socket.sendall(framed(frame))
        self.clerk.step()
        return self.heard()

    def heard(self) -> list[Frame]:
        try:
            data = self.socket.recv(1 << 24)
        except BlockingIOError:
            return []
        frames = (unpacked(body) for body in self._splitter.feed(data))
        return [frame for frame in frames if frame[0] != "heard"]

    def close(self) -> None:
        self.socket.close()
        self.link.close()
        self.clerk._work.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With how many frames each call to send was made."""
    made: list[int] = []
    send = socket.socket.sendmsg

    def sendmsg(link: socket.socket, frames: Sequence[bytes]) -> int:
        made.append(len(frames))
        return send(link, frames)

    monkeypatch.setattr(socket.socket, "sendmsg", sendmsg)
    return made


@contextmanager
def load_process(to: LoadJob) -> Iterator[LoadProcess]:
    one = LoadProcess(to)
    try:
        yield one
    finally:
        one.close()


def records_of(to: LoadJob) -> list[Record]:
    return sorted(read_list(Path(to.records)), key=lambda record: record.id)


def answered(shot: int, at: int = 0, body: bytes = ANSWER, **changes: Any) -> Closed:
    """Over at T0 + ``at``, 10 ms after it was sent; its last read 1 ms before that."""
    t = T0 + at
    raw = Raw(t - 10 * MS, False, t - 10 * MS, t - MS, 0, 200, {}, log_of([t - MS], [0], [body]), "complete")
    return Closed(shot, t - 10 * MS, t - 10 * MS, t - 10 * MS, t, **{"raw": raw, **changes})


def request_of(frame: Frame) -> tuple[dict[str, str], Any]:
    """The headers and the body of what goes over the wire."""
    head, _, body = frame[3].partition(b"\r\n\r\n")
    return dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:]), json.loads(body)


def clock(mono: int, offset: int = 0) -> Frame:
    return "clock", mono, offset, 100


# --- bodies


@pytest.fixture
def none_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clerk, "EARLY_BYTES", 0)


@pytest.mark.usefixtures("none_early")
def test_bodies_are_made_ahead_of_their_time_in_order(tmp_path: Path) -> None:
    """Those that are due within the look-ahead, at once; the next one when its time comes near."""
    with load_process(job(tmp_path, shot(0, 1.0), shot(1, 0.5), shot(2, 9.0))) as process:
        process.now = T0 - LOOK_AHEAD_NS + S
        bodies = process.says(("t0", T0))
        assert [frame[:3] for frame in bodies] == [("body", 1, 1), ("body", 0, 1)]
        process.now = T0 + 9 * S - LOOK_AHEAD_NS - 1
        assert process.says() == []
        process.now += 1
        assert [frame[:3] for frame in process.says()] == [("body", 2, 1)]


def test_before_the_load_begins_bodies_are_made_whenever_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nobody wants the core, as far as memory goes; it does not wait meanwhile. Later only those whose
    time comes near."""
    dues = [0.0, 100.0, 200.0, 300.0, 400.0]
    with load_process(job(tmp_path, *(shot(id, due) for id, due in enumerate(dues)))) as process:
        process.now = T0 - 9 * S
        monkeypatch.setattr(clerk, "EARLY_BYTES", 0)
        assert process.says(("t0", T0)) == []
        assert process.clerk._patience() > 0
        monkeypatch.setattr(clerk, "EARLY_BYTES", process.clerk._out.total + 1)
        assert process.clerk._patience() == 0
        assert [frame[1] for frame in process.says()] == [0]
        assert process.clerk._patience() > 0
        monkeypatch.setattr(clerk, "EARLY_BYTES", process.clerk._out.total + 500)
        assert [frame[1] for frame in process.says()] == [1, 2]
        process.now = T0
        monkeypatch.setattr(clerk, "EARLY_BYTES", 1 << 30)
        assert process.says() == []
        assert process.clerk._patience() > 0
        process.now = T0 + 300 * S - LOOK_AHEAD_NS
        assert [frame[1] for frame in process.says()] == [3]


@pytest.mark.usefixtures("none_early")
def test_many_bodies_are_made_in_one_go(tmp_path: Path) -> None:
    """Once one is to be made, those that are due a spell after it are made with it, and none beyond."""
    dues = [0, MS, SPELL_NS, SPELL_NS + 1, 9 * S]
    plan = [replace(shot(id), due_ns=due) for id, due in enumerate(dues)]
    with load_process(job(tmp_path, *plan)) as process:
        process.now = T0 - LOOK_AHEAD_NS - 1
        assert process.says(("t0", T0)) == []
        process.now += 1
        assert [frame[:2] for frame in process.says()] == [("body", id) for id in range(3)]
        process.now += SPELL_NS
        assert process.says() == []
        process.now += 1
        assert [frame[:2] for frame in process.says()] == [("body", 3)]


@pytest.mark.parametrize(
    ("dues", "ways"),
    [
        ([1.0, 1.5, 2.9, 3.0], 0),
        ([3.1, 3.5, 3.6], 2),
        ([1.0, 2.0, 3.5, 3.6], 2),
    ],
)
def test_it_makes_way_between_bodies_only_if_the_next_one_has_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dues: list[float], ways: int
) -> None:
    """Making way costs a slice of the core, which a clerk in a hurry cannot spare for each body."""
    made: list[None] = []
    monkeypatch.setattr(clerk, "_make_way", lambda: made.append(None))
    with load_process(job(tmp_path, *(shot(id, due) for id, due in enumerate(dues)))) as process:
        process.now = T0
        assert len(process.says(("t0", T0))) == len(dues)
        assert len(made) == ways


def test_what_it_says_goes_together(tmp_path: Path, calls: list[int]) -> None:
    """Each call wakes the load process, on the same core."""
    with load_process(job(tmp_path, *(shot(id) for id in range(40)))) as process:
        process.now = T0
        assert len(process.says(("t0", T0))) == 40
        assert calls == [TOGETHER, TOGETHER, 40 - 2 * TOGETHER]


def test_later_turns_get_their_bodies_before_the_word(tmp_path: Path) -> None:
    """With the live answer in them; a branch and a sub-agent as well."""
    agent = later(2, 0, session=7, after_ns=S)
    with load_process(job(tmp_path, shot(0), later(1, 0), agent, later(3, 1))) as process:
        process.says(("t0", T0), clock(T0))
        *bodies, told = process.says(pack_closed(answered(0)))
        assert [frame[:3] for frame in bodies] == [("body", 1, 1), ("body", 2, 1)]
        said = request_of(bodies[0])[1]["messages"][0]
        assert said == {"role": "assistant", "content": "yes"}
        assert told == ("told", 0, True, "completed", T0 - MS, "warmup")


def test_a_session_that_begins_anew_has_its_body_though_the_one_before_ended_early(tmp_path: Path) -> None:
    """Its parent is never sent: the end of the turn that failed brings the body all the same."""
    plan = shot(0), later(1, 0), later(2, 1), later(3, 2, fresh=True, after_ns=S)
    with load_process(job(tmp_path, *plan)) as process:
        process.says(("t0", T0), clock(T0))
        body, told = process.says(pack_closed(answered(0, cut=Cut("timeout", "total"), body=b": hm\n\n")))
        assert body[:3] == ("body", 3, 1)
        assert told[:4] == ("told", 0, False, "client_timeout")


def test_a_request_that_a_cap_dropped_is_followed_by_what_begins_anew(tmp_path: Path) -> None:
    """It was never sent, so nothing else brings that body."""
    with load_process(job(tmp_path, shot(0), later(1, 0), later(2, 1, fresh=True))) as process:
        process.says(("t0", T0), clock(T0))
        dropped = Unsent(0, "window", "cap", 5 * MS, Outcome.DROPPED)
        assert [frame[:3] for frame in process.says(pack_unsent(dropped))] == [("body", 2, 1)]


def test_the_next_attempt_has_its_body_when_it_is_due(tmp_path: Path) -> None:
    """It is made when the attempt before has failed, not when the wait is over; it has an id of its own."""
    with load_process(job(tmp_path, shot(0))) as process:
        process.now = T0 - S
        (first,) = process.says(("t0", T0), clock(T0))
        (second,) = process.says(pack_closed(answered(0, last=False)))
        assert second[:3] == ("body", 0, 2)
        ids = [request_of(frame)[0]["X-Request-Id"] for frame in (first, second)]
        assert ids == ["run-0", "run-0.2"]


def test_a_later_turn_is_due_by_the_kernels_stamp(tmp_path: Path) -> None:
    """A loop that was 20 ms late in reading the end does not move the next turn's due time (C3, C20)."""
    with load_process(job(tmp_path, shot(0), later(1, 0))) as process:
        process.says(("t0", T0), clock(T0, offset=7 * S))
        late = answered(0, 50 * MS)
        users = late.raw.users
        late.raw.reads = log_of(users, [users[0] + 7 * S - 20 * MS], late.raw.chunks)
        _, told = process.says(pack_closed(late))
        assert told[4] == pytest.approx(T0 + 29 * MS, abs=50_000)


def test_a_long_prompt_goes_through_the_socket_in_pieces(tmp_path: Path) -> None:
    """Far more than the socket takes at once."""
    long = shot(0, prompt=(Part("user", 1_500_000, "long"),))
    with load_process(job(tmp_path, long)) as process:
        process.now = T0
        process.socket.sendall(framed(("t0", T0)))
        frames: list[Frame] = []
        for _ in range(10_000):
            process.clerk.step()
            frames += process.heard()
            if frames:
                break
        (body,) = frames
        assert len(request_of(body)[1]["messages"][0]["content"].split()) == 1_500_000


# --- understanding


def test_it_is_not_woken_by_each_answer_that_nobody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once one came it looks again a moment later; when that finds nothing, the next one wakes it."""
    slept: list[float] = []
    monkeypatch.setattr(clerk.time, "sleep", slept.append)
    with load_process(job(tmp_path, *(shot(id) for id in range(4)))) as process:
        process.says(("t0", T0), clock(T0))
        process.clerk.step()
        process.clerk.step(0.001)
        assert slept == []
        for id in range(2):
            process.socket.sendall(framed(pack_closed(answered(id))))
            process.clerk.step(1.0)
        assert slept == [GATHER_S]
        process.socket.sendall(framed(pack_closed(answered(2))))
        process.clerk.step(0.001)
        assert slept == [GATHER_S, 0.001]
        process.clerk.step(1.0)
        process.clerk.step(0.001)
        assert slept == [GATHER_S, 0.001, GATHER_S]


@pytest.mark.parametrize("why", ["a later turn", "a cap", "retries"])
def test_it_is_woken_by_each_where_requests_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """For what comes next may hang on it."""
    slept: list[float] = []
    monkeypatch.setattr(clerk.time, "sleep", slept.append)
    shots = [shot(0), later(1, 0) if why == "a later turn" else shot(1)]
    of = {"a cap": Rules(caps={"chat": Cap(1)}), "retries": Rules(retries=Retries(max=1))}
    rules = of.get(why, Rules())
    with load_process(replace(job(tmp_path, *shots), rules=rules)) as process:
        process.says(("t0", T0), clock(T0))
        process.socket.sendall(framed(pack_closed(answered(0))))
        process.clerk.step(1.0)
        process.clerk.step(0.001)
        assert slept == []


def test_it_waits_for_the_clock_without_spinning(tmp_path: Path) -> None:
    """What no clock sample covers yet is not understood; until one comes, there is nothing to do."""
    to = job(tmp_path, shot(0), shot(1))
    with load_process(to) as process:
        process.says(("t0", T0), clock(T0 - S))
        process.now = T0
        process.says(pack_closed(answered(0)), pack_closed(answered(1)))
        process.now += 100
        assert process.clerk._patience() > 0.5
        process.says(clock(T0 + MS))
        process.now += 2 * S
        process.says()
        assert [record.outcome for record in records_of(to)] == [Outcome.COMPLETED] * 2


def test_what_came_in_before_the_load_process_was_killed_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole frames to the last one, whatever the clock says of them; half a frame is nothing. If it was made
    the last one before, nobody else takes that back."""
    to = job(tmp_path, *(shot(k) for k in range(300)))
    with load_process(to) as process:
        process.says(("t0", T0))
        process.heard()
        for k in range(250):
            process.socket.sendall(framed(pack_closed(answered(k))))
            process.clerk.step()
            process.heard()
        process.socket.send(framed(pack_closed(answered(250)))[:-1])
        process.socket.close()
        ticks = count(T0, 2 * MS)  # it takes many slices
        process.clerk._clock = lambda: next(ticks)
        left: list[bool] = []
        monkeypatch.setattr(clerk, "come_back", lambda: left.append(process.clerk._waiting()))
        process.clerk.run()
    assert [record.id for record in records_of(to)] == list(range(250))
    assert left == [True], "it has to come back by itself, before it goes on"


def test_attempts_and_what_was_never_sent_are_filed_apart(tmp_path: Path) -> None:
    """One record each; the number of an attempt that was never sent is its own."""
    to = job(tmp_path, shot(0), shot(1), shot(2))
    with load_process(to) as process:
        process.says(("t0", T0), clock(T0 + S))
        process.says(pack_closed(answered(0, last=False)), pack_closed(answered(0, attempt=2)))
        process.says(pack_closed(answered(1, last=False)))
        process.says(pack_unsent(Unsent(1, "window", "interrupted", 0, Outcome.CENSORED_BY_RUN_END, 2)))
        process.says(pack_unsent(Unsent(2, "window", "interrupted")), ("end",))
        assert process.clerk.over
        process.clerk.finish()
        done = process.heard()[-1]
        assert done[0] == "done"
        assert done[1]["lost"] == 0
    rows = [(r.id, r.attempt, r.outcome.value, r.due) for r in records_of(to)]
    assert rows == [
        (0, 2, "completed", -10 * MS),
        (1, 2, "censored_by_run_end", 0),
        (2, 1, "not_sent", None),
    ]
    assert sorted((r.id, r.attempt) for r in read_list(Path(to.attempts))) == [(0, 1), (1, 1)]


# --- the desk


class Wire:
    """A desk on the running loop, and the other end of its socket, which takes what it is asked to."""

    def __init__(self, buffer: int) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.theirs.setblocking(False)
        self.fd = ours.fileno()
        self.lost: list[BaseException] = []
        self.desk = ClerkDesk(ours, self.lost.append)
        self._splitter = Splitter()

    def arrived(self) -> list[Frame]:
        """Since the last time."""
        try:
            data = self.theirs.recv(1 << 20)
        except BlockingIOError:
            return []
        return [unpacked(body) for body in self._splitter.feed(data)]


@contextmanager
def wire(buffer: int = 1 << 20) -> Iterator[Wire]:
    one = Wire(buffer)
    try:
        yield one
    finally:
        one.desk.close()
        one.theirs.close()


def over(shot: int, **changes: Any) -> Frame:
    return pack_closed(answered(shot, **changes))


def test_what_it_is_told_lies_in_the_socket_at_once(calls: list[int]) -> None:
    """Where a load process that is killed cannot take it along."""
    passed = Unsent(2, "window", "interrupted")

    async def main(clock: Clock) -> None:
        with wire() as one:
            one.desk.closed(answered(0), awaited=False)
            assert one.arrived() == [over(0)]
            one.desk.closed(answered(1, last=False), awaited=True)
            one.desk.unsent(passed)
            assert one.arrived() == [over(1, last=False), pack_unsent(passed)]
            assert (calls, one.desk.unsaid) == ([1, 1, 1], 0)

    run_virtual(main)


def test_a_socket_that_is_full_for_a_while_loses_nothing(calls: list[int]) -> None:
    """Until it is read again nobody asks it to take more; then all goes in order, and all is as before."""

    async def main(clock: Clock) -> None:
        with wire(buffer=4096) as one:
            body = ANSWER + b": pad\n\n" * 300
            for k in range(60):
                one.desk.closed(answered(k, body=body), awaited=k % 3 == 0)
            tried = len(calls)
            for k in range(60, 200):
                one.desk.closed(answered(k, body=body), awaited=k % 3 == 0)
            await asyncio.sleep(1)
            assert len(calls) == tried
            assert one.desk.unsaid > 150
            arrived: list[Frame] = []
            for _ in range(2000):
                arrived += one.arrived()
                await asyncio.sleep(0)
            assert arrived == [over(k, body=body) for k in range(200)]
            assert one.desk.unsaid == 0
            assert not asyncio.get_running_loop().remove_writer(one.fd)
            one.desk.closed(answered(200), awaited=False)
            assert one.arrived() == [over(200)]
            assert one.lost == []

    run_virtual(main)


def test_a_clerk_that_goes_while_something_waits_is_lost_once() -> None:
    """What waited for it is nothing any more."""

    async def main(clock: Clock) -> None:
        with wire(buffer=4096) as one:
            for k in range(60):
                one.desk.closed(answered(k, body=ANSWER * 9), awaited=False)
            assert one.desk.unsaid > 0
            one.theirs.close()
            await asyncio.sleep(1)
            assert [type(error) for error in one.lost] == [ClerkLost]
            assert one.desk.unsaid == 0

    run_virtual(main)


def test_the_stock_is_the_bodies_that_nobody_has_used() -> None:
    """By it the load process knows how far they reach."""

    async def main(clock: Clock) -> None:
        with wire() as one:
            used: list[Request] = []
            assert one.desk.body(1, 1) is None
            assert not one.desk.awaited
            one.desk.want(1, 1, lambda request, streamed: used.append(request))
            one.desk.unsent(Unsent(4, "window", "interrupted", 0))
            assert one.desk.stock == 0
            assert one.desk.awaited
            for id in range(5):
                one.theirs.sendall(framed(("body", id, 1, b"%d" % id, True)))
            await asyncio.sleep(0.01)
            assert one.desk.stock == 3
            assert not one.desk.awaited
            assert one.desk.body(0, 1) == (b"0", True)
            assert one.desk.body(0, 1) is None
            one.desk.unsent(Unsent(2, "window", "interrupted"))
            assert one.desk.stock == 1
            assert used == [b"1"]

    run_virtual(main)


# --- gone


class Mute:
    """A Transport that never answers."""

    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None: ...


def test_sends_that_waited_for_their_body_are_counted() -> None:
    """Of the plan; that of another attempt or turn is made when it is known that it comes."""

    async def main(clock: Clock) -> None:
        with wire() as one:
            shots = shot(0), shot(1, 0.5)
            driver = Driver(shots, Phases(9.0), one.desk, OpenAIChat("m"), Mute(), clock, clock() + S)
            run = asyncio.ensure_future(driver.run())
            await asyncio.sleep(1.2)
            assert (driver.bodies_late, driver.counts.sent["chat"]) == (1, 0)
            for id in range(2):
                one.theirs.sendall(framed(("body", id, 1, b"%d" % id, True)))
            await asyncio.sleep(1.0)
            assert (driver.bodies_late, driver.counts.sent["chat"]) == (1, 2)
            driver.stop()
            await run

    run_virtual(main)


@pytest.mark.parametrize("stage", ["before it is ready", "before t0", "in the window"])
def test_a_clerk_that_is_gone_ends_the_run(stage: str) -> None:
    """Whoever waits is told, and nothing is sent any more."""
    shots = shot(0), shot(1, 2.0)

    async def main(clock: Clock) -> Driver:
        ours, theirs = socket.socketpair()
        lost: list[BaseException] = []
        desk = ClerkDesk(ours, lambda error: lost.append(error) or driver.fail(error))
        driver = Driver(shots, Phases(10.0), desk, OpenAIChat("m"), Mute(), clock, clock() + S)
        if stage == "before it is ready":
            theirs.close()
            with pytest.raises(ClerkLost, match="gone"):
                await desk.ready
        else:
            theirs.sendall(framed(("ready",)))
            for id in range(2):
                theirs.sendall(framed(("body", id, 1, b"POST / HTTP/1.1\r\n\r\n{}", True)))
            await desk.ready
            wait = 0.5 if stage == "before t0" else 1.5
            asyncio.get_running_loop().call_later(wait, theirs.close)
        with pytest.raises(ClerkLost, match="gone"):
            await driver.run()
        await asyncio.sleep(5)
        desk.close()
        theirs.close()
        return driver

    driver = run_virtual(main)
    assert driver.counts.sent.total() == (1 if stage == "in the window" else 0)


def test_a_clerk_that_says_why_is_quoted() -> None:
    """At the end, when only its last words are missing."""

    async def main(clock: Clock) -> None:
        ours, theirs = socket.socketpair()
        lost: list[BaseException] = []
        desk = ClerkDesk(ours, lost.append)
        theirs.sendall(framed(("error", "OSError: no space left on device")))
        with pytest.raises(ClerkLost, match="no space left"):
            await desk.finish()
        assert len(lost) == 1
        desk.close()
        desk.close()
        theirs.close()

    run_virtual(main)


@pytest.mark.e2e
def test_a_full_disk_is_said_and_ends_the_clerk(tmp_path: Path) -> None:
    """It says what the system said; its exit code is that of an error."""
    to = job(tmp_path, shot(0), records="/dev/full")
    (tmp_path / "job.json").write_text(json.dumps(to.as_dict()))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-m", "loadgen.clerk", str(tmp_path / "job.json"), str(theirs.fileno())]
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        theirs.close()
        for frame in (("t0", monotonic()), pack_closed(answered(0)), ("end",)):
            ours.sendall(framed(frame))
        _, log = child.communicate(timeout=60)
        said = b""
        while data := ours.recv(1 << 20):
            said += data
    frames = [unpacked(body) for body in Splitter().feed(said)]
    assert frames[-1][0] == "error"
    assert "No space left" in frames[-1][1]
    assert child.returncode == 3
    assert b"Traceback" in log


def test_no_record_is_made_while_bodies_are_due(tmp_path: Path) -> None:
    """Each look at the clock takes 2 ms, a slice holds a few bodies: the answer waits until all are out."""
    ticks = count(T0, 2 * MS)
    with load_process(job(tmp_path, *(shot(id) for id in range(40)))) as end:
        end.clerk._clock = lambda: next(ticks)
        heard = end.says(("t0", T0), ("clock", T0 + 10 * S, 0, 100), pack_closed(answered(0)))
        slices = 1
        while len(heard) < 40:
            assert end.clerk._waiting(), "an answer was understood before the last body was out"
            end.clerk.step()
            heard, slices = heard + end.heard(), slices + 1
        assert [frame[:2] for frame in heard] == [("body", id) for id in range(40)]
        assert slices > 5
        end.clerk.step()
        assert not end.clerk._waiting()
