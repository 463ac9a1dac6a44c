"""What no plan could hold: times beyond 64 bits, sessions of more requests than can be numbered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.plan import Load, Phases, Plan, Shot
from loadgen.plan_io import write_plan
from loadgen.streams import stream
from loadgen.tracefiles import Trace, TraceError
from loadgen.tracefiles.own_run import OwnRun
from loadgen.workload import Fixed
from loadgen.workload.sessions import MOST_REQUESTS

Make = Callable[..., Trace]
Play = Callable[..., tuple[Shot, ...]]
SECONDS = st.one_of(st.integers(0, 9), st.floats(0, 1e3), st.floats(0, 1e9), st.sampled_from([1e9, 3e8]))
REFUSED = (
    "compress divides times",
    "the trace lasts",
    "must be 0 s to 1,000,000,000 s",
    "nothing of the trace",
)


def chats(times: list[float], child: bool) -> str:
    """A bailian file; each request follows the one before it, or opens a session."""
    about = {"input_length": 16, "output_length": 3, "type": "text", "turn": 1, "hash_ids": [1]}
    rows = [
        {"chat_id": k, "parent_chat_id": k - 1 if child else -1, "timestamp": t} | about
        for k, t in enumerate(times)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(SECONDS, min_size=1, max_size=6),
    child=st.booleans(),
    compress=st.one_of(st.floats(1e-12, 1e7), st.sampled_from([1e-6, 1e-7, 5e-324, 1.0, 1e6])),
    spread=st.none() | st.floats(0, 1e10),
    start_at=st.just(0.0) | st.floats(0, 2e9),
)
def test_accepted_rules_give_times_in_order(
    trace: Make, times: list[float], child: bool, compress: float, spread: float | None, start_at: float
) -> None:
    """From 0 on, each think time too, and within the 64 bits of ns: or the rules are refused."""
    times = sorted(set(times)) if child else times
    refused, made = "", None
    try:
        made = trace("bailian", chats(times, child), compress=compress, spread=spread, start_at=start_at)
    except ValueError as error:
        refused = str(error)
    if made is None:
        assert any(words in refused for words in REFUSED)
        return
    due = made.due_times(1e9 + 1, stream(0, "x"))
    shots = Plan.make([Load("c", made, made)], Phases(window=1e9 + 1), 1).shots
    assert len(due) == made.facts(1.0)["kept_sessions"]
    assert (due >= 0).all()
    assert (np.diff(due) >= 0).all()
    assert all(0 <= (shot.after_ns or 0) <= 10**18 for shot in shots)


@pytest.mark.parametrize("compress", [1e-7, 5e-324, 0.0, -1.0, float("nan"), float("inf")])
def test_a_compression_out_of_bounds_is_refused(trace: Make, compress: float) -> None:
    """With the bounds."""
    with pytest.raises(ValueError, match="compress divides times: it is 1e-6 to 1e6, not"):
        trace("mooncake", compress=compress)


@pytest.mark.parametrize("child", [False, True])
def test_times_that_a_load_cannot_have_are_refused(trace: Make, child: bool) -> None:
    """Due times and think times, with what they would be; those that `limit` leaves out do not matter."""
    text = chats([0.0, 1.0, 9e8], child)
    with pytest.raises(ValueError, match=r"with compress 0\.5 the trace lasts 1\.8e\+09 s, and no load more"):
        trace("bailian", text, compress=0.5)
    assert child or trace("bailian", text, compress=0.5, limit=2)


@pytest.mark.parametrize("key", ["spread", "start_at"])
@pytest.mark.parametrize("seconds", [-1.0, 2e9, float("inf"), float("nan")])
def test_times_of_the_rules_have_bounds(trace: Make, key: str, seconds: float) -> None:
    """Each by its name."""
    with pytest.raises(ValueError, match=f"{key} must be 0 s to 1,000,000,000 s, not"):
        trace("mooncake", **{key: seconds})


def test_an_azure_trace_of_a_century_is_refused_by_its_line(trace: Make, texts: dict[str, str]) -> None:
    """Its times are dates, which can lie farther apart than a load lasts."""
    with pytest.raises(TraceError, match=r"trace\.azure:2: TIMESTAMP: more than 1,000,000,000 s after"):
        trace("azure", texts["azure"].replace("2023-11-16 18:17:03", "2199-01-01 00:00:00"))


def bursts(n: int) -> str:
    rows = "".join(f"{k},s,,m,9,1,10,x\n" for k in range(n))
    return (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        + rows
    )


def agents(n: int, sub: int) -> str:
    """A weka session of ``n`` requests, with a sub-agent of ``sub`` ones."""
    one = {"t": 0, "type": "n", "model": "m", "in": 9, "out": 1, "blocks": []}
    called = [{"t": 0, "type": "subagent", "requests": [one] * sub}] if sub else []
    return json.dumps({"id": "a", "block_size": 64, "requests": [one, *called, *[one] * (n - 1)]})


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("burstgpt", bursts(MOST_REQUESTS + 9), MOST_REQUESTS + 2),
        ("bailian", chats([float(k) for k in range(MOST_REQUESTS + 9)], child=True), MOST_REQUESTS + 1),
        ("weka", agents(MOST_REQUESTS + 1, 0), 1),
        ("weka", agents(1, MOST_REQUESTS + 1), 1),
    ],
    ids=["burstgpt", "bailian", "weka", "sub-agent"],
)
def test_a_session_that_cannot_be_numbered_is_refused(trace: Make, name: str, text: str, line: int) -> None:
    """By the file and line where it passes what a record can hold."""
    with pytest.raises(TraceError) as caught:
        trace(name, text)
    ((file, at, what),) = caught.value.found
    assert (Path(file).name, at) == (f"trace.{name}", line)
    assert what == "its session has more than 65,535 requests from here on: split the session"


def test_a_session_of_the_most_requests_is_played(trace: Make, shots: Play) -> None:
    """As long as it may be, or with what is dropped; sub-agents are sessions of their own."""
    sent = shots(trace("burstgpt", bursts(MOST_REQUESTS)))
    assert [shot.turn for shot in sent] == list(range(MOST_REQUESTS))
    assert trace("weka", agents(MOST_REQUESTS, 9)).facts(1.0)["rows"] == MOST_REQUESTS + 9
    longer = bursts(MOST_REQUESTS + 1).replace("\n9,s,,m,9,1,10", "\n9,s,,m,90,1,91")
    assert trace("burstgpt", longer, max_input=9, over="drop").facts(1.0)["dropped"] == 1


def test_a_closed_loop_of_many_sessions_comes_again(tmp_path: Path) -> None:
    """One user's sessions are a chain in the trace, but each is numbered from 0."""
    plan = Plan.make([Load("c", _Once(), Fixed(9, 2))], Phases(window=5.0), 1)
    first = plan.shots[0]
    chain = [
        replace(first, id=k, session=k, parent=k - 1, due_ns=None, after_ns=0, fresh=True)
        for k in range(1, MOST_REQUESTS + 5)
    ]
    write_plan(plan.with_shots((first, *chain)), tmp_path / "plan.parquet")
    assert OwnRun(file=str(tmp_path)).facts(5.0)["rows"] == MOST_REQUESTS + 5


class _Once:
    """One session at 0."""

    def due_times(self, span: float, rng: np.random.Generator) -> Any:
        return np.zeros(1, dtype=np.int64)

    def expected(self, span: float) -> float:
        return 1.0
