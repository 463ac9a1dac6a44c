"""The index of earlier requests finds what a plain comparison finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from results.attribution.observed import Observed, shared_prefix, token_hashes
from results.attribution.policies import headrace
from results.attribution.requestlog import Entry, RequestLog, entry, in_flight, shared_tokens, touch

POLICY = headrace(16, ttl_s=10)


def _seen(
    name: str, ids: list[int], answer: list[int], start: float = 0.0, life: float = 1.0, **kept: object
) -> Observed:
    return Observed(
        id=name,
        session=name,
        ts_start=start,
        ts_first_token=start + life / 2,
        ts_end=start + life,
        components=[],
        prompt_total=len(ids),
        cache_read=0,
        hashes=token_hashes(ids, 3),
        output_hashes=token_hashes(answer, 3, first=len(ids)),
        **kept,  # type: ignore[arg-type]
    )


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


@settings(derandomize=True, deadline=None)
@given(a=TOKENS, b=TOKENS, answer=TOKENS)
def test_shared_tokens_equals_the_plain_comparison(a: list[int], b: list[int], answer: list[int]) -> None:
    """The binary search over running sums finds the longest shared prefix, the answer included."""
    t, p = _seen("t", a, []), _seen("p", b, answer)
    plain = shared_prefix(token_hashes(a, 3), token_hashes([*b, *answer], 3))
    assert shared_tokens(entry(t, 1, POLICY), entry(p, 0, POLICY)) == plain


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), tokens=st.integers(1, 300), clock=st.sampled_from(["start", "release"]))
def test_last_touch_equals_a_scan_of_the_whole_log(seed: int, tokens: int, clock: Any) -> None:
    """The latest touch is that of a scan over all requests of the domain that hold the prefix."""
    rng = np.random.default_rng(seed)
    policy = replace(POLICY, clock=clock)
    stem = rng.integers(0, 9, 300).tolist()
    log, everyone = RequestLog(), list[Entry]()
    for order in range(25):
        cut = int(rng.integers(0, 300))
        ids = [*stem[:cut], *(rng.integers(10, 20, 20).tolist())]
        e = entry(_seen(f"r{order}", ids, [], start=order, life=float(rng.uniform(0.1, 8))), order, policy)
        log.add(e)
        everyone.append(e)
    t = entry(_seen("t", [*stem, 99], [], start=25.0), 25, policy)
    holders = [e for e in everyone if e.ready_at(25.0) and e.holds(t, tokens)]
    if not holders:
        return
    want = max(touch(e, 25.0, policy.clock) for e in holders)
    assert log.last_touch(t, tokens, t.domain, policy, also=holders[0]) == want or tokens < 64


def test_ready_and_in_flight() -> None:
    """Ready from the first token on; in flight before; an attempt that ended without one is neither."""
    e = entry(_seen("a", [1, 2], [3], start=5.0), 0, POLICY)
    assert (e.ready_at(5.2), in_flight(e, 5.2), e.ready_at(5.5)) == (False, True, True)
    e.seen.ts_first_token = None
    assert (in_flight(e, 5.9), e.ready_at(6.0), in_flight(e, 6.0)) == (True, True, False)


def test_a_prompt_counted_otherwise_is_not_compared_by_token() -> None:
    """A4: where the endpoint counts other tokens than we do, indices are never compared."""
    seen = _seen("a", [1, 2, 3], [])
    seen.prompt_total = 4
    assert entry(seen, 0, POLICY).sums is None
