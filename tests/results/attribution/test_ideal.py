"""hit_theoretical: what endless caches of the workers would have served (MEASUREMENT C41)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from results.attribution.ideal import ideal_reads
from results.attribution.observed import Observed, token_hashes
from results.attribution.policies import headrace

BLOCK = 4
POLICY = headrace(BLOCK)


def seen(id: str, prompt: list[int], answer: list[int] | None = None, **given: Any) -> Observed:
    ids = np.array(prompt, dtype=np.uint32)
    answered = None if answer is None else token_hashes(answer, 1, len(prompt))
    known: dict[str, Any] = {"session": id, "ts_start": 0.0, "ts_first_token": 1.0, "ts_end": 2.0}
    known |= {"components": [], "prompt_total": len(prompt), "cache_read": 0}
    return Observed(id, **(known | given), hashes=token_hashes(ids, 1), output_hashes=answered)


def ran(id: str, at: float, prompt: int, worker: int = 0, **given: Any) -> dict[str, Any]:
    known = {"id": id, "worker": worker, "incarnation": f"w{worker}-1", "first_scheduled": at}
    return known | {"finished": at + 10, "computed": prompt, "hit_device": 0} | given


P = list(range(100, 112))


def test_a_prefix_that_the_worker_had_is_read_in_whole_blocks() -> None:
    """Ten of twelve tokens are shared: two blocks of four."""
    other = [*P[:10], 7, 8]
    reads = ideal_reads([seen("a", P), seen("b", other)], [ran("a", 1, 12), ran("b", 2, 12)], POLICY)
    assert reads == {"a": 0, "b": 8}


def test_the_last_token_is_always_computed() -> None:
    """Of the very same prompt of whole blocks all but the last is read."""
    reads = ideal_reads([seen("a", P), seen("b", P)], [ran("a", 1, 12), ran("b", 2, 12)], POLICY)
    assert reads["b"] == 8


def test_blocks_are_of_one_worker_tenant_and_life() -> None:
    """Another worker, another tenant, the same worker after a restart, and the same step have none."""
    first = seen("a", P)
    same, tenant = seen("b", P), seen("b", P, workspace="other")
    elsewhere = [ran("b", 2, 12, worker=1), ran("b", 2, 12, incarnation="w0-2"), ran("b", 1, 12)]
    for row in elsewhere:
        assert ideal_reads([first, same], [ran("a", 1, 12), row], POLICY)["b"] == 0
    assert ideal_reads([first, tenant], [ran("a", 1, 12), ran("b", 2, 12)], POLICY)["b"] == 0


def test_an_answer_is_there_when_it_has_ended_but_for_its_last_token() -> None:
    """Prompt of 12, answer of 5: four blocks went through the model, and only once it was given."""
    answer = [1, 2, 3, 4, 5]
    goes_on = seen("b", [*P, *answer, 9])
    rows = [ran("a", 1, 12), ran("b", 20, 18)]
    assert ideal_reads([seen("a", P, answer), goes_on], rows, POLICY)["b"] == 16
    assert ideal_reads([seen("a", P, answer[:4]), goes_on], rows, POLICY)["b"] == 12
    assert ideal_reads([seen("a", P, answer), goes_on], [rows[0], ran("b", 5, 18)], POLICY)["b"] == 12


def test_what_was_cut_off_in_its_prompt_leaves_what_it_had() -> None:
    """Eight tokens were computed before it was cancelled."""
    rows = [ran("a", 1, 8), ran("b", 20, 12)]
    assert ideal_reads([seen("a", P), seen("b", P)], rows, POLICY)["b"] == 8
    rows[0] |= {"computed": 4}
    assert ideal_reads([seen("a", P), seen("b", P)], rows, POLICY)["b"] == 4


def test_what_no_worker_began_is_not_judged() -> None:
    """Refused at the gateway, or of unknown tokens."""
    unknown = Observed("c", "c", 0.0, None, None, [], None, None)
    rows = [ran("a", 1, 12), {"id": "b", "first_scheduled": None}, ran("c", 2, 12)]
    assert ideal_reads([seen("a", P), seen("b", P), unknown], rows, POLICY) == {"a": 0}


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.integers(0, 1)), max_size=8))
def test_it_is_the_longest_prefix_that_stood_there_before(load: list[tuple[list[int], int]]) -> None:
    """Against every pair of prompts, compared token by token."""
    observed = [seen(str(i), prompt) for i, (prompt, _) in enumerate(load)]
    rows = [ran(str(i), i, len(prompt), worker) for i, (prompt, worker) in enumerate(load)]
    for i, (prompt, worker) in enumerate(load):
        before = [earlier for earlier, where in load[:i] if where == worker]
        shared = max((_common(prompt, earlier) for earlier in before), default=0)
        wanted = min(shared, len(prompt) - 1) // BLOCK * BLOCK
        assert ideal_reads(observed, rows, POLICY)[str(i)] == wanted


def _common(one: list[int], other: list[int]) -> int:
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n
