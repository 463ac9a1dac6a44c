"""A load process as it is started by a run: its job, its commands, its records."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.machine import children_of
from loadgen.arrivals import Constant
from loadgen.clock import monotonic
from loadgen.job import LoadJob, TargetJob
from loadgen.observed_io import read_observed
from loadgen.owncores import NICENESS, _could_come_back, can_be_kept_awake
from loadgen.plan import Load, Phases, Plan
from loadgen.plan_io import write_plan
from loadgen.rules import Retries, Rules, Timeouts
from loadgen.workload import Sessions
from results.recordfile import read_records

pytestmark = pytest.mark.e2e

ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":null,"token_ids":[5]}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each chat with one token and tokenizes a byte a token."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            kind, answer = b"text/event-stream", ANSWER
            if head.startswith(b"POST /tokenize"):
                tokens = list("".join(m["content"] for m in body["messages"]).encode())
                kind, answer = b"application/json", json.dumps({"tokens": tokens, "components": []}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(answer))
            )
            writer.write(answer)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.transport.abort()


def job(tmp_path: Path, url: str, own_cores: bool | None = None, turns: int = 2) -> LoadJob:
    load = Load("chat", Constant(10.0), Sessions(turns, 12, 4, 1, 0.05))
    write_plan(Plan.make([load], Phases(window=1.2, drain=2.0), 1), tmp_path / "plan.parquet")
    options = {"model": "m", "own": True, "token_ids": True}
    return LoadJob(
        plan=str(tmp_path / "plan.parquet"),
        records=str(tmp_path / "records.arrow"),
        target=TargetJob(url, "openai_chat", options),
        tag="r",
        nonce="n",
        rules=Rules(Timeouts(total=5.0)),
        observed=str(tmp_path / "observed.arrow"),
        salt=3,
        own_cores=own_cores,
    )


Talk = Callable[[asyncio.subprocess.Process, list[dict[str, Any]]], Awaitable[None]]


async def process(
    tmp_path: Path,
    talk: Talk,
    url: str | None = None,
    own_cores: bool | None = None,
    turns: int = 2,
    tries: int = 1,
) -> tuple[list[dict[str, Any]], int]:
    """Start the process against a loopback engine; ``talk`` is called once it is ready."""
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = url or f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    made = job(tmp_path, url, own_cores, turns)
    made = replace(made, rules=replace(made.rules, retries=Retries(tries - 1)))
    (tmp_path / "job.json").write_text(json.dumps(made.as_dict()))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen.process",
        str(tmp_path / "job.json"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    events = []
    while line := await child.stdout.readline():
        events.append(json.loads(line))
        if events[-1]["event"] == "ready":
            await talk(child, events)
    code = await child.wait()
    server.close()
    return events, code


def say(child: asyncio.subprocess.Process, **command: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(command).encode() + b"\n")


def test_a_load_process_fires_its_plan_and_writes_records_and_observations(tmp_path: Path) -> None:
    """Ready, told to start, progress, done: with every record, the client signals, and the hashes."""

    async def talk(child: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None:
        say(child, start=monotonic() + 300_000_000)

    events, code = asyncio.run(process(tmp_path, talk))
    assert (code, events[-1]["event"]) == (0, "done"), events
    done = events[-1]
    assert (done["interrupted"], done["observe_error"]) == (False, None)
    assert done["signals"]["littles"]["integral"] == pytest.approx(done["signals"]["littles"]["sum"])
    assert done["signals"]["loop_lag_p99_ns"] is not None
    records, complete = read_records(tmp_path / "records.arrow")
    assert complete
    assert len(records) == 24
    assert set(records["outcome"]) <= {"completed", "not_sent"}
    assert (records["outcome"] == "completed").sum() >= 20
    observed = read_observed(tmp_path / "observed.arrow")
    assert len(observed) == (records["outcome"] == "completed").sum()
    progress = [e for e in events if e["event"] == "progress"]
    assert progress[-1]["classes"]["chat"]["planned"] == 24


@pytest.mark.skipif(sys.platform != "linux", reason="policies of Linux's scheduler")
@pytest.mark.parametrize("own_cores", [False, True, None])
def test_the_clerk_stands_behind_its_load_process(tmp_path: Path, own_cores: bool | None) -> None:
    """Until the load begins, as far on cores of its own as elsewhere; those are kept awake meanwhile, if that
    is allowed. A target on this machine is no reason to take its cores for one's own."""

    async def talk(child: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None:
        (clerk,) = children_of(child.pid)
        assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER
        assert os.sched_getscheduler(clerk) == os.SCHED_BATCH
        assert os.getpriority(os.PRIO_PROCESS, clerk) >= os.getpriority(os.PRIO_PROCESS, child.pid) + NICENESS
        say(child, start=monotonic() + 10**11)
        say(child, stop=True)

    events, code = asyncio.run(process(tmp_path, talk, own_cores=own_cores))
    assert code == 0
    assert events[-1]["signals"]["awake"] is (bool(own_cores) and can_be_kept_awake())


@pytest.mark.skipif(sys.platform != "linux", reason="policies of Linux's scheduler")
@pytest.mark.parametrize(
    ("own_cores", "turns", "tries", "may"),
    [(True, 1, 1, True), (True, 2, 1, False), (True, 1, 2, False), (False, 1, 1, False)],
)
def test_the_clerk_is_last_while_its_load_has_time(
    tmp_path: Path, own_cores: bool, turns: int, tries: int, may: bool
) -> None:
    """On cores where nothing else is to run, unless a body waits for an answer, which must be understood at
    once: that of a later turn or of another attempt."""
    may = may and _could_come_back()
    policies: list[int] = []

    async def talk(child: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None:
        (clerk,) = children_of(child.pid)
        say(child, start=monotonic() + 10**11)
        until = monotonic() + (10**10 if may else 3 * 10**8)
        while os.sched_getscheduler(clerk) != os.SCHED_IDLE and monotonic() < until:
            await asyncio.sleep(0.01)
        policies.append(os.sched_getscheduler(clerk))
        say(child, stop=True)

    _, code = asyncio.run(process(tmp_path, talk, own_cores=own_cores, turns=turns, tries=tries))
    assert code == 0
    assert policies == [os.SCHED_IDLE if may else os.SCHED_BATCH]


@pytest.mark.parametrize("how", ["stop", "eof"])
def test_a_stopped_load_process_still_accounts_for_every_shot(tmp_path: Path, how: str) -> None:
    """By command, or because whoever started it is gone."""

    async def talk(child: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None:
        say(child, start=monotonic() + 10**11)
        say(child, cancel=0)
        if how == "stop":
            say(child, stop=True)
        else:
            assert child.stdin is not None
            child.stdin.close()

    events, code = asyncio.run(process(tmp_path, talk))
    assert (code, events[-1]["event"], events[-1]["interrupted"]) == (0, "done", True)
    records, complete = read_records(tmp_path / "records.arrow")
    assert complete
    assert list(records["outcome"]) == ["not_sent"] * 24


def test_an_unreachable_target_is_told_as_an_error(tmp_path: Path) -> None:
    """Nothing is sent; the exit code says error."""

    async def talk(child: asyncio.subprocess.Process, events: list[dict[str, Any]]) -> None: ...

    events, code = asyncio.run(process(tmp_path, talk, "http://127.0.0.1:1"))
    assert code == 3
    assert events[-1]["event"] == "error"
    assert "127.0.0.1" in events[-1]["message"]
