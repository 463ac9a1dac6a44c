"""Prompt text: made again from its key, of the asked length, cold where it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import Constant
from loadgen.plan import Load, Phases, Plan
from loadgen.text import Prompter, TextMaker, Unit, clock_text
from loadgen.words import WORDS
from loadgen.workload import SharedPrefix


def length(text: str, unit: Unit) -> int:
    return len(text.split()) if unit == "word" else len(text)


@given(st.text(max_size=10), st.integers(1, 300), st.sampled_from(["word", "byte"]), st.booleans())
def test_text_has_exactly_the_asked_units(key: str, n: int, unit: Unit, nonce: bool) -> None:
    """Also with a nonce in front; equal keys give equal text."""
    text = TextMaker(unit).text(key, n, nonce="x" if nonce else "")
    assert length(text, unit) == n
    assert text.isascii()
    assert text == TextMaker(unit).text(key, n, nonce="x" if nonce else "")


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_a_stamp_changes_the_text_from_its_place_on_only(unit: Unit) -> None:
    """What stands before the clock stays the same, and so does the length."""
    maker = TextMaker(unit)
    plain, stamped = maker.text("k", 200), maker.text("k", 200, stamp=61.5, stamp_at=100)
    at = stamped.index(clock_text(61.5))
    assert plain[:at] == stamped[:at]
    assert length(stamped[:at], unit) == 100
    assert length(stamped, unit) == 200
    later = maker.text("k", 200, stamp=62.5, stamp_at=100)
    assert later != stamped
    assert later[: at + 18] == stamped[: at + 18]


def test_clock_text_is_a_plain_timestamp() -> None:
    """Whole seconds since the plan's own zero, so that a plan gives the same text twice."""
    assert clock_text(0.0) == "2026-03-04T09:15:02"
    assert clock_text(61.9) == "2026-03-04T09:16:03"


def test_words_are_single_lower_case_words() -> None:
    """Each is a word of three letters or more, and none comes twice."""
    assert len(WORDS) == len(set(WORDS)) == 320
    assert all(word.isalpha() and word.islower() and len(word) >= 3 for word in WORDS)


def heads(nonce: str | None, unit: Unit, phases: Phases) -> dict[str, set[str]]:
    """The beginnings of all prompts, within one block of 16 tokens, by phase."""
    load = Load("c", Constant(2.0), SharedPrefix(3, 64, 16, 4))
    prompter = Prompter(TextMaker(unit), nonce)
    found: dict[str, set[str]] = {}
    for shot in Plan.make([load], phases, 1).shots:
        text = prompter.messages(shot, {})[0]["content"]
        head = " ".join(text.split()[:16]) if unit == "word" else text[:16]
        found.setdefault(shot.phase, set()).add(head)
    return found


@pytest.mark.parametrize("unit", ["word", "byte"])
def test_a_nonce_makes_runs_and_phases_cold_to_each_other(unit: Unit) -> None:
    """C22: the first block differs between runs and between warm-up and window, not within them."""
    phases = Phases(window=10.0, warmup=5.0)
    one, other = heads("one", unit, phases), heads("other", unit, phases)
    assert len(one["window"]) == 3, "groups still share their prefix"
    assert not one["window"] & one["warmup"]
    assert not (one["window"] | one["warmup"]) & (other["window"] | other["warmup"])
    warm = heads(None, unit, phases)
    assert warm["window"] == warm["warmup"] == heads(None, unit, phases)["window"]
