"""The load process decides when its clerk is last: never when that could make a body late."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from loadgen import process
from loadgen.clerk import Clerk
from loadgen.clerk_desk import ClerkDesk
from loadgen.client import Client
from loadgen.clock import Clock, run_virtual
from loadgen.driver import Driver
from loadgen.job import LoadJob, TargetJob
from loadgen.owncores import Rank
from loadgen.plan import Part, Phases, Plan, Shot
from loadgen.plan_io import write_plan
from loadgen.targets import OpenAIChat
from loadgen.transport import Request, Sink

MS, S = 1_000_000, 1_000_000_000
LOOK_S = 0.1
FAR = 10 * S


class FakeRank(Rank):
    """Leaves every process where it is, and knows where it should have been."""

    def __init__(self) -> None:
        self.last = False
        self.said: list[bool] = []

    def be(self, last: bool) -> None:
        self.last = last
        self.said.append(last)


@dataclass
class Fake:
    """A driver and its desk, as far as the place of a clerk depends on them. ``dues``: of what is planned."""

    dues: Sequence[int] = ()
    stock: int = 0
    unsaid: int = 0
    awaited: bool = False
    wrong: Exception | None = None
    finished: Callable[[], None] = field(default=lambda: None)

    def planned(self, skip: int) -> int | None:
        if self.wrong is not None:
            raise self.wrong
        return self.dues[skip] if skip < len(self.dues) else None

    async def run(self, alarm: object) -> None:
        await asyncio.sleep(0.5)
        if self.wrong is not None:
            raise self.wrong

    async def finish(self) -> dict[str, Any]:
        self.finished()
        raise KeyError("the rest is none of our business")

    @property
    def driver(self) -> Driver:
        return cast(Driver, self)

    @property
    def desk(self) -> ClerkDesk:
        return cast(ClerkDesk, self)


@contextmanager
def placing(rank: Rank, driver: Driver, desk: ClerkDesk) -> Iterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(process._place(rank, driver, desk))
    try:
        yield task
    finally:
        task.cancel()


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clock], None]:
    """Call it with the clock that the load process is to look at."""
    return lambda clock: monkeypatch.setattr(process, "monotonic", clock)


# --- the rule


@pytest.mark.parametrize(
    ("dues", "stock", "unsaid", "last"),
    [
        ([0, 3 * S], 0, 0, False),
        ([0, 3 * S], 1, 0, False),
        ([0, 3 * S + 1], 1, 0, True),
        ([0, S, 2 * S, FAR], 2, 0, False),
        ([0, S, 2 * S, FAR], 3, 0, True),
        ([0, S, 2 * S], 2, 0, False),
        ([0, S, 2 * S], 3, 0, True),
        ([-S], 0, 0, False),
        ([], 0, 0, True),
        ([FAR], 0, 999, True),
        ([FAR], 0, 1000, False),
        ([], 0, 1000, False),
        ([S], 0, 1000, False),
    ],
)
def test_it_is_last_while_its_bodies_reach_far_and_it_hears(
    virtual: Callable[[Clock], None], dues: list[int], stock: int, unsaid: int, last: bool
) -> None:
    """Bodies that are ready are of the next turns; the first that is not must have ample time."""

    async def main(clock: Clock) -> None:
        virtual(clock)
        rank, fake = FakeRank(), Fake([clock() + due for due in dues], stock, unsaid)
        with placing(rank, fake.driver, fake.desk):
            await asyncio.sleep(0)
            assert rank.said == [last]

    run_virtual(main)


def test_it_is_brought_back_without_a_word_of_its_own(virtual: Callable[[Clock], None]) -> None:
    """As time goes by, and whenever what it depends on changes: it is looked at again and again."""

    async def main(clock: Clock) -> None:
        virtual(clock)
        rank, fake = FakeRank(), Fake([clock() + 4 * S, clock() + FAR])
        with placing(rank, fake.driver, fake.desk):
            await asyncio.sleep(1 - 0.01)
            assert rank.last
            await asyncio.sleep(0.01 + LOOK_S)
            assert not rank.last
            fake.stock = 1
            await asyncio.sleep(LOOK_S)
            assert rank.last
            fake.unsaid = 2000
            await asyncio.sleep(LOOK_S)
            assert not rank.last
            fake.unsaid = 0
            await asyncio.sleep(LOOK_S)
            assert rank.last
            fake.awaited = True
            await asyncio.sleep(LOOK_S)
            assert not rank.last

    run_virtual(main)


@pytest.mark.parametrize("how", ["is cancelled", "fails"])
def test_whatever_ends_the_watch_brings_it_back(virtual: Callable[[Clock], None], how: str) -> None:
    """Nobody else would; what it failed with is not swallowed."""

    async def main(clock: Clock) -> None:
        virtual(clock)
        rank, fake = FakeRank(), Fake()
        with placing(rank, fake.driver, fake.desk) as task:
            await asyncio.sleep(0.05)
            assert rank.last
            if how == "fails":
                fake.wrong = ZeroDivisionError()
                await asyncio.sleep(LOOK_S)
            else:
                task.cancel()
            wrong: type[BaseException] = (
                asyncio.CancelledError if how == "is cancelled" else ZeroDivisionError
            )
            with pytest.raises(wrong):
                await task
            assert not rank.last

    run_virtual(main)


# --- in a load process


def job(folder: Path, *shots: Shot) -> LoadJob:
    write_plan(Plan(shots, Phases(window=60.0, drain=5.0), 1), folder / "plan.parquet")
    target = TargetJob("http://127.0.0.1:1", "openai_chat", {"model": "m"})
    plan, records = str(folder / "plan.parquet"), str(folder / "records.arrow")
    return LoadJob(plan=plan, target=target, records=records, own_cores=False)


def shot(id: int, due: int) -> Shot:
    return Shot(id, "chat", "window", id, 0, (Part("user", 4, f"u{id}"),), 4, 1, due_ns=due)


@pytest.mark.parametrize("fails", [False, True])
def test_the_load_is_over_before_the_clerk_says_its_last(
    tmp_path: Path, virtual: Callable[[Clock], None], fails: bool
) -> None:
    """With all its records still to make it must not be the last one, nor if the load failed."""

    async def main(clock: Clock) -> None:
        virtual(clock)
        rank, asked = FakeRank(), list[bool]()
        fake = Fake(finished=lambda: asked.append(rank.last))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            one = process._LoadProcess(job(tmp_path, shot(0, 0)), ours, os.getpid(), lambda event: None)
            one._rank = rank
            client = cast(Client, Transport(clock))
            firing = asyncio.ensure_future(one._fire(fake.driver, client, fake.desk, clock(), (0, FAR)))
            await asyncio.sleep(0.45)
            assert rank.last
            if fails:
                fake.wrong = ZeroDivisionError()
            with pytest.raises(ZeroDivisionError if fails else KeyError):
                await firing
            assert asked == ([] if fails else [False])
            assert not rank.last

    run_virtual(main)


class Transport:
    """Never answers; keeps when it was told to send what."""

    alarm = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sent: list[int] = []

    def send(self, request: Request, sink: Sink) -> Callable[[], None]:
        self.sent.append(self._clock())
        return lambda: None

    async def close(self) -> None: ...


async def run_while_not_last(clerk: Clerk, rank: Rank) -> None:
    """The core is busy: who is last there is never run again, and cannot notice anything."""
    while True:
        if not rank.last:
            clerk.step()
        await asyncio.sleep(0.02)


def test_a_clerk_that_is_never_run_while_it_is_last_makes_every_body_in_time(
    tmp_path: Path, virtual: Callable[[Clock], None]
) -> None:
    """Over twice the time that bodies are made ahead; the 2 s that are promised are kept."""
    dues = [k * 50 * MS for k in range(200)]

    async def main(clock: Clock) -> None:
        virtual(clock)
        rank, transport, leads, t0 = FakeRank(), Transport(clock), list[int](), clock() + 5 * S
        to = job(tmp_path, *(shot(k, due) for k, due in enumerate(dues)))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            desk = ClerkDesk(ours, lambda error: driver.fail(error))
            clerk = Clerk(to, theirs, clock)
            driver = Driver(
                [shot(k, due) for k, due in enumerate(dues)],
                Phases(60.0),
                desk,
                OpenAIChat("m"),
                transport,
                clock,
                t0,
            )
            core = asyncio.ensure_future(run_while_not_last(clerk, rank))
            load = asyncio.ensure_future(driver.run())
            with placing(rank, driver, desk):
                while clock() < t0 + dues[-1] + S:
                    await asyncio.sleep(0.05)
                    bare = driver.planned(skip=desk.stock)
                    leads += [] if bare is None else [bare - clock()]
            core.cancel()
            driver.stop()
            await load
            desk.close()
            clerk._work.close()
        assert transport.sent == [t0 + due for due in dues]
        assert min(leads) > 2 * S
        assert driver.bodies_late == 0
        assert rank.said.count(True) > len(rank.said) / 2, "it was hardly ever last"

    run_virtual(main)
