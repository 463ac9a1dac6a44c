"""Other tools' names by their formulas, against numbers made by hand (MEASUREMENT 10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from results.compat import FORMULAS
from results.judging import ClassGoal
from results.record import Record
from results.run import RunData
from results.summary import judge

Make = Callable[..., Record]
MakeRun = Callable[..., RunData]


@pytest.fixture
def block(record: Make, run_of: MakeRun) -> dict[str, Any]:
    """Two answers of three tokens and a failure: sends at 1.0 and 1.9 s, ends at 1.16 and 2.3 s.

    The first has gaps of 20 and 40 ms after 100 ms; the second two tokens after 300 ms and one 100 ms later.
    """
    goal = ClassGoal(slo={"ttft": 0.2})
    first = record(0, due_ms=1000, ttft_ms=100, gaps_ms=[20.0, 40.0], n_in=100)
    second = record(1, due_ms=1900, ttft_ms=300, gaps_ms=[100.0], n_in=50, n_out=3, k_first=2)
    second.event_tokens = [2, 1]
    failed = record(2, "http_error", due_ms=3000, after_ms=5, http_status=500)
    found: dict[str, Any] = judge(run_of([first, second, failed], classes={"default": goal}))["compat"]
    return found


SPAN = 1.3
NUMBERS = {
    ("vllm_bench_serve", "duration"): SPAN,
    ("vllm_bench_serve", "completed"): 2,
    ("vllm_bench_serve", "failed"): 1,
    ("vllm_bench_serve", "total_input_tokens"): 150,
    ("vllm_bench_serve", "total_output_tokens"): 6,
    ("vllm_bench_serve", "request_throughput"): 2 / SPAN,
    ("vllm_bench_serve", "output_throughput"): 6 / SPAN,
    ("vllm_bench_serve", "total_token_throughput"): 156 / SPAN,
    ("vllm_bench_serve", "request_goodput"): 1 / SPAN,
    ("vllm_bench_serve", "max_output_tokens_per_s"): 3,
    ("vllm_bench_serve", "max_concurrent_requests"): 2,
    ("vllm_bench_serve", "mean_ttft_ms"): 200,
    ("vllm_bench_serve", "median_ttft_ms"): 200,
    ("vllm_bench_serve", "std_ttft_ms"): 100,
    ("vllm_bench_serve", "p99_ttft_ms"): 298,
    ("vllm_bench_serve", "mean_tpot_ms"): 40,
    ("vllm_bench_serve", "mean_itl_ms"): 160 / 3,
    ("vllm_bench_serve", "median_itl_ms"): 40,
    ("vllm_bench_serve", "mean_e2el_ms"): 280,
    ("aiperf", "request_throughput"): 2 / SPAN,
    ("aiperf", "output_token_throughput"): 6 / SPAN,
    ("aiperf", "goodput"): 1 / SPAN,
    ("aiperf", "good_request_fraction"): 0.5,
    ("guidellm", "request_concurrency"): 0.56 / SPAN,
    ("guidellm", "output_tokens_per_second"): 6 / SPAN,
    ("guidellm", "requests_per_second"): 2 / SPAN,
}


@pytest.mark.parametrize(("tool", "name"), NUMBERS)
def test_numbers_are_the_tools(tool: str, name: str, block: dict[str, Any]) -> None:
    """Rates divide by first send to last completion; statistics are linear and population-wide."""
    assert block[tool][name]["value"] == pytest.approx(NUMBERS[tool, name])


STATISTICS = {
    ("aiperf", "request_latency"): (280, 280),
    ("aiperf", "time_to_first_token"): (200, 200),
    ("aiperf", "time_to_first_output_token"): (200, 200),
    ("aiperf", "inter_token_latency"): (65, 65),
    ("aiperf", "inter_chunk_latency"): (160 / 3, 40),
    ("aiperf", "output_token_throughput_per_user"): ((1000 / 30 + 10) / 2, (1000 / 30 + 10) / 2),
    ("aiperf", "input_sequence_length"): (75, 75),
    ("aiperf", "output_sequence_length"): (3, 3),
    ("guidellm", "request_latency"): (0.28, 0.16),
    ("guidellm", "time_to_first_token_ms"): (200, 100),
    ("guidellm", "time_to_first_output_token_ms"): (200, 100),
    ("guidellm", "time_per_output_token_ms"): ((160 / 3 + 400 / 3) / 2, 160 / 3),
    ("guidellm", "inter_token_latency_ms"): (65, 30),
}


@pytest.mark.parametrize(("tool", "name"), STATISTICS)
def test_distributions_are_the_tools(tool: str, name: str, block: dict[str, Any]) -> None:
    """Mean and median; guidellm takes the nearest rank, so its median of two is the smaller one."""
    mean, median = STATISTICS[tool, name]
    assert block[tool][name]["mean"] == pytest.approx(mean)
    assert block[tool][name]["median"] == pytest.approx(median)


def test_every_name_says_its_formula_and_every_formula_is_used(block: dict[str, Any]) -> None:
    """The ids are those of the table, and none of it is idle."""
    used = {entry["formula"] for names in block.values() for entry in names.values()}
    assert used == set(FORMULAS)


def test_nothing_completed_gives_null_with_a_reason(record: Make, run_of: MakeRun) -> None:
    """Of no sample there is no statistic, and no rate of no time; counts are counts."""
    for records in ([], [record(0, "reset", after_ms=4)], [record(0, "completed", ttft_ms=0, e2e_ms=0)]):
        compat = judge(run_of(records))["compat"]
        assert compat["vllm_bench_serve"]["request_throughput"]["value"] is None
        assert compat["vllm_bench_serve"]["duration"]["reason"]
        assert compat["guidellm"]["inter_token_latency_ms"]["mean"] is None
        assert compat["guidellm"]["inter_token_latency_ms"]["reason"]
        assert "NaN" not in json.dumps(compat)
