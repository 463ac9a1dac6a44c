"""The replay rules: scaling, limits, and what is said of them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Shot
from loadgen.streams import stream
from loadgen.tracefiles import Trace, TraceError

NS = 1_000_000_000
Make = Callable[..., Trace]
Play = Callable[..., tuple[Shot, ...]]


def poisson_trace(n: int = 400, rate: float = 5.0) -> str:
    """A mooncake file of random arrivals."""
    at = np.cumsum(stream(1, "trace").exponential(1 / rate, n))
    rows = [
        {"timestamp": int(t * 1000), "input_length": 100 + k, "output_length": 5, "hash_ids": [k]}
        for k, t in enumerate(at)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def agents(n: int = 200) -> str:
    """A weka file of sessions with three requests each, 10 s apart."""

    def request(k: int) -> dict[str, Any]:
        more = {"api_time": 1.0, "think_time": 9.0} if k else {"api_time": 1.0, "think_time": 0.0}
        blocks = [[1, 2 + k]]
        return {
            "t": 10.0 * k,
            "type": "n",
            "model": "m",
            "in": 128 + 64 * k,
            "out": 3,
            "blocks": blocks,
        } | more

    rows = [{"id": f"s{i}", "block_size": 64, "requests": [request(k) for k in range(3)]} for i in range(n)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_thinning_keeps_a_seeded_share_of_requests(trace: Make) -> None:
    """About the share, the same for one seed, and a smaller share is part of a larger one."""
    text = poisson_trace()
    due = {
        (share, seed): set(
            trace("mooncake", text, thin=share, seed=seed).due_times(1e6, stream(0, "x")).tolist()
        )
        for share in (0.1, 0.3, 1.0)
        for seed in (1, 2)
    }
    assert abs(len(due[0.3, 1]) - 0.3 * 400) < 4 * np.sqrt(400 * 0.21)
    assert due[0.1, 1] < due[0.3, 1] < due[1.0, 1]
    assert due[0.3, 1] != due[0.3, 2]


def test_thinning_keeps_whole_sessions_and_their_gaps(trace: Make, shots: Play) -> None:
    """A session is kept with all of its requests and think times, or not at all."""
    made = trace("weka", agents(), thin=0.25, arrival=Constant(1.0))
    sent = shots(made, span=20.0)
    kept = made.facts(20.0)["kept_sessions"]
    assert 30 < kept < 70
    assert len(sent) == 60
    assert [s.after_ns for s in sent] == [None, 9 * NS, 9 * NS] * 20


def test_compression_divides_times_and_think_times(trace: Make, shots: Play) -> None:
    """Twice as fast, idle times included; below 1 it is slower."""
    for factor in (2.0, 0.5):
        plain, fast = (shots(trace("bailian", compress=c), span=200.0) for c in (1.0, factor))
        for one, other in zip(plain, fast, strict=True):
            for key in ("due_ns", "after_ns"):
                was, is_ = getattr(one, key), getattr(other, key)
                assert (was is None) == (is_ is None)
                assert was is None or abs(is_ - was / factor) <= 1


def test_a_replay_starts_inside_the_trace(trace: Make) -> None:
    """`start_at` leaves out what came before, and what it finds there is at 0."""
    made = trace("mooncake", spread=0.0, start_at=3.0, compress=3.0)
    assert made.due_times(100.0, stream(0, "x")).tolist() == [0, 0, 1_000_333_333]
    assert made.facts(100.0)["before_start_at"] == 2


def test_only_what_is_due_in_time_is_planned(trace: Make, shots: Play) -> None:
    """The rest is counted."""
    made = trace("mooncake", spread=0.0)
    assert len(shots(made, span=3.001)) == 4
    assert made.expected(3.001) == 4
    facts = made.facts(3.001)
    assert (facts["planned_requests"], facts["beyond_end_sessions"], facts["last_due_s"]) == (4, 1, 6.001)


def test_a_limit_keeps_the_first(trace: Make) -> None:
    """By time, after thinning."""
    due = trace("mooncake", spread=0.0, limit=3).due_times(100.0, stream(0, "x"))
    assert due.tolist() == [0, 0, 3 * NS]


def test_long_requests_are_refused_with_their_lines(trace: Make) -> None:
    """By default, with the number and what to do."""
    with pytest.raises(TraceError) as caught:
        trace("mooncake", max_input=600, max_output=6)
    assert [(line, what) for _, line, what in caught.value.found] == [
        (1, "1,100 tokens are above max_input 600: raise it, or say over: drop or over: cut"),
        (2, "1,024 tokens are above max_input 600: raise it, or say over: drop or over: cut"),
        (3, "7 tokens are above max_output 6: raise it, or say over: drop or over: cut"),
        (5, "8 tokens are above max_output 6: raise it, or say over: drop or over: cut"),
    ]
    assert trace("mooncake", max_input=600, max_output=6, start_at=3.0, over="cut").facts(9.0)["cut"] == 2


def test_long_requests_are_dropped_or_cut(trace: Make, shots: Play) -> None:
    """Dropped ones leave no gap in the numbering; a cut prompt keeps its leading blocks."""
    dropped, cut = (trace("mooncake", max_input=600, over=over, spread=0.0) for over in ("drop", "cut"))
    assert [s.n_in_asked for s in shots(dropped)] == [600, 10, 512]
    assert [s.n_in_asked for s in shots(cut)] == [600, 600, 600, 10, 512]
    assert shots(cut)[0].prompt[0].blocks == ((0, 2),)
    assert (dropped.facts(9.0)["dropped"], cut.facts(9.0)["cut"]) == (2, 2)


def test_a_session_goes_on_without_what_was_dropped(trace: Make, shots: Play) -> None:
    """The request after a dropped one follows the one before it, after both think times."""
    sent = shots(trace("weka", max_input=300, over="drop"), span=0.5)
    assert [(s.n_in_asked, s.parent, s.after_ns) for s in sent] == [
        (200, None, None),
        (130, 0, 1_500_000_000),
        (260, 1, 2 * NS),
    ]
    text = agents(1).replace('"in": 192, "out": 3', '"in": 192, "out": 30')
    sent = shots(trace("weka", text, max_output=9, over="drop"), span=0.5)
    assert [(s.n_in_asked, s.parent, s.after_ns) for s in sent] == [(128, None, None), (256, 0, 18 * NS)]


def test_a_turn_whose_live_answer_was_dropped_goes_with_it(trace: Make, shots: Play) -> None:
    """There is no answer to send as its history."""
    sent = shots(trace("sharegpt", history="live", max_output=6, over="drop"), span=1.5)
    assert [len(s.prompt) for s in sent] == [1, 1]


def test_the_seed_of_the_run_decides_unless_the_trace_has_one(trace: Make) -> None:
    """`seeded` gives the run's seed to a trace without its own."""
    text = poisson_trace()
    free, own = trace("mooncake", text, thin=0.2), trace("mooncake", text, thin=0.2, seed=5)
    assert free.seeded(5) == own
    assert own.seeded(6) == own
    assert len({tuple(free.seeded(seed).due_times(1e6, stream(0, "x"))) for seed in range(5)}) == 5


def test_facts_are_json_and_say_what_was_done(trace: Make) -> None:
    """One sentence for each thing that differs from the trace."""
    made = trace("mooncake", thin=1.0, compress=2.0, start_at=0.5, max_output=6, over="cut", seed=3)
    facts = json.loads(json.dumps(made.facts(1.0)))
    says = " ".join(facts["says"])
    for words in (
        "rounded to 3.0005 s",
        "Thinned",
        "divided by 2",
        "0.5 s into",
        "cut to max",
        "not planned",
    ):
        assert words in says, says
    assert trace("azure").facts(1e4)["says"] == []


def test_the_same_file_gives_the_same_plan(trace: Make, shots: Play) -> None:
    """Reading it again, or from a pickled trace, changes nothing; equal traces are equal."""
    one = trace("bailian")
    assert trace("bailian") == one == pickle.loads(pickle.dumps(one)) == replace(one)  # type: ignore[type-var]
    assert shots(pickle.loads(pickle.dumps(one))) == shots(one)


def test_a_file_that_changed_is_read_again(trace: Make, shots: Play, texts: dict[str, str]) -> None:
    """What was read before is kept only as long as the file is the same."""
    assert len(shots(trace("mooncake"))) == 5
    assert len(shots(trace("mooncake", texts["mooncake"].split("\n", 1)[0] + "\n"))) == 1


@pytest.mark.parametrize("seed", range(4))
def test_what_is_refused_does_not_depend_on_the_seed(trace: Make, seed: int) -> None:
    """A run without a seed draws one after the scenario was checked; then nothing new may be found."""
    with pytest.raises(TraceError) as caught:
        trace("mooncake", thin=0.2, limit=1, max_input=1000, seed=seed)
    assert [line for _, line, _ in caught.value.found] == [1, 2]
    made = trace("mooncake", thin=0.001, spread=0.0).seeded(seed)
    assert made.facts(100.0)["kept_sessions"] == 1
    assert [
        line for _, line, _ in made.misfits(3.5, lambda given, asked: ["long"] if given > 10 else [])
    ] == [
        1,
        2,
        3,
    ]


def test_only_what_can_be_played_is_looked_at(trace: Make) -> None:
    """Before `start_at`, behind `limit` and after the end nothing is too long."""
    trace("mooncake", start_at=3.0, max_input=600)
    with pytest.raises(TraceError, match=r"trace\.mooncake:1: 1,100 tokens"):
        trace("mooncake", limit=1, max_input=600)
    agents_ = trace("weka", agents(), arrival=Constant(1.0))
    assert len({line for _, line, _ in agents_.misfits(1.0, lambda given, asked: ["long"])}) < 20
