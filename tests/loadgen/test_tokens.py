"""Where counts of tokens come from, and that each says where (MEASUREMENT C9, C10, C41)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from loadgen.log import log_of
from loadgen.raw import Raw
from loadgen.targets import OpenAIChat
from loadgen.timeline import Timeline
from loadgen.tokens import CountTokens, counter_of
from results.attribution.usage import Usage, hit_names
from results.record import Outcome, Record

CASES = Path(__file__).parent.parent / "cases" / "loadgen"


def shots(name: str, kind: str) -> list[dict[str, Any]]:
    case = json.loads((CASES / f"{name}.json").read_text())
    return [
        {"kind": case["kind"], **shot}
        for shot in (case, *case["variants"])
        if {"kind": case["kind"], **shot}["kind"] == kind
    ]


def event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def record_of(
    texts: list[str], usage: dict[str, Any] | None = None, count: CountTokens | None = None, **more: Any
) -> Record:
    """Of a chat stream with these texts, one a read, and this usage at its end."""
    reads = [event({"choices": [{"index": 0, "delta": {"content": text}, **more}]}) for text in texts]
    reads.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    if usage is not None:
        reads.append(event({"choices": [], "usage": usage}))
    reads.append(b"data: [DONE]\n\n")
    raw = Raw(status=200, ending="complete", reads=log_of(range(len(reads)), [0] * len(reads), reads))
    timeline = Timeline(OpenAIChat("m"))
    timeline.replay(raw, raw.users, 0)
    return timeline.close(Record(0, "c", "window", Outcome.UNKNOWN), 0, None, count).record


@pytest.mark.parametrize("shot", shots("C-12", "usage"), ids=lambda shot: shot["id"])
def test_the_cache_counters_of_a_stream_are_those_of_its_usage(shot: dict[str, Any]) -> None:
    """C-12 through the client: totals with the cached part inside; what is not said is None, never 0."""
    inputs, want = shot["inputs"], shot["expect"]
    records = [record_of(["a"], usage) for usage in inputs.get("usages", [inputs.get("usage")])]
    names = hit_names(Usage(r.prompt_total, r.cache_read, r.cache_write) for r in records)
    if "usages" in inputs:
        assert {key: round(names[key] or 0, 3) for key in want} == want
        return
    (record,) = records
    assert (record.prompt_total, record.cache_read, record.cache_write) == (
        want["prompt_total"],
        want["cache_read"],
        want["cache_write"],
    )
    assert record.n_in == want["prompt_total"]
    assert names["hit_token_weighted"] == want["hit"]


@pytest.fixture
def runs_and_bos() -> Tokenizer:
    """Each run of spaces and each run of others is a token; every call puts a BOS in front."""
    tokenizer = Tokenizer(WordLevel({"<bos>": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex(" +|[^ ]+"), "isolated")
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return tokenizer


def test_special_tokens_are_not_counted(runs_and_bos: Tokenizer) -> None:
    """C-21/bos: four events of one token each, and not of two."""
    (shot,) = (s for s in shots("C-21", "tokens") if s["id"] == "C-21/bos")
    texts, want = shot["inputs"]["event_texts"], shot["expect"]
    assert len(runs_and_bos.encode("a").ids) == 2, "the trap is set"
    record = record_of(texts, count=counter_of(runs_and_bos))
    assert (record.n_out, record.n_out_source) == (want["total"], "tokenizer")
    assert record.event_tokens == want["per_event"]


def test_asked_and_served_lengths_are_both_kept() -> None:
    """C-21/served-length: the served one is usage's."""
    (shot,) = (s for s in shots("C-21", "tokens") if s["id"] == "C-21/served-length")
    record = record_of(["a"], shot["inputs"]["usage"])
    record.n_in_asked = shot["inputs"]["isl_asked"]
    assert (record.n_in_asked, record.n_in) == (shot["expect"]["isl_asked"], shot["expect"]["isl_served"])


IDS = {"token_ids": [7, 8]}
LOGPROBS = {"logprobs": {"content": [{"token": "a"}]}}


@pytest.mark.parametrize(
    ("usage", "more", "tokenizer", "n_out", "source", "events"),
    [
        ({"completion_tokens": 9}, IDS, True, 9, "usage", [2, 2]),
        ({"completion_tokens": 2}, {}, True, 2, "usage", [1, 1]),
        ({"completion_tokens": 2.0}, {}, True, 2, "usage", [1, 1]),
        ({"completion_tokens": 9}, {}, True, 9, "usage", None),
        ({"completion_tokens": None}, IDS, True, 4, "ids", [2, 2]),
        ({"completion_tokens": 0}, {}, True, 0, "usage", None),
        (None, IDS, True, 4, "ids", [2, 2]),
        (None, LOGPROBS, True, 2, "ids", [1, 1]),
        (None, {}, True, 3, "tokenizer", None),
        (None, {}, False, 2, "events", None),
        ({"prompt_tokens": 3}, {}, False, 2, "events", None),
        ({}, {}, False, 2, "events", None),
        *[
            ({"completion_tokens": odd}, {}, False, 2, "events", None)
            for odd in (-1, 2.5, "2", [2], {"n": 2}, True, 10**12, 10**30, float("nan"))
        ],
    ],
)
def test_the_best_source_at_hand_is_taken_and_named(
    usage: dict[str, Any] | None, more: dict[str, Any], tokenizer: bool, n_out: int, source: str, events: Any
) -> None:
    """C9: usage, ids or logprobs, a tokenizer over the whole, events; what is no count is not said."""
    count: CountTokens | None = (lambda text: 3) if tokenizer else None
    record = record_of(["a", " b"], usage, count, **more)
    assert (record.n_out, record.n_out_source, record.event_tokens) == (n_out, source, events)


def test_a_wish_is_never_a_count() -> None:
    """C9: what was asked for says nothing of what came."""
    record = record_of([])
    record.n_out_asked = 64
    assert (record.n_out, record.n_out_source) == (0, "events")


def test_usage_merges_by_field() -> None:
    """C9: the last value that is not null wins, also inside details; an empty block changes nothing."""
    blocks: list[Any] = [
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
        {"prompt_tokens": None, "completion_tokens": 2, "prompt_tokens_details": None},
        {},
        None,
        "usage",
        {"completion_tokens": 3, "prompt_tokens_details": {"audio_tokens": 0}},
    ]
    reads = [event({"choices": [], "usage": usage}) for usage in blocks] + [b"data: [DONE]\n\n"]
    raw = Raw(status=200, ending="complete", reads=log_of([0] * len(reads), [0] * len(reads), reads))
    timeline = Timeline(OpenAIChat("m"))
    timeline.replay(raw, raw.users, 0)
    record = timeline.close(Record(0, "c", "window", Outcome.UNKNOWN), 0).record
    assert (record.n_in, record.n_out, record.cache_read) == (5, 3, 4)


def test_a_whole_answer_without_counts_has_none() -> None:
    """Nothing says how long it is: not 0, not the number of its events."""
    for more, n_out, source in (({}, None, None), (IDS, 2, "ids"), (LOGPROBS, 1, "ids")):
        choice = {"index": 0, "message": {"content": "a b"}, "finish_reason": "stop", **more}
        body = json.dumps({"choices": [choice]}).encode()
        raw = Raw(status=200, headers={"content-type": "application/json"}, ending="complete")
        raw.reads.add(0, 0, body)
        timeline = Timeline(OpenAIChat("m"))
        timeline.replay(raw, [0], 0)
        record = timeline.close(Record(0, "c", "window", Outcome.UNKNOWN), 0).record
        assert (record.outcome, record.n_out, record.n_out_source) == ("completed", n_out, source)
        assert record.event_tokens is None
