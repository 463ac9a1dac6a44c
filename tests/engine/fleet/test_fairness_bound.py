"""Two tenants that both have work waiting get the same, within the bound of ENGINE E29."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ClassConfig, MemoryConfig, QueueConfig, RouterConfig, TenantConfig
from loadgen.clock import Clock, run_virtual
from tests.engine.fleet.world import VirtualFleet, ask, config

BLOCKS, BLOCK = 24, 16


def _served(plan: dict[str, Any]) -> tuple[list[tuple[dict[str, float], frozenset[str]]], int]:
    """Run a plan; returns (what each tenant has had for its weight, who has work waiting) at every moment
    that anything came, and the longest prompt."""
    rng = random.Random(plan["seed"])
    weights: dict[str, float] = plan["weights"]
    seen: list[tuple[dict[str, float], frozenset[str]]] = []
    longest = 0

    async def main(clock: Clock) -> None:
        nonlocal longest
        of = config(
            workers=plan["workers"],
            memory=MemoryConfig(kv_blocks=BLOCKS),
            queue=QueueConfig(order=plan["order"], max_requests=10_000, max_tokens=10**7),
            router=RouterConfig(policy="load_only"),
            tenants={name: TenantConfig(weight=weight) for name, weight in weights.items()},
            classes={"default": ClassConfig()},
        )
        async with VirtualFleet(of, clock) as world:
            queue = world.fleet.gateway.dispatcher.queue
            had = dict.fromkeys(weights, 0.0)
            charge = queue.service.charge

            def watched(tenant: str, uncached: int = 0, output: int = 0) -> None:
                charge(tenant, uncached, output)
                had[tenant] += queue.service.cost(uncached, output) / weights[tenant]
                seen.append((dict(had), frozenset(t for t in weights if queue.of_tenant(t).requests)))

            queue.service.charge = watched  # type: ignore[method-assign]
            for tenant, count in plan["counts"].items():
                for _ in range(count):
                    length = rng.randrange(1, 150)
                    longest = max(longest, length)
                    world.submit(ask(length, rng.randrange(10**9), rng.randrange(1, 60), tenant=tenant))
                await asyncio.sleep(plan["gap"])
            await world.quiet(3600.0)
            await world.check_at_rest()

    run_virtual(main)
    return seen, longest


def _gap(seen: list[tuple[dict[str, float], frozenset[str]]], a: str, b: str) -> float:
    """The most by which what the two had in any stretch differed in which both had work waiting."""
    worst, low, high = 0.0, 0.0, 0.0
    before = False
    for had, waiting in seen:
        ahead = had[a] - had[b]
        if not {a, b} <= waiting:
            before = False
            continue
        low, high = (min(low, ahead), max(high, ahead)) if before else (ahead, ahead)
        before = True
        worst = max(worst, high - low)
    return worst


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    workers=st.integers(1, 2),
    counts=st.tuples(st.integers(20, 40), st.integers(20, 40), st.integers(5, 30)),
    weights=st.tuples(*[st.sampled_from([1.0, 1.0, 2.0, 5.0])] * 3),
    gap=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_backlogged_tenants_differ_by_no_more_than_the_bound(
    seed: int, workers: int, counts: tuple[int, ...], weights: tuple[float, ...], gap: float
) -> None:
    """2*max(w_in*longest prompt, w_out*sum N*B), over random lengths, weights, workers and starts."""
    names = ("a", "b", "c")
    plan = {
        "seed": seed,
        "workers": workers,
        "order": "fair",
        "counts": dict(zip(names, counts, strict=True)),
        "weights": dict(zip(names, weights, strict=True)),
        "gap": gap,
    }
    seen, longest = _served(plan)
    bound = 2 * max(longest, 2 * workers * BLOCKS * BLOCK)
    for a, b in (("a", "b"), ("a", "c"), ("b", "c")):
        assert _gap(seen, a, b) <= bound


@pytest.mark.parametrize(("order", "holds"), [("fair", True), ("fcfs", False)])
def test_one_tenant_that_floods_the_queue_is_held_to_its_share(order: str, holds: bool) -> None:
    """Sixty requests come before the first of another: in order of arrival the bound is broken."""
    counts, weights = {"flood": 60, "small": 60}, {"flood": 1.0, "small": 1.0}
    plan = {"seed": 3, "workers": 1, "order": order, "counts": counts, "weights": weights, "gap": 0.0}
    seen, longest = _served(plan)
    assert (_gap(seen, "flood", "small") <= 2 * max(longest, 2 * BLOCKS * BLOCK)) is holds
