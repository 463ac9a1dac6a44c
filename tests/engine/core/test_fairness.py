"""What each tenant has had, and what it may have at a time (ENGINE E29)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig, QueueConfig, TenantConfig
from engine.sched import fairness
from engine.sched.fairness import Caps, Service, Turn, tenant_label
from engine.sched.orders import Tally, Waiting


def entry(id: int, tenant: str, rank: int = 0, room: int = 96, uncached: int = 80) -> Waiting:
    return Waiting(id, "c", rank, 0, None, 80, uncached, 16.0, tenant=tenant, room=room)


def service(tenants: dict[str, TenantConfig] | None = None, **queue: Any) -> Service:
    return Service(EngineConfig(queue=QueueConfig(**queue), tenants=tenants or {}))


def test_prompt_and_output_count_by_their_weights_over_the_tenants() -> None:
    """w_in*u + w_out*out, divided by the weight; `default` stands for who has no row."""
    of = service(
        {"big": TenantConfig(weight=4.0), "default": TenantConfig(weight=2.0)},
        input_weight=3.0,
        output_weight=5.0,
    )
    for id, tenant in enumerate(("big", "other")):
        of.comes(entry(id, tenant))
    for id, tenant in enumerate(("big", "other")):
        of.admitted(entry(id, tenant), 100)
        of.charge(tenant, output=10)
    assert of.of("big") == (300 + 50) / 4
    assert of.of("other") == (300 + 50) / 2


def test_an_uncomputed_prompt_is_refunded() -> None:
    """As if it had never been admitted."""
    of = service()
    of.comes(entry(1, "a"))
    of.admitted(entry(1, "a"), 80)
    of.charge("a", uncached=-80)
    assert of.of("a") == 0.0


def test_who_comes_back_from_idling_saves_nothing_up() -> None:
    """It starts at the least of those that wait in its rank, or where the last one served stands."""
    of = service()
    of.comes(entry(1, "a"))
    of.comes(entry(2, "b"))
    of.charge("a", output=500)
    of.charge("b", output=300)
    of.comes(entry(3, "c"))
    assert of.of("c") == 600
    of.charge("c", output=1000)
    for id, tenant in ((1, "a"), (2, "b"), (3, "c")):
        of.goes(entry(id, tenant))
    of.admitted(entry(3, "c"), 0)
    of.comes(entry(4, "d"))
    assert of.of("d") == 2600
    of.comes(entry(5, "a"))
    assert of.of("a") == 2600


def test_a_refund_lowers_the_level() -> None:
    """Who comes next starts where the refunded one stands again."""
    of = service()
    of.comes(entry(1, "a"))
    of.comes(entry(2, "b"))
    of.charge("a", uncached=100)
    of.charge("b", output=25)
    assert of.start("new", 0) == 50
    of.charge("a", uncached=-100)
    assert of.start("new", 0) == 0


def test_who_waits_is_not_lifted() -> None:
    """Only idling loses credit: a second request of one that waits changes nothing."""
    of = service()
    of.comes(entry(1, "a"))
    of.comes(entry(2, "b"))
    of.charge("b", output=300)
    of.comes(entry(3, "a"))
    assert of.of("a") == 0.0


def test_other_ranks_do_not_set_the_level() -> None:
    """Urgent tenants that have had little do not give a newcomer credit over the others of its rank."""
    of = service()
    of.comes(entry(1, "urgent", rank=0))
    of.comes(entry(2, "bulk", rank=2))
    of.charge("bulk", output=500)
    of.comes(entry(3, "new", rank=2))
    assert of.of("new") == 1000


def test_one_that_may_not_be_served_does_not_hold_the_level_down() -> None:
    """A capped tenant lags behind; who comes then starts where the others are served."""
    of = service()
    of.comes(entry(1, "capped"))
    of.comes(entry(2, "b"))
    of.charge("b", output=500)
    of.admitted(entry(2, "b"), 80)
    of.comes(entry(3, "new"))
    assert of.of("new") == 1000


def test_idle_tenants_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are kept for the last to go idle; a late charge of one that is forgotten makes none."""
    monkeypatch.setattr(fairness, "MAX_IDLE", 3)
    of = service()
    for id in range(10):
        of.comes(entry(id, str(id)))
        of.goes(entry(id, str(id)))
    of.charge("0", output=5)
    assert sorted(of._counters) == ["7", "8", "9"]


def test_metrics_name_only_tenants_that_have_a_row() -> None:
    """All others are `default`, whatever clients call themselves."""
    rows = {"a": TenantConfig()}
    assert [tenant_label(rows, name) for name in ("a", "b", "")] == ["a", "default", "default"]


@pytest.mark.parametrize(
    ("caps", "allowed"),
    [({}, 5), ({"max_active": 2}, 2), ({"max_kv_tokens": 300}, 3), ({"max_kv_tokens": 50}, 1)],
)
def test_a_tenant_at_a_cap_starts_nothing_more(caps: dict[str, int], allowed: int) -> None:
    """By requests and by KV tokens; what exceeds a cap alone goes alone; an end makes room."""
    of = Caps(EngineConfig(tenants={"a": TenantConfig(**caps)}))  # type: ignore[arg-type]
    started = 0
    for id in range(5):
        if of.allows(entry(id, "a")):
            of.starts(entry(id, "a"))
            started += 1
    assert started == allowed
    assert of.active("a") == (allowed, 96 * allowed)
    assert of.allows(entry(9, "b"))
    for id in range(allowed):
        of.ends(entry(id, "a"))
    assert of.active("a") == (0, 0)
    assert of.allows(entry(9, "a"))


@settings(max_examples=100)
@given(data=st.data())
def test_counters_of_waiting_tenants_stay_close(data: st.DataObject) -> None:
    """Serving the least first, no two tenants that wait differ by more than one admission and what may be
    generated while nobody is admitted (the lemma under the bound of E29)."""
    of, outputs, room = service(), {}, 5
    tenants = [f"t{i}" for i in range(data.draw(st.integers(2, 4)))]
    waiting = dict.fromkeys(tenants, 0)
    bound = 100 + 2 * room * 20
    for id in range(data.draw(st.integers(1, 60))):
        act = data.draw(st.sampled_from(["come", "serve", "serve", "generate"]))
        if act == "come":
            tenant = data.draw(st.sampled_from(tenants))
            of.comes(entry(id, tenant))
            waiting[tenant] += 1
        elif act == "serve" and any(waiting.values()) and len(outputs) < room:
            tenant = min((t for t in tenants if waiting[t]), key=of.of)
            of.admitted(entry(id, tenant), data.draw(st.integers(1, 100)))
            of.goes(entry(id, tenant))
            waiting[tenant] -= 1
            outputs[id] = [tenant, data.draw(st.integers(1, 20))]
        elif act == "generate" and outputs:
            run = data.draw(st.sampled_from(sorted(outputs)))
            of.charge(outputs[run][0], output=1)
            outputs[run][1] -= 1
            if not outputs[run][1]:
                del outputs[run]
        backlogged = [of.of(t) for t in tenants if waiting[t]]
        if backlogged:
            assert max(backlogged) - min(backlogged) <= bound


def test_work_ahead_is_shared_out_by_counters() -> None:
    """Of two tenants with ten equal requests each, a newcomer behind its own five waits for five and about
    five of the other's, not for all ten; one that has had less waits for fewer."""
    of = service()
    for tenant in ("a", "b"):
        of.comes(entry(1, tenant))
    mine = Tally(requests=5, uncached=400, output=80.0)
    theirs = Tally(requests=10, uncached=800, output=160.0)
    turn = Turn(of, "a", 0, mine)
    assert turn.at == 560
    ahead = turn.before("b", theirs)
    assert (ahead.uncached, ahead.output) == (400, 80.0)
    assert turn.before("b", theirs).uncached == 0, "in another rank: its turn was taken"
    of.charge("b", output=140)
    ahead = Turn(of, "a", 0, mine).before("b", theirs)
    assert (ahead.uncached, ahead.output) == (200, 40.0)
