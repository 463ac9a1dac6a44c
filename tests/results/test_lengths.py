"""Prompt lengths, asked and served (MEASUREMENT C10)."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.lengths import Served, lengths_block, served_lengths


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


def test_the_block_has_a_row_a_class() -> None:
    """Each class apart, with the doubt in words."""
    data = data_of([(100, 131), (1_000, 1_300)], **{"class": ["a", "b"]})
    block = lengths_block(data)
    assert [(name, row["added"]) for name, row in block.items()] == [("a", 31), ("b", 300)]
    assert block["a"]["doubt"] is None
