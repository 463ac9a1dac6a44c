"""Provider counters in one normal form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from results.attribution.usage import DIALECTS, Usage, generated, hit_names, normalise, reasoning

CASE = json.loads((Path(__file__).parents[2] / "cases" / "attribution" / "C-12.json").read_text())
SHOTS = [CASE, *CASE["variants"]]


@pytest.mark.parametrize("shot", SHOTS, ids=[shot["id"] for shot in SHOTS])
def test_case_c12(shot: dict[str, Any]) -> None:
    """C-12: every usage block, and the hit names of a run, give the known numbers."""
    inputs, want = shot["inputs"], shot["expect"]
    usages = [normalise({"usage": usage}) for usage in inputs.get("usages", [inputs.get("usage")])]
    names = hit_names(usages)
    if "usages" in inputs:
        assert {key: round(names[key] or 0, 3) for key in want} == want
        return
    (usage,) = usages
    assert (usage.prompt_total, usage.cache_read, usage.cache_write) == (
        want["prompt_total"],
        want["cache_read"],
        want["cache_write"],
    )
    assert names["hit_token_weighted"] == want["hit"]


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (
            {"usage": {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 64}}},
            Usage(90, 64, None),
        ),
        (
            {"usage": {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36, "prompt_tokens": 100}},
            Usage(100, 64, None),
        ),
        ({"timings": {"cache_n": 30, "prompt_n": 12}, "usage": {"prompt_tokens": 42}}, Usage(42, 30, None)),
        (
            {"usage": {"inputTokens": 10, "cacheReadInputTokens": 80, "cacheWriteInputTokens": 10}},
            Usage(100, 80, 10),
        ),
        ({"usageMetadata": {"promptTokenCount": 50}}, Usage(50, None, None)),
        (
            {
                "usage": {
                    "prompt_tokens": 100,
                    "prompt_tokens_details": {"cached_tokens": 48, "created_cache_tokens": 32},
                }
            },
            Usage(100, 48, 32),
        ),
        ({"usage": {"prompt_tokens": 100, "created_cache_tokens": 32}}, Usage(100, None, 32)),
        (  # a part of the sum is missing: the whole is said elsewhere
            {"usage": {"prompt_cache_hit_tokens": 64, "prompt_tokens": 100}},
            Usage(100, 64, None),
        ),
        ({"timings": {"prompt_n": 12}, "usage": {"prompt_tokens": 42}}, Usage(42, None, None)),
        ({"timings": {"prompt_n": 12}}, Usage(12, None, None)),
        ({"timings": {"prompt_n": "12"}, "usage": {"prompt_tokens": 42}}, Usage(42, None, None)),
        (
            {"usage": {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 0}}},
            Usage(90, 0, None),
        ),
        (
            {
                "usage": {
                    "input_tokens": 90,
                    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 20},
                }
            },
            Usage(90, 64, 20),
        ),
        ({"usage": {"input_tokens": 50, "cache_read_input_tokens": 900}}, Usage(950, 900, None)),
        ({"usage": {"input_tokens": 50, "cache_read_input_tokens": None}}, Usage(50, None, None)),
        ({"usage": {"prompt_tokens": 50, "cached_tokens": 30}}, Usage(50, 30, None)),
        ({"usage": {"prompt_tokens": 50, "num_prefix_cache_hit_tokens": 32}}, Usage(50, 32, None)),
        ({"usage": {"prompt_tokens": 50, "cached_prompt_text_tokens": 32}}, Usage(50, 32, None)),
        (  # a gateway in OpenAI's shape, which keeps Anthropic's counters: they are inside its total
            {
                "usage": {
                    "prompt_tokens": 1000,
                    "cache_read_input_tokens": 900,
                    "cache_creation_input_tokens": 50,
                }
            },
            Usage(1000, 900, 50),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 50,
                    "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
                }
            },
            Usage(50, 8, 4),
        ),
        (
            {"usageMetadata": {"promptTokenCount": 50, "cachedContentTokenCount": 8}},
            Usage(50, 8, None),
        ),
        ({"usage": {"total_input_tokens": 50, "total_cached_tokens": 8}}, Usage(50, 8, None)),
        ({"meta_info": {"prompt_tokens": 50, "cached_tokens": 8}}, Usage(50, 8, None)),
        (
            {
                "gen_ai.usage.input_tokens": 100,
                "gen_ai.usage.cache_read.input_tokens": 48,
                "gen_ai.usage.cache_creation.input_tokens": 32,
            },
            Usage(100, 48, 32),
        ),
        *[
            ({"usage": {"prompt_tokens": odd}}, Usage(None, None, None))
            for odd in (-1, 1.5, "1", True, [1], {"n": 1}, 2**32)
        ],
        ({"usage": None}, Usage(None, None, None)),
        ({}, Usage(None, None, None)),
        (
            {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": "7"}}},
            Usage(10, None, None),
        ),
    ],
)
def test_shapes(body: dict[str, Any], usage: Usage) -> None:
    """Each shape is known by its keys; what is absent or no count is None."""
    assert normalise(body) == usage


def test_uncached_is_total_minus_read() -> None:
    """``uncached`` needs both counters."""
    assert Usage(100, 60, None).uncached == 40
    assert Usage(100, None, None).uncached is None


def test_dialects_are_tried_particular_first() -> None:
    """The general OpenAI shape comes after the shapes that contain it."""
    names = [dialect.name for dialect in DIALECTS]
    assert names.index("openai_chat") > max(names.index("deepseek"), names.index("headrace"))


@pytest.mark.parametrize(
    ("usage", "output", "thought"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}, 7, None),
        ({"input_tokens": 5, "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}}, 7, 3),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "total_tokens": 12,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            7,
            3,
        ),
        (  # counted apart, as the total shows
            {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "total_tokens": 15,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            10,
            3,
        ),
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 99, "reasoning_tokens": 3}, 7, 3),
        ({"completion_tokens": 0, "output_tokens": 7}, 0, None),
        ({"completion_tokens": None, "output_tokens": 7}, 7, None),
        ({"completion_tokens": -1}, None, None),
        ({}, None, None),
    ],
)
def test_output_holds_the_reasoning(usage: dict[str, Any], output: int | None, thought: int | None) -> None:
    """Under either name; where the total says that reasoning came on top, it is added."""
    assert (generated(usage), reasoning(usage)) == (output, thought)
    assert generated(None) is None


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (
            {
                "usage": {
                    "input_tokens": 50,
                    "cache_read_input_tokens": 900,
                    "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 20},
                }
            },
            Usage(1000, 900, 50),
        ),
        (
            {
                "usage": {
                    "inputTokens": 50,
                    "cacheReadInputTokens": 900,
                    "cacheDetails": [{"ttl": "5m", "inputTokens": 30}, {"ttl": "1h", "inputTokens": 20}],
                }
            },
            Usage(1000, 900, 50),
        ),
        (
            {
                "usage": {
                    "input_tokens": 1000,
                    "input_tokens_details": {
                        "cached_tokens": 900,
                        "cache_write_tokens_details": {"ttl_30m_tokens": 40, "ttl_12h_tokens": 10},
                    },
                }
            },
            Usage(1000, 900, 50),
        ),
        (
            {
                "usageMetadata": {
                    "promptTokenCount": 1000,
                    "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 900}, "odd", None],
                }
            },
            Usage(1000, 900, None),
        ),
    ],
)
def test_parts_that_stand_alone_are_summed(body: dict[str, Any], want: Usage) -> None:
    """A6: where the sum is not given, its parts say it."""
    assert normalise(body) == want


def test_more_read_than_there_was_is_no_count() -> None:
    """It would make a hit share above 1, and hide the misses of others."""
    odd = normalise({"usage": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 900}}})
    assert odd == Usage(50, None, None)
    shares = hit_names([odd, Usage(1000, 500, None)])
    assert (shares["hit_token_weighted"], shares["cache_report_coverage"]) == (0.5, 0.5)
