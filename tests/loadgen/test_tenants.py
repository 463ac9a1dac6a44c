"""Whose session it is: drawn by shares, with a stream of its own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from loadgen.arrivals import Concurrency, Constant, Poisson
from loadgen.plan import Load, Phases, Plan
from loadgen.tenants import zipf
from loadgen.workload import Fixed, Sessions


def test_tenants_are_drawn_by_their_shares() -> None:
    """Whole sessions belong to one; the draw changes no due time and no text; more sessions do not change
    whose the first ones are."""

    def made(window: float, tenants: dict[str, float] | None) -> Plan:
        load = Load("c", Poisson(40.0), Sessions(2, 20, 5, 3), tenants=tenants)
        return Plan.make([load], Phases(window=window), 1)

    one, plain = made(50.0, {"a": 0.7, "b": 0.3}), made(50.0, None)
    assert [replace(s, tenant="default") for s in one.shots] == list(plain.shots)
    sessions = {s.session: s.tenant for s in one.shots}
    assert all(s.tenant == sessions[s.session] for s in one.shots)
    assert Counter(sessions.values())["a"] / len(sessions) == pytest.approx(0.7, abs=0.04)
    shorter = made(25.0, {"a": 0.7, "b": 0.3}).shots
    assert [s.tenant for s in shorter] == [s.tenant for s in one.shots[: len(shorter)]]


def test_zipf_gives_a_long_tail_of_tenants() -> None:
    """The share of tenant k falls with a power of k; exponent 0 makes all alike."""
    shares = zipf(4)
    assert list(shares) == ["t1", "t2", "t3", "t4"]
    assert shares["t1"] == pytest.approx(4 * shares["t4"])
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(zipf(5, 0.0).values()) == {0.2}
    Load("c", Constant(1.0), Fixed(1, 1), tenants=zipf(1000, 1.3))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({}, "empty"),
        ({"a": 0.5, "b": 0.4}, "sum to 100%, not 90"),
        ({"a": 1.0, "b": 0.0}, "'b' must be above 0%"),
        ({"a": math.nan}, "'a' must be above 0%"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(shares: dict[str, float], message: str) -> None:
    """A tenant without a share, or a rest that belongs to nobody, is a mistake."""
    with pytest.raises(ValueError, match=message):
        Load("c", Constant(1.0), Fixed(1, 1), tenants=shares)


@pytest.mark.parametrize("bad", [(0, 1.0), (1, -1.0), (10**9, 1.0), (3, math.nan)])
def test_a_zipf_law_without_tenants_is_refused(bad: tuple[int, float]) -> None:
    """So are an exponent below 0 and more tenants than a plan could hold."""
    with pytest.raises(ValueError, match=r"must be"):
        zipf(*bad)


def test_a_user_of_a_closed_loop_belongs_to_one_tenant() -> None:
    """All sessions of a user are the same tenant's."""
    load = Load("c", Concurrency(20, requests=5), Fixed(8, 2), tenants={"a": 0.5, "b": 0.5})
    shots = Plan.make([load], Phases(window=9.0), 1).shots
    tenant = {shot.id: shot.tenant for shot in shots}
    assert all(shot.parent is None or tenant[shot.parent] == shot.tenant for shot in shots)
    assert set(tenant.values()) == {"a", "b"}


def test_adapters_are_shares_of_the_sessions() -> None:
    """What the shares leave asks for the model itself; a recorded session keeps its own adapter."""
    load = Load("c", Poisson(40.0), Sessions(2, 20, 5, 3), adapters={"fr": 0.2, "sql": 0.3})
    plan = Plan.make([load], Phases(window=50.0), 1)
    sessions = {s.session: s.adapter for s in plan.shots}
    assert all(s.adapter == sessions[s.session] for s in plan.shots)
    counts = Counter(sessions.values())
    assert counts["fr"] / len(sessions) == pytest.approx(0.2, abs=0.04)
    assert counts[None] / len(sessions) == pytest.approx(0.5, abs=0.04)
    plain = Plan.make([replace(load, adapters=None)], Phases(window=50.0), 1)
    assert [replace(s, adapter=None) for s in plan.shots] == list(plain.shots)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({}, "adapters is empty"),
        ({"a": 0.0}, "the share of adapter 'a' must be above 0%"),
        ({"a": 0.7, "b": 0.4}, "the shares of the adapters must sum to at most 100%"),
    ],
)
def test_shares_of_adapters_that_cannot_be_are_refused(shares: dict[str, float], words: str) -> None:
    """Each with what is wrong."""
    with pytest.raises(ValueError, match=words):
        Load("c", Constant(1.0), Fixed(5, 3), adapters=shares)
