"""Every token in exactly one bucket."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.attribution.ledger import Cut, belief


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    prompt = draw(st.integers(1, 5000))
    base = draw(st.integers(0, prompt))
    shared = draw(st.integers(0, base))
    readable = draw(st.integers(0, shared))
    return Cut(
        prompt=prompt,
        cached=draw(st.integers(0, prompt)),
        base=base,
        shared=shared,
        readable=readable,
        readable_here=draw(st.integers(0, prompt)),
        same_domain=draw(st.booleans()),
        expired=draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None)
@given(cuts())
def test_identities(cut: Cut) -> None:
    """The eight buckets sum to P, read + bonus to C, the others to P - C, for any numbers."""
    ledger = cut.ledger()
    assert ledger.total == cut.prompt
    assert ledger.read + ledger.bonus == cut.cached
    assert ledger.total - ledger.read - ledger.bonus == cut.prompt - cut.cached
    assert min(ledger.counts()) >= 0
    if cut.cached <= cut.base:
        assert ledger.changed + ledger.policy + ledger.lost == cut.base - cut.cached


@settings(derandomize=True, deadline=None)
@given(cuts())
def test_buckets_by_their_definitions(cut: Cut) -> None:
    """Each bucket is what A14 says, bonus being taken from policy, then changed, then new."""
    ledger, lost = cut.ledger(), max(0, cut.readable - cut.cached)
    beyond = 0 if cut.same_domain else min(lost, max(0, cut.readable - cut.readable_here))
    assert ledger.read == min(cut.cached, cut.readable)
    assert ledger.bonus == max(0, cut.cached - cut.readable)
    assert ledger.boundary == beyond
    assert (ledger.expiry, ledger.unexplained) == ((lost - beyond, 0) if cut.expired else (0, lost - beyond))
    bonus = ledger.bonus
    for name, whole in (
        ("policy", cut.shared - cut.readable),
        ("changed", cut.base - cut.shared),
        ("new", cut.prompt - cut.base),
    ):
        taken = min(bonus, whole)
        bonus -= taken
        assert getattr(ledger, name) == whole - taken


@settings(derandomize=True, deadline=None)
@given(cuts())
def test_runs_cover_the_prompt(cut: Cut) -> None:
    """The runs follow one another from 0 to P."""
    at = 0
    for start, end, _ in cut.runs():
        assert start == at < end
        at = end
    assert at == cut.prompt


@pytest.mark.parametrize(
    ("idle", "life", "e"),
    [
        (299.0, (300.0, 300.0), 0.0),
        (300.0, (300.0, 300.0), 0.0),
        (300.1, (300.0, 300.0), 0.9),
        (1950.0, (300.0, 3600.0), 0.55),
        (3600.0, (300.0, 3600.0), 0.8),
        (4000.0, (300.0, 3600.0), 0.9),
        (2000.0, (1800.0, None), 0.5),
        (9e9, None, 0.0),
        (None, (300.0, 300.0), 0.0),
    ],
)
def test_belief_in_expiry(idle: float | None, life: tuple[float, float | None] | None, e: float) -> None:
    """0 up to sure, then 0.3 to 0.8, 0.9 above max, 0.5 where no max is known, 0 without a life."""
    assert belief(idle, life) == pytest.approx(e)


def test_belief_without_an_end_is_at_most_a_half() -> None:
    """Without the request's end the idle time is only bounded."""
    assert belief(1000.0, (300.0, 300.0), end_known=False) == 0.5
