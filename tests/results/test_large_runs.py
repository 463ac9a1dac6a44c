"""A run is looked at some requests at a time: where it is cut changes nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results import goodput, token_events
from results.judging import ClassGoal
from results.rates import per_second, token_times
from results.record import Outcome, Record
from results.run import RunData, frame
from results.stats import bootstrap
from results.stats.bootstrap import QuantileDraws, draw, mean_interval
from results.stats.distribution import Distribution
from results.summary import judge, summary_bytes
from results.token_events import Samples, icl, itl, itl_seen, stall

GAPS = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 4)), max_size=6)
ANSWERS = st.lists(st.tuples(GAPS, st.sampled_from(["given", "one each", "unknown"])), max_size=7)


def answered(answers: Any) -> pd.DataFrame:
    """Records of answers, each of (µs to the next event, tokens of it)."""
    records = []
    for id, (events, told) in enumerate(answers):
        record = Record(id, "c", "window", Outcome.COMPLETED)
        tokens = [max(1, n) if k == 0 else n for k, (_, n) in enumerate(events)]
        record.event_us = [0, *np.cumsum([us for us, _ in events]).tolist()][: len(events)]
        record.event_tokens = tokens if told == "given" else None
        record.n_out = {"given": sum(tokens), "one each": len(events), "unknown": None}[told]
        record.first_token = 1_000_000_000 * id if events else None
        records.append(record)
    return frame(records)


def one_by_one(data: pd.DataFrame, metric: str) -> list[tuple[float, int]]:
    """By the definitions of MEASUREMENT 3, request after request."""
    found = []
    columns = zip(data["event_us"], data["event_tokens"], data["n_out"], strict=True)
    for row, (us, told, n_out) in enumerate(columns):
        counts = told if told is not None and len(told) == len(us) else None
        if counts is None and len(us) == n_out:
            counts = [1] * len(us)
        for k in range(1, len(us)):
            gap = (int(us[k]) - int(us[k - 1])) * 1e-6
            if metric == "icl":
                found.append((gap, row))
            elif counts is not None and counts[k] > 0:
                n = int(counts[k])
                found += [(gap / n, row)] * n if metric == "itl" else [(gap, row), *[(0.0, row)] * (n - 1)]
    return found


@settings(max_examples=80, deadline=None)
@given(ANSWERS, st.integers(1, 4))
def test_gaps_are_those_of_each_request(answers: Any, chunk: int) -> None:
    """Whatever is known of their tokens, and wherever the frame is cut."""
    data = answered(answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_events, "CHUNK", chunk)
        for metric, of in (("icl", icl), ("itl", itl), ("itl_seen", itl_seen)):
            samples = of(data)
            wanted = one_by_one(data, metric)
            assert list(zip(samples.values.tolist(), samples.owners.tolist(), strict=True)) == wanted
        gaps = one_by_one(data, "icl")
        largest = [max((gap for gap, of in gaps if of == row), default=np.nan) for row in data["id"]]
        assert np.array_equal(stall(data), np.array(largest), equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(ANSWERS, st.integers(1, 4))
def test_tokens_of_each_second_are_those_of_the_events(answers: Any, chunk: int) -> None:
    """In whole, by second, and within two spans."""
    data = answered(answers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_events, "CHUNK", chunk)
        times, tokens = token_times(data)
        spans = ((0, 2_000_000_000), (3_000_000_000, 9_000_000_000))
        inside = [(t, n) for t, n in zip(times, tokens, strict=True) if any(a <= t < b for a, b in spans)]
        seconds = per_second(data, spans)
    known = data["n_out"].fillna(data["event_us"].map(len))[data["event_us"].map(len) > 0]
    assert tokens.sum() == pytest.approx(known.sum())
    assert seconds.sum() == pytest.approx(sum(n for _, n in inside))
    for second, found in enumerate(seconds):
        assert found == pytest.approx(sum(n for t, n in inside if int(t * 1e-9) == second))


def test_a_summary_does_not_depend_on_where_it_is_cut(
    run_with_everything: RunData, its_summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte."""
    for module, name in ((token_events, "CHUNK"), (goodput, "AT_ONCE")):
        monkeypatch.setattr(module, name, 7)
    monkeypatch.setattr(bootstrap, "AT_ONCE", 1000)
    assert summary_bytes(judge(run_with_everything)) == summary_bytes(its_summary)


def test_draws_do_not_depend_on_where_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, sums and quantile bounds, of more requests than are drawn one by one."""
    rng = np.random.default_rng(2)
    owners = np.repeat(np.arange(9000, dtype=np.int32), 3)
    values = np.round(rng.lognormal(0, 1, len(owners)), 2)

    def found() -> tuple[Any, ...]:
        draws = QuantileDraws.of(values, owners, 9000, draw(3000).weights()[:, :3000])
        assert draws is not None
        return mean_interval(values, owners, 9000), [draws.interval(q) for q in (0.5, 0.99)]

    whole = found()
    monkeypatch.setattr(bootstrap, "AT_ONCE", 500)
    draw.cache_clear()
    assert found() == whole


def test_what_a_table_was_made_of_is_let_go(record: Callable[..., Record]) -> None:
    """And made again for whoever asks for more."""
    made = 0

    def make() -> Samples:
        nonlocal made
        made += 1
        return Samples(np.arange(100.0), np.arange(100, dtype=np.int32))

    found = Distribution(make)
    table = found.table()
    assert (made, found.n, found.estimate("p50").value) == (1, 100, table["p50"])
    assert "samples" not in vars(found)
    assert found.estimate("p37").value == pytest.approx(36.63)
    assert made == 2


def test_judging_takes_little_more_than_the_records_themselves(
    record: Callable[..., Record], run_of: Callable[..., RunData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 3 KB a request of 50 tokens on top of them, beside what is looked at together at any time."""
    n = 6000
    gaps = [[10 + (i + k) % 5 for k in range(49)] for i in range(5)]
    records = [record(i, due_ms=i, ttft_ms=50 + i % 7, gaps_ms=gaps[i % 5]) for i in range(n)]
    data = run_of(records, n / 1000, classes={"default": ClassGoal(slo={"itl": 0.05, "ttft": 1.0})})
    for module, name, size in (
        (token_events, "CHUNK", 300),
        (goodput, "AT_ONCE", 300),
        (bootstrap, "AT_ONCE", 20_000),
    ):
        monkeypatch.setattr(module, name, size)
    judge(data)  # some things are kept from the first time on
    tracemalloc.start()
    judge(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3000 * n
