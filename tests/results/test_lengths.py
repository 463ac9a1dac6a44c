"""Prompt lengths, asked and served (MEASUREMENT C10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.lengths import Served, lengths_block, served_lengths
from results.record import Record
from results.run import RunData
from results.summary import judge


def data_of(pairs: list[tuple[int, float | None]], **columns: Any) -> pd.DataFrame:
    """Records of prompts (asked, served)."""
    asked, served = zip(*pairs, strict=True)
    known = {"class": "c", "turn": 0, "n_in_asked": asked, "n_in": served}
    return pd.DataFrame(known | columns).astype({"n_in": "float64"})


def of_c(pairs: list[tuple[int, float | None]]) -> Served:
    return served_lengths(data_of(pairs))["c"]


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=30), st.integers(0, 400))
def test_a_template_adds_the_same_to_every_prompt(asked: list[int], template: int) -> None:
    """Served = asked + 31: no spread, all exact, a word is a token."""
    found = of_c([(n, n + template) for n in asked])
    assert (found.n, found.added, found.spread, found.exact) == (len(asked), template, 0, 1.0)
    assert found.doubt is None
    assert found.tokens_per_unit is None or found.tokens_per_unit == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(1_000, 1_331), (2_000, 2_631), (4_000, 5_231)], "a word has 1.3 tokens"),
        ([(2_000, 2_631)] * 5, "a word has 1.32 tokens"),
        ([(2_000, 1_900)] * 5, "a word has 0.95 tokens"),
        ([(1_000, 1_031)] * 9 + [(1_000, 1_050)], "by 31 and up to 19 more or less"),
    ],
)
def test_what_is_no_template_is_doubted(pairs: list[tuple[int, float | None]], words: str) -> None:
    """Words of several tokens, also where all prompts have one length; and lengths that vary."""
    assert words in (of_c(pairs).doubt or "")


def test_lengths_that_hardly_differ_do_not_tell_the_tokens_of_a_word() -> None:
    """One token of noise between 100 and 101 is no slope of 2."""
    found = of_c([(100, 131), (101, 133), (100, 131), (101, 132)])
    assert found.tokens_per_unit is None
    assert found.doubt is None


def test_only_first_turns_with_a_served_length_count() -> None:
    """Later turns bring answers that may have been shorter; an unknown length is no length of 0."""
    data = data_of([(100, 131), (200, 180), (100, None)], turn=[0, 1, 0])
    assert served_lengths(data)["c"].n == 1
    assert served_lengths(data_of([(100, None)])) == {}


def test_classes_are_told_apart() -> None:
    """Each with its own template and its own doubt."""
    found = served_lengths(data_of([(100, 131), (1_000, 2_300)], **{"class": ["a", "b"]}))
    assert [(name, one.added) for name, one in found.items()] == [("a", 31), ("b", 1300)]
    assert found["a"].doubt is None
    assert found["b"].doubt is not None


def test_the_block_tells_prompts_and_answers() -> None:
    """C14: the share of answers as long as asked for, and why answers ended."""
    data = data_of(
        [(100, 131)] * 4,
        outcome=["completed", "completed", "completed", "reset"],
        n_out=[8.0, 8.0, 3.0, 2.0],
        n_out_asked=8,
        finish=["length", "length", "stop", None],
    )
    block = lengths_block(data)
    assert block["prompt"]["added"] == 31
    assert block["output_exact"] == pytest.approx(2 / 3)
    assert block["finish"] == {"length": 2, "stop": 1}
    none = lengths_block(data.iloc[:0])
    assert (none["prompt"], none["output_exact"], none["finish"]) == (None, None, {})
    assert none["prompt_reason"]
    assert none["output_exact_reason"]


def test_a_doubt_is_a_finding(record: Callable[..., Record], run_of: Callable[..., RunData]) -> None:
    """The reader learns that prompts had other lengths than the scenario says, and what to do."""
    records = [record(i, due_ms=i, ttft_ms=10, e2e_ms=20, n_in_asked=2_000, n_in=2_631) for i in range(5)]
    (found,) = [f for f in judge(run_of(records))["findings"] if f["code"] == "served_length"]
    assert "1.32 tokens" in found["text"]
    assert "target.tokenizer" in found["remedy"]
