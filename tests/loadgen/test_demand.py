"""What a plan asks of its target before anything is sent (MEASUREMENT C44)."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import Burst, Constant
from loadgen.demand import demand, planned_arrivals, theoretical_hits
from loadgen.plan import Load, Part, Phases, Plan, Shot
from loadgen.prefixes import Prefixes
from loadgen.workload import Fixed, Sessions


def test_demand_counts_what_a_perfect_cache_would_save() -> None:
    """C44: prefill, uncached, decode tokens per second, by class, from the plan alone."""
    load = Load("c", Constant(1.0), Sessions(2, 100, 10, 20, 1.0))
    phases = Phases(window=10.0)
    found = demand(Plan.make([load], phases, 1), alone=lambda shot, hit: 0.5)["c"]
    assert found.requests_s == 2.0
    assert found.prefill_tokens_s == 110 + 140
    # First turns after the very first hit the shared system prompt, second turns all but their own question.
    assert found.uncached_tokens_s == (110 + 9 * 10 + 10 * 10) / 10
    assert found.decode_tokens_s == 40
    assert found.kv_tokens_mean == 0.5 * (110 + 10) + 0.5 * (140 + 10)
    assert demand(Plan.make([load], phases, 1))["c"].kv_tokens_mean is None


def shots_of(*prompts: Any, **changes: Any) -> list[Shot]:
    """One shot for each prompt: parts, or runs of blocks of 4 tokens with the length of the prompt."""
    made = []
    for id, prompt in enumerate(prompts):
        parts = prompt if isinstance(prompt[0], Part) else (blocks(*prompt),)
        n = sum(part.tokens for part in parts)
        made.append(Shot(id, "c", "window", id, 0, tuple(parts), n, 5, due_ns=id, **changes))
    return made


def blocks(tokens: int, *runs: tuple[int, int], key: str = "trace") -> Part:
    return Part("user", tokens, key, blocks=runs, block_tokens=4)


def hits(*prompts: Any, **changes: Any) -> list[int]:
    return list(theoretical_hits(shots_of(*prompts, **changes)).values())


def test_leading_blocks_that_were_sent_before_are_held() -> None:
    """Runs are compared by what is in them, however they are cut; a block behind a new one is not held."""
    assert hits((40, (0, 10)), (40, (0, 6), (50, 4)), (40, (0, 6), (50, 2), (8, 2)), (20, (50, 5))) == [
        0,
        24,
        32,
        0,
    ]
    assert hits((40, (0, 4), (4, 6)), (44, (0, 10), (90, 1))) == [0, 40]


def test_a_cut_block_is_held_only_by_the_same_cut() -> None:
    """The last block ends where the prompt does; and the last token of a prompt is always computed."""
    assert hits((10, (0, 3)), (12, (0, 3)), (10, (0, 3))) == [0, 8, 9]
    assert hits((12, (0, 3)), (12, (0, 3))) == [0, 11]


def test_blocks_of_other_texts_roles_tenants_and_adapters_are_others() -> None:
    """Equal ids mean equal text under one key only, and caches are not shared across tenants."""
    assert hits((40, (0, 10)), (blocks(40, (0, 10), key="other"),)) == [0, 0]
    one = shots_of((40, (0, 10)), tenant="a")[0]
    for changes in ({"tenant": "b"}, {"adapter": "lora", "tenant": "a"}):
        (other,) = shots_of((40, (0, 10)), **changes)
        assert list(theoretical_hits([one, other]).values())[-1] == 0


def test_blocks_and_messages_may_follow_each_other() -> None:
    """A prompt is one path, whatever its parts are."""
    head, tail = Part("system", 7, "s"), Part("user", 5, "u")
    new = Part("user", 5, "v")
    prompts = [(head, blocks(8, (0, 2)), tail), (head, blocks(8, (0, 2)), new), (blocks(8, (0, 2)), tail)]
    assert hits(*prompts) == [0, 15, 0]


@pytest.mark.skipif("HEADRACE_DATA" not in os.environ, reason="HEADRACE_DATA is not set: no traces here")
@pytest.mark.parametrize(("trace", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_the_hits_of_a_real_trace_are_those_its_readme_states(trace: str, share: float) -> None:
    """mooncake: share of its blocks that an endless cache would hold."""
    seen, held, all_blocks = Prefixes(), 0, 0
    path = Path(os.environ["HEADRACE_DATA"]) / "mooncake" / f"{trace}_trace.jsonl"
    for line in path.read_text().splitlines():
        row = json.loads(line)
        runs = tuple((id, 1) for id in row["hash_ids"])
        tokens = seen.add("", (Part("user", row["input_length"], "m", blocks=runs, block_tokens=512),))
        held, all_blocks = held + math.ceil(tokens / 512), all_blocks + len(runs)
    assert held / all_blocks == pytest.approx(share, abs=0.0005)


runs = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(runs, st.integers(0, 3)), max_size=12))
def test_hits_of_runs_are_those_of_their_blocks(prompts: list[tuple[list[tuple[int, int]], int]]) -> None:
    """The tree of runs finds what comparing block by block with all earlier prompts finds."""
    given_runs, seen, expected = [], set(), []
    for run, cut in prompts:
        ids = [id for first, n in run for id in range(first, first + n)]
        tokens = 4 * len(ids) - cut
        pieces: list[Any] = [*ids[:-1], (ids[-1], cut) if cut else ids[-1]]
        paths = [tuple(pieces[: k + 1]) for k in range(len(pieces))]
        known = next((k for k, path in enumerate(paths) if path not in seen), len(paths))
        expected.append(min(4 * known - (cut if known == len(paths) else 0), tokens - 1))
        seen |= set(paths)
        given_runs.append((tokens, *run))
    assert hits(*given_runs) == expected if prompts else True


def test_planned_arrivals_are_told_by_class() -> None:
    """C18, before t0: how many are due in the window, how evenly, and how many in the fullest second."""
    loads = [
        Load("even", Constant(4.0), Sessions(2, 10, 5, 3, 1.0)),
        Load("rush", Burst(30, at=6.0, over=0.5), Fixed(8, 2)),
    ]
    found = planned_arrivals(Plan.make(loads, Phases(window=10.0, warmup=5.0), 1))
    assert (found["even"].n, found["even"].rate, found["even"].gap_cv, found["even"].peak_1s) == (40, 4, 0, 4)
    assert (found["rush"].n, found["rush"].peak_1s) == (30, 30)
    assert found["rush"].first_to_last_s is not None
    assert 0.3 < found["rush"].first_to_last_s < 0.5
