"""The public traces that HEADRACE_DATA holds: what their READMEs say of them must come out of the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals import Constant
from loadgen.plan import Load, Phases, Plan, Shot
from loadgen.streams import stream
from loadgen.text import TextMaker
from loadgen.tracefiles import TRACES, Trace
from loadgen.tracefiles.recording import Runs, blocks_in, common

NS = 1_000_000_000
Play = Callable[..., tuple[Shot, ...]]
HOUR = 3600.0


def load(name: str, file: Path, **settings: Any) -> Trace:
    return TRACES[name](file=str(file), **settings)  # type: ignore[call-arg]


def gaps(trace: Trace) -> np.ndarray[Any, Any]:
    return np.diff(trace.due_times(1e6, stream(0, "x"))) / NS


def cv(values: np.ndarray[Any, Any]) -> float:
    return float(values.std() / values.mean())


def dispersion(trace: Trace, width: float = 10.0) -> float:
    """Variance over mean of the counts in windows of ``width`` s."""
    due = trace.due_times(1e6, stream(0, "x")) / NS
    counts = np.bincount((due / width).astype(int))[:-1]
    return float(counts.var() / counts.mean())


def ids(runs: Runs) -> Iterable[int]:
    return (i for first, n in runs for i in range(first, first + n))


def hit_rate(shots: tuple[Shot, ...], *, full_only: bool) -> float:
    """Share of blocks that an endless cache of everything before holds: leading ones only."""
    seen: set[int] = set()
    hits = blocks = 0
    for shot in shots:
        (part,) = shot.prompt
        own = list(ids(part.blocks))
        own = own[: part.tokens // part.block_tokens] if full_only else own
        blocks += len(own)
        hits += next((k for k, i in enumerate(own) if i not in seen), len(own))
        seen.update(own)
    return hits / blocks


@pytest.mark.parametrize(
    ("file", "rows", "rate", "share", "full"),
    [("conversation", 12_031, 3.40, 36.6, 38.2), ("synthetic", 3_993, 3.91, 64.0, 65.9)],
)
def test_mooncake_keeps_its_hit_rate(
    data: Path, shots: Play, file: str, rows: int, rate: float, share: float, full: float
) -> None:
    """Counts and rate of the README, and the unbounded hit rate of its blocks; over whole blocks, the only
    ones that an engine can hit, it is a little higher."""
    made = load("mooncake", data / "mooncake" / f"{file}_trace.jsonl")
    sent = shots(made, span=HOUR)
    assert len(sent) == rows == made.facts(HOUR)["rows"]
    assert round(rows / made.facts(HOUR)["trace_s"], 2) == rate
    assert round(100 * hit_rate(sent, full_only=False), 1) == share
    assert round(100 * hit_rate(sent, full_only=True), 1) == full


def test_mooncake_buckets_become_a_stream(data: Path) -> None:
    """As they are, ten requests come at once each 3 s. Spread, no two do, and they are no burstier than
    independent arrivals in windows below a second; over ten buckets they are as bursty as before."""
    path = data / "mooncake" / "conversation_trace.jsonl"
    raw, smooth = load("mooncake", path, spread=0.0), load("mooncake", path)
    assert smooth.facts(HOUR)["quantum_s"] == 3.0
    assert cv(gaps(raw)) > 2.5
    assert (gaps(smooth) > 0).mean() > 0.999
    assert cv(gaps(smooth)) < 1.0
    assert dispersion(smooth, 0.5) < 1.2 < dispersion(raw, 0.5)
    assert abs(dispersion(smooth, 30.0) - dispersion(raw, 30.0)) < 0.2


def test_mooncake_synthetic_is_poisson(data: Path) -> None:
    """Times of a millisecond are left as they are: cv 1.01."""
    made = load("mooncake", data / "mooncake" / "synthetic_trace.jsonl")
    assert round(cv(gaps(made)), 2) == 1.01


@pytest.mark.parametrize(
    ("file", "rows", "rate", "spread", "p50"),
    [("code", 8_819, 2.57, 13.2, 1469), ("conv", 19_366, 5.53, 1.09, 1020)],
)
def test_azure_keeps_its_arrivals(
    data: Path, shots: Play, file: str, rows: int, rate: float, spread: float, p50: int
) -> None:
    """Counts, rate, spread of the gaps and median prompt of the README."""
    made = load("azure", data / "azure_llm_2023" / f"AzureLLMInferenceTrace_{file}.csv")
    sent = shots(made, span=HOUR)
    assert len(sent) == rows
    assert round(rows / made.facts(HOUR)["trace_s"], 2) == rate
    assert round(cv(gaps(made)), 1 if spread > 10 else 2) == spread
    assert round(float(np.median([s.n_in_asked for s in sent]))) == p50


def test_vidur_lengths(data: Path, shots: Play) -> None:
    """28,257 pairs, prefill p50 2,730 and decode p50 167, each with a text of its own."""
    file = data / "vidur_arxiv" / "arxiv_summarization_lengths.csv"
    made = load("vidur", file, arrival=Constant(10.0))
    sent = shots(made, span=2825.65)
    assert len(sent) == 28_257 == made.facts(1.0)["rows"]
    assert np.median([s.n_in_asked for s in sent]) == 2730
    assert np.median([s.n_out_asked for s in sent]) == 167


@cache
def weka(data: Path) -> tuple[Trace, tuple[Shot, ...]]:
    """All 710 sessions, one a second, and what they send."""
    made = load("weka", data / "weka_claude_code" / "traces_compact.jsonl.gz", arrival=Constant(1.0))
    return made, Plan.make([Load("c", made, made)], Phases(window=710.0), 3).shots


def test_weka_counts(data: Path) -> None:
    """710 sessions, 49,334 requests, 63 sub-agents; prompts, answers and think times of the README."""
    made, sent = weka(data)
    facts = made.facts(710.0)
    assert (facts["sessions"], facts["rows"], facts["subagents"]) == (710, 49_334, 63)
    assert len(sent) == 49_334
    assert len({s.session for s in sent}) == 710 + 63
    assert sum(s.due_ns is not None for s in sent) == 710
    assert np.median([s.n_in_asked for s in sent]) == 103_659
    assert np.median([s.n_out_asked for s in sent]) == 216
    think = np.array([s.after_ns for s in sent if s.after_ns is not None]) / NS
    assert abs(np.median(think) - 10) < 1
    assert 100 < np.percentile(think, 90) < 200
    assert all(sum(part.tokens for part in s.prompt) == s.n_in_asked for s in sent)


def test_weka_prompts_grow_as_in_the_trace(data: Path) -> None:
    """97.2 % of consecutive requests only append: the whole blocks of the one before, or all but its last,
    lead the next one."""
    sent = weka(data)[1]
    appends, total = 0, 0
    for shot in sent:
        if shot.turn and shot.parent is not None:
            before = sent[shot.parent].prompt[0].blocks
            total += 1
            appends += common(before, shot.prompt[0].blocks) >= blocks_in(before) - 1
    assert round(appends / total, 2) == 0.97


def test_weka_sessions_share_only_a_warm_prefix(data: Path, shots: Play) -> None:
    """No key is in two sessions, unless some are warm: then that share of them has the one of the head."""
    file = data / "weka_claude_code" / "sample30.jsonl"
    cold = shots(load("weka", file, arrival=Constant(1.0)), span=30.0)
    mains = _mains(cold)
    keys = Counter(
        key for shots_of in mains.values() for key in {p.text_key for s in shots_of for p in s.prompt}
    )
    assert len(mains) == 30
    assert max(keys.values()) == 1
    warm = _mains(shots(load("weka", file, arrival=Constant(1.0), warm_prefix=0.5, seed=4), span=30.0))
    shared = [s for own in warm.values() for s in own if s.prompt[0].role == "system"]
    assert 6 <= len({s.session for s in shared}) <= 24
    assert len({s.prompt[0].text_key for s in shared}) == 1


def _mains(shots: tuple[Shot, ...]) -> dict[int, list[Shot]]:
    """The requests of each session that is no sub-agent."""
    opening = {s.session for s in shots if s.due_ns is not None}
    return {session: [s for s in shots if s.session == session] for session in opening}


def test_thinning_keeps_the_gaps_inside_sessions(data: Path, shots: Play) -> None:
    """A tenth of the sessions, each whole, with the idle times that it has."""
    whole, every = weka(data)
    some = replace(whole, thin=0.1, seed=1)  # type: ignore[type-var]
    kept = some.facts(10.0)["kept_sessions"]
    assert 45 <= kept <= 97
    by_key: dict[str, list[int | None]] = {}
    for shot in every:
        by_key.setdefault(shot.prompt[0].text_key, []).append(shot.after_ns)
    thinned: dict[str, list[int | None]] = {}
    for shot in shots(some, span=float(kept)):
        thinned.setdefault(shot.prompt[0].text_key, []).append(shot.after_ns)
    assert len(thinned) == kept
    assert all(by_key[key] == gaps for key, gaps in thinned.items())


def test_thinned_and_compressed_arrivals(data: Path) -> None:
    """Half of them at twice the speed come at the same rate."""
    path = data / "azure_llm_2023" / "AzureLLMInferenceTrace_conv.csv"
    made = load("azure", path, thin=0.5, compress=2.0, seed=3)
    due = made.due_times(1e6, stream(0, "x"))
    assert abs(len(due) / (due[-1] / NS) - 5.53) < 0.2


def test_texts_of_mt_bench_and_swe_agent(data: Path, shots: Play) -> None:
    """160 + 80 questions; transcripts whose requests are growing prefixes."""
    mt = data / "mt_bench_prompts"
    for file, turns in (("mt_bench_question.jsonl", 160), ("vicuna_bench_question.jsonl", 80)):
        made = load("mt_bench", mt / file, arrival=Constant(1.0), output=16)
        assert len(shots(made, span=80.0)) == turns
    made = load("swe_agent", data / "swe_agent_demos", arrival=Constant(1.0))
    sent = shots(made, span=4.0)
    assert made.facts(4.0)["sessions"] == 4
    for shot in sent:
        if shot.parent is not None:
            assert shot.prompt[: len(sent[shot.parent].prompt)] == sent[shot.parent].prompt


def test_texts_of_equal_ids_are_equal(data: Path, shots: Play) -> None:
    """Rule b on the words that are sent: an endless cache of blocks of words hits as the ids say."""
    sent = shots(load("mooncake", data / "mooncake" / "synthetic_trace.jsonl", limit=150), span=HOUR)
    maker = TextMaker()
    held: set[tuple[str, ...]] = set()
    hits = blocks = 0
    for shot in sent:
        words = maker.of(shot.prompt[0]).split(" ")
        assert len(words) == shot.n_in_asked
        heads = [tuple(words[: k + 512][-1024:]) for k in range(0, len(words) - 511, 512)]
        hits += next((k for k, head in enumerate(heads) if head not in held), len(heads))
        blocks += len(heads)
        held.update(heads)
    assert hits / blocks == hit_rate(sent, full_only=True) > 0.05
