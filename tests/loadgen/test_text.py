"""Prompt text: made again from its key, of the asked length, cold where it must be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Constant
from loadgen.plan import Load, Part, Phases, Plan, Shot
from loadgen.recorded import key_of
from loadgen.text import Prompter, TextMaker, Unit, clock_text
from loadgen.textcache import OVERHEAD, TextCache
from loadgen.words import WORDS
from loadgen.workload import Fixed, SharedPrefix

UNITS: tuple[Unit, ...] = ("word", "byte")
UNIT = st.sampled_from(UNITS)


def length(text: str, unit: Unit) -> int:
    return len(text.split()) if unit == "word" else len(text)


@given(st.text(max_size=10), st.integers(1, 300), UNIT, st.booleans())
def test_text_has_exactly_the_asked_units(key: str, n: int, unit: Unit, nonce: bool) -> None:
    """Also with a nonce in front; equal keys give equal text."""
    text = TextMaker(unit).text(key, n, nonce="x" if nonce else "")
    assert length(text, unit) == n
    assert text.isascii()
    assert text == TextMaker(unit).text(key, n, nonce="x" if nonce else "")


@given(st.integers(1, 300), st.integers(1, 300), UNIT)
def test_of_two_lengths_the_shorter_text_begins_the_longer(one: int, other: int, unit: Unit) -> None:
    """Whoever cuts a text has the same tokens up to the cut."""
    maker = TextMaker(unit)
    short, long = sorted((one, other))
    assert maker.text("k", long).startswith(maker.text("k", short))


def test_texts_are_the_same_in_every_version() -> None:
    """Words and bytes of a key are fixed: a stored plan means the same prompts later."""
    assert TextMaker("word").text("7/0/u3", 8) == "first not others let find min three power"
    assert TextMaker("byte").text("7/0/u3", 20) == "first not others let"


@pytest.mark.parametrize("unit", UNITS)
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


@pytest.mark.parametrize("unit", UNITS)
def test_a_nonce_makes_runs_and_phases_cold_to_each_other(unit: Unit) -> None:
    """C22: the first block differs between runs and between warm-up and window, not within them."""
    phases = Phases(window=10.0, warmup=5.0)
    one, other = heads("one", unit, phases), heads("other", unit, phases)
    assert len(one["window"]) == 3, "groups still share their prefix"
    assert not one["window"] & one["warmup"]
    assert not (one["window"] | one["warmup"]) & (other["window"] | other["warmup"])
    warm = heads(None, unit, phases)
    assert warm["window"] == warm["warmup"] == heads(None, unit, phases)["window"]


def test_a_thousand_runs_are_cold_to_each_other() -> None:
    """The first words of their prompts, which are all that tells the runs apart, never come twice."""
    maker = TextMaker("word")
    heads = {" ".join(maker.text("k", 40, nonce=f"{run}/window").split()[:16]) for run in range(1000)}
    assert len(heads) == 1000


def test_load_processes_send_no_prompt_twice() -> None:
    """Slices are parts of one plan: prompts that share nothing share nothing across processes."""
    load = Load("c", Constant(20.0), Fixed(20, 4))
    plan = Plan.make([load], Phases(window=10.0), 1, slices=4)
    prompter = Prompter(TextMaker())
    texts = [prompter.messages(shot, {})[0]["content"] for k in range(4) for shot in plan.of_slice(k)]
    assert len({text[:60] for text in texts}) == len(texts) == 200


# --- blocks of a trace


def block_part(tokens: int, *blocks: tuple[int, int], size: int = 16, key: str = "t") -> Part:
    return Part("user", tokens, key, blocks=blocks, block_tokens=size)


def ids_of(blocks: tuple[tuple[int, int], ...]) -> list[int]:
    return [id for first, count in blocks for id in range(first, first + count)]


RUNS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 80)), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(RUNS, RUNS, st.sampled_from([1, 7, 16, 64]), st.integers(0, 15), UNIT)
def test_equal_leading_blocks_are_equal_leading_text(
    one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...], size: int, cut: int, unit: Unit
) -> None:
    """Rule (b): as many leading units are equal as leading ids, however their runs are cut; the last block
    is cut to the prompt's length."""
    maker = TextMaker(unit)
    texts = []
    for blocks in (one, other):
        tokens = len(ids_of(blocks)) * size - min(cut, size - 1)
        texts.append(maker.of(block_part(tokens, *blocks, size=size)))
        assert length(texts[-1], unit) == tokens
    shared = 0
    for a, b in zip(ids_of(one), ids_of(other), strict=False):
        if a != b:
            break
        shared += size
    a, b = (text.split() if unit == "word" else list(text) for text in texts)
    least = min(shared, len(a), len(b))
    assert a[:least] == b[:least]
    if unit == "word" and size > 6 and least == shared < min(len(a), len(b)) - 6:
        assert a[least : least + 6] != b[least : least + 6]


def test_ids_of_another_key_are_other_text_and_what_no_block_reaches_is_made_too() -> None:
    """Ids are valid under one key only; a prompt longer than its blocks has its length all the same."""
    maker = TextMaker()
    assert maker.of(block_part(64, (0, 4))) != maker.of(block_part(64, (0, 4), key="u"))
    large = maker.of(block_part(5_000, (0, 1), (7, 1), size=2_500))
    assert large.startswith(maker.of(block_part(2_400, (0, 1), size=2_500)))
    long, whole = maker.of(block_part(70, (0, 4))), maker.of(block_part(64, (0, 4)))
    assert long.startswith(whole)
    assert len(long.split()) == 70


def test_a_nonce_goes_into_the_first_block_without_changing_lengths() -> None:
    """Cold replays are cold to each other and share among themselves what the trace shares."""
    maker = TextMaker()
    part, later = block_part(80, (0, 5)), block_part(80, (0, 3), (50, 2))
    one, two, cold = maker.of(part, "r1/window"), maker.of(later, "r1/window"), maker.of(part, "r2/window")
    assert one.split()[:48] == two.split()[:48]
    assert one.split()[:16] != cold.split()[:16]
    assert len(one.split()) == len(cold.split()) == 80


# --- messages


def test_a_tool_call_and_its_result_have_one_id_in_every_prompt() -> None:
    """The id follows from the call, so that a history stays the same from turn to turn."""
    call = Part("assistant", 3, "k/a0", call=True)
    live = Part("assistant", 3, answer_of=7, call=True)
    prompt = (Part("user", 2, "u"), call, Part("tool", 4, "t0"), live, Part("tool", 4, "t1"))
    shot = Shot(9, "c", "window", 0, 2, prompt, 16, 4, due_ns=0)
    messages = Prompter(TextMaker(), "n").messages(shot, {7: "look it up"})
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    ids = [messages[k]["tool_calls"][0]["id"] for k in (1, 3)]
    assert ids == [messages[k]["tool_call_id"] for k in (2, 4)]
    assert ids[0] != ids[1]
    assert messages[3]["content"] == "look it up"
    assert "tool_calls" not in messages[0]
    again = Prompter(TextMaker(), "n").messages(shot, {7: "look it up"})
    assert messages == again


# --- the cache


def test_the_cache_keeps_what_was_used_last_within_its_bound() -> None:
    """By bytes, not by number of texts; what is larger than half of it is not kept."""
    made: list[str] = []

    def text_of(key: str, size: int) -> str:
        def make() -> str:
            made.append(key)
            return "x" * size

        return cache.get(key, make)

    cache = TextCache(3 * (1000 + OVERHEAD))
    for key in ("a", "b", "a", "c", "a", "d", "a"):
        assert len(text_of(key, 1000)) == 1000
    assert made == ["a", "b", "c", "d"], "a was used between all others"
    text_of("b", 1000)
    assert made[-1] == "b", "it was the oldest when d came"
    text_of("huge", 5000)
    text_of("huge", 5000)
    assert made[-2:] == ["huge", "huge"]
    assert cache.size <= 3 * (1000 + OVERHEAD)


def test_a_million_keys_do_not_fill_the_memory() -> None:
    """The texts of many different prompts stay within the bound."""
    maker = TextMaker("word", cache=TextCache(100_000))
    for k in range(2_000):
        maker.text(f"u{k}", 50)
    assert maker.cache.size <= 100_000


def test_a_recorded_text_is_read_where_it_stands(tmp_path: Path) -> None:
    """As it was written; a cold run's nonce takes the place of its first words."""
    raw = json.dumps({"turns": ["What is a head race, and who built the first?", "Why?"]}).encode()
    (tmp_path / "q.jsonl").write_bytes(raw)
    part = Part("user", 11, key_of(tmp_path / "q.jsonl", 0, raw, 0))
    maker = TextMaker()
    assert maker.of(part) == "What is a head race, and who built the first?"
    cold = maker.of(part, "r1/window")
    assert cold.endswith(" race, and who built the first?")
    assert len(cold.split()) == 10
    assert cold != maker.of(part, "r2/window")
