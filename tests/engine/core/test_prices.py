"""What moves are believed to take: learned from each, and unlearned where none is made (E26, E40, E45)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import CacheConfig, DiskConfig, EngineConfig, TiersConfig
from engine.runner.base import Move, StepPlan, StepResult, Transfer
from engine.sched.prices import HALF_LIFE, Factor, Prices

BLOCK_BYTES = 1_000_000
TIERS = TiersConfig(host=10**9, disk=DiskConfig("/nowhere", 10**9), swap=10**9)
UP = {"host": (Transfer(Move.LOAD, 1, 1),), "disk": (Transfer(Move.FETCH, 0, 1), Transfer(Move.LOAD, 1, 1))}
DOWN = {"host": (Transfer(Move.SAVE, 1, 1),), "disk": (Transfer(Move.SPILL, 1),)}


def fresh() -> Prices:
    return Prices(EngineConfig(cache=CacheConfig(tiers=TIERS)), BLOCK_BYTES)


def learn(prices: Prices, transfers: tuple[Transfer, ...], times: float) -> None:
    """A step with these moves has taken so many times of what is expected."""
    hosts = sum(move.move in (Move.LOAD, Move.SAVE) for move in transfers)
    expected = fresh().moving(hosts, len(transfers) - hosts)
    prices.learn(StepPlan(0, (), transfers), times * expected, times * expected)


def refusals(prices: Prices, tier: str, pays_at: float) -> int:
    """How often a block from there is refused until it is moved, where that pays at so many times of what is
    expected."""
    blocks = (1, int(tier == "disk"))
    limit = pays_at * fresh().moving(*blocks)
    count = 0
    while prices.moving(*blocks) >= limit:
        assert prices.hoped(*blocks) < limit
        prices.refused(disk=tier == "disk")
        count += 1
        assert count < 1000, "for ever"
    return count


_SLOWLY = st.tuples(st.sampled_from([*UP.values(), *DOWN.values()]), st.floats(0.01, 1e6) | st.floats(0.5, 2))


@given(st.lists(_SLOWLY, max_size=12), st.sampled_from(["host", "disk"]), st.floats(1.1, 10))
@settings(deadline=None, derandomize=True)
def test_moves_come_back(slowly: list[tuple[tuple[Transfer, ...], float]], tier: str, pays_at: float) -> None:
    """Whatever was measured: if moves really take what is expected, so many refusals at most and they are
    made again, and after a few trials without any refusal."""
    prices = fresh()
    for transfers, times in slowly:
        learn(prices, transfers, times)
    for _ in range(12):
        dearest = max(prices.host.now, prices.disk.now, pays_at)
        bound = HALF_LIFE * log2((dearest - 1) / (pays_at - 1))
        assert refusals(prices, tier, pays_at) <= ceil(bound) + 1
        learn(prices, UP[tier], 1.0)
        learn(prices, DOWN["host"], 1.0)
    assert refusals(prices, tier, pays_at) == 0


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_slow_ones_stay_refused(tier: str) -> None:
    """Where moves really take 20 times as long they are tried now and then, not more and more often."""
    prices = fresh()
    for _ in range(60):
        learn(prices, UP["host"], 20.0)
        learn(prices, UP["disk"], 20.0)
    for _ in range(10):
        assert refusals(prices, tier, 2.0) > 3 * HALF_LIFE
        learn(prices, UP[tier], 20.0)


def test_half_as_much_after_so_many() -> None:
    """Also the weight of what is measured next; what is cheaper than expected does not age."""
    factor = Factor()
    factor.measured(81.0, 1.0)
    assert factor.now == pytest.approx(9.0)
    for _ in range(HALF_LIFE):
        factor.refused()
    assert factor.now == pytest.approx(5.0)
    factor.measured(1.0, 1.0)
    assert factor.now == pytest.approx(9 - 0.55 * 8)
    cheap = Factor()
    cheap.measured(0.0, 1.0)
    cheap.refused()
    assert cheap.now == pytest.approx(0.9)


def test_swap_comes_back(bench: Any, tokens: Any) -> None:
    """A first save that took 100 times as long keeps victims from being swapped for a while only."""
    b = bench(blocks=14, policy="prompt", preemption="swap", swap=20, cache=False, latency=0.005)
    execute = b.runner.execute
    saves: list[int] = []

    def slow_at_first(plan: StepPlan) -> StepResult:
        result: StepResult = execute(plan)
        if any(move.move is Move.SAVE for move in plan.transfers):
            saves.append(plan.step)
            if len(saves) == 1:
                more = 99 * result.moving
                result = replace(
                    result, duration=(result.duration or 0.0) + more, moving=result.moving + more
                )
        return result

    b.runner.execute = slow_at_first
    swapped = []
    for _ in range(120):
        before = len(saves)
        for seed in (1, 2):
            b.submit(tokens(24 - seed, seed=seed), 20)
        b.run()
        swapped.append(len(saves) > before)
    assert swapped[0]
    assert not swapped[1]
    assert all(swapped[60:])
    b.drained()


def test_restores_come_back(bench: Any, tokens: Any) -> None:
    """So do blocks from host memory whose loads were slow once."""
    b = bench(blocks=10, host=20)
    b.serve(tokens(33), 1)
    b.serve(tokens(33, seed=3), 1)
    prices = b.worker.memory.transfers.prices
    prices.host.measured(10_000.0, 1.0)
    prices.host.measured = lambda *_: None  # nothing goes down meanwhile
    restored = [b.serve(tokens(33, seed=seed), 1).truth.hit_host > 0 for seed in [0, 3] * 100]
    assert not restored[0]
    assert all(restored[-20:])
    b.drained()
